"""Opening of images from any source as 8-bit RGB.

    open_image("photo.jpg")          # a path, a URL, bytes, a file object, a PIL image, an array or a tensor

The default id of an image is a hash of its decoded RGB pixels, independent of its source. Compared with
``Image.open(path).convert("RGB")``:

* The EXIF orientation is applied, unless ``upright=False``. (The official scripts of TPT, C-TPT and O-TPT ignore it.)
* 16-bit grey is scaled by 255/65535; Pillow clips it to white.
* An alpha channel is dropped without blending, as in Pillow.
* The first frame of an animation is used.
* A truncated file is rejected.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple, Protocol, TypeAlias, TypeGuard, TypeVar, runtime_checkable

import httpx
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from otpt._version import __version__
from otpt.arguments import checked
from otpt.errors import OtptError, cannot_read, describe_error

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class ImageFeatures:
    """Precomputed view features (V, D) of an image, clean view first."""

    views: NDArray[np.float32]


ImageSource: TypeAlias = "str | Path | bytes | IO[bytes] | Image.Image | NDArray[np.generic] | Tensor | ImageFeatures"

MAX_PIXELS = 178_956_970
"""Number of pixels above which Pillow rejects an image as a decompression bomb."""

MAX_FILE_BYTES = 1 << 30
"""Number of bytes above which a local file is no image: four bytes of each of :data:`MAX_PIXELS` pixels, and some."""

_T = TypeVar("_T")
_CHANNELS = (1, 3, 4)  # grey, RGB, RGBA
_PHOTOGRAPHIC_COLOURS = 350
_ROUNDING = 1e-6
_EXPECTED = "expected (H, W), (H, W, C) or (C, H, W) with 1, 3 or 4 channels, in uint8 or as floats in [0, 1]"
# Warning filters are global to the process: only one thread at a time may change and restore them.
_warning_lock = threading.Lock()


class NamedImage(NamedTuple):
    """Image id and a thread-safe function that returns the path, the bytes or the image."""

    id: str
    read: Callable[[], ImageSource]


@dataclass(frozen=True)
class LocalFile:
    """Function of a :class:`NamedImage` that is a local file: returns its path."""

    path: str

    def __call__(self) -> str:
        return self.path


@dataclass(frozen=True)
class UrlLimits:
    """Limits of a download: bytes, total seconds including redirects, number of redirects."""

    max_bytes: int = 64 << 20
    seconds: float = 20.0
    redirects: int = 5


LIMITS = UrlLimits()


@checked
def open_image(
    source: ImageSource, *, max_pixels: int = MAX_PIXELS, urls: UrlLimits | None = LIMITS, upright: bool = True
) -> Image.Image:
    """Open and decode an image, and return it upright in 8-bit RGB.

    Args:
        source: path, http(s) URL, bytes of a file, file object (see :func:`read_file_object`), PIL image, array or
            tensor (see :func:`rgb_array`).
        max_pixels: maximum number of pixels; Pillow's own limit, ``Image.MAX_IMAGE_PIXELS``, applies as well.
        urls: limits for downloads; None rejects URLs.
        upright: whether to apply the EXIF orientation.

    Raises:
        OtptError: if the image is missing, a folder, unreadable, empty, not an image, truncated, or too large.
    """
    return open_with_digest(source, max_pixels=max_pixels, urls=urls, upright=upright)[0]


@checked
def open_with_digest(
    source: ImageSource,
    *,
    max_pixels: int = MAX_PIXELS,
    urls: UrlLimits | None = LIMITS,
    name: str = "the given image",
    upright: bool = True,
) -> tuple[Image.Image, str]:
    """Open an image as :func:`open_image` does, and return it with the digest of its pixels.

    The digest is the first 32 hexadecimal digits of the SHA-256 of ``b"width height\\n"`` and the RGB bytes, so it does
    not depend on the file format. ``name`` stands for a PIL image in messages.
    """
    if isinstance(source, ImageFeatures):
        raise OtptError("The image consists of features only, but its pixels are needed; pass the image.")
    if is_array(source):
        values = rgb_array(source)
        _check_size((values.shape[1], values.shape[0]), "the given array", max_pixels)
        image = Image.fromarray(values)
    else:
        if isinstance(source, Image.Image):
            opened = source
        else:
            data, name = file_bytes(source, urls)
            opened = open_header(io.BytesIO(data), name=name)
        _check_size(opened.size, name, max_pixels)
        loaded = _load(opened, name)
        _check_size(loaded.size, name, max_pixels)  # a header may say less than is decoded
        image = _to_rgb(loaded, name, upright)
    digest = hashlib.sha256(b"%d %d\n" % image.size)
    digest.update(image.tobytes())
    return image, digest.hexdigest()[:32]


def is_colourful(image: Image.Image) -> bool:
    """Return whether an image has as many colours as photographs in colour and noisy drawings have.

    Of 320 clean, grey and outlined emoji the most colourful one has 244 colours; of 100 colour photographs most have
    more than 500. Grey photographs are not recognised.
    """
    small = image.convert("RGB")
    small.thumbnail((128, 128))
    levels = np.asarray(small, dtype=np.int32) // 8  # 32 levels per channel
    colours = levels @ np.array([1, 32, 1024], dtype=np.int32)
    return len(np.unique(colours)) >= _PHOTOGRAPHIC_COLOURS


def file_bytes(source: object, urls: UrlLimits | None) -> tuple[bytes, str]:
    """Return the bytes of an image file and its name for error messages."""
    if isinstance(source, (bytes, bytearray, memoryview)):
        data, name = bytes(source), "the given bytes"
    elif isinstance(source, str) and is_url(source):
        data, name = fetch_url(source, urls), repr(source)
    elif isinstance(source, (str, os.PathLike)):
        data, name = _read_file(Path(source)), repr(str(source))
    elif is_file_object(source):
        data, name = read_file_object(source), "the given file object"
    else:
        raise OtptError(
            f"Cannot open a {type(source).__name__} as an image; expected a path, a URL, bytes, a file object, a PIL "
            "image, an array or a tensor."
        )
    if not data:
        raise OtptError(f"Cannot use {name} as an image: it is empty (0 bytes).")
    return data, name


def _read_file(path: Path) -> bytes:
    if os.path.exists(path) and not os.path.isfile(path):  # reading a pipe would block
        kind = "a folder" if path.is_dir() else "not a regular file"
        raise OtptError(f"{str(path)!r} is {kind}; pass the path of an image file.")
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            data = b"" if size > MAX_FILE_BYTES else file.read(MAX_FILE_BYTES)
    except FileNotFoundError:
        raise OtptError(f"There is no image at {str(path)!r}; check the path.") from None
    except (OSError, ValueError) as error:  # ValueError: null character in the path
        raise cannot_read("image", path, error) from None
    if size > MAX_FILE_BYTES:
        raise OtptError(f"The file {str(path)!r} has {size:,} bytes; expected an image, of at most {MAX_FILE_BYTES:,}.")
    return data


class Readable(Protocol):
    """Binary file object."""

    def read(self) -> object:
        """Return the content."""


def is_file_object(source: object) -> TypeGuard[Readable]:
    """Return whether an object has a ``read`` method, as open files, ``io.BytesIO`` and HTTP responses do."""
    return callable(getattr(source, "read", None))


def read_file_object(source: Readable) -> bytes:
    """Read a binary file object, from its start and restoring its position if it is seekable."""
    try:
        if isinstance(source, _Seekable) and source.seekable():
            position = source.tell()
            source.seek(0)
            data = source.read()
            source.seek(position)
        else:
            data = source.read()
    except (OSError, ValueError) as error:
        raise OtptError(f"Cannot read the given file object: {_reason(error)}.") from None
    if not isinstance(data, bytes):
        raise OtptError(
            f"The given file object returns {type(data).__name__}, not bytes; open the file in binary mode, 'rb'."
        )
    return data


@runtime_checkable
class _Seekable(Protocol):
    def read(self) -> object: ...

    def seekable(self) -> bool: ...

    def seek(self, position: int) -> int: ...

    def tell(self) -> int: ...


def _reason(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error).rstrip(".")


def is_url(source: str) -> bool:
    """Return whether a string is an http(s) URL."""
    return source.lower().startswith(("http://", "https://"))


def fetch_url(url: str, limits: UrlLimits | None = LIMITS, *, address: str | None = None) -> bytes:
    """Download the file at an http(s) URL and return its bytes; raise if ``limits`` is None.

    With ``address``, connect to that IP address instead of resolving the host name, without proxies.
    """
    if limits is None:
        raise OtptError(f"URLs are not accepted here, but the image is {url!r}; pass the image or its file.")
    # in a separate thread, because the caller may run inside an event loop, as in notebooks
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, _download(url, limits, address)).result()


async def _download(url: str, limits: UrlLimits, address: str | None) -> bytes:
    remedy = "check the URL, or download the image and pass its path."
    data = bytearray()
    try:
        target = httpx.URL(url)
        headers = {"User-Agent": f"otpt/{__version__}", "Accept": "image/*, */*;q=0.5", "Accept-Encoding": "identity"}
        extensions = {}
        if address is not None:
            headers["Host"], extensions["sni_hostname"] = target.netloc.decode("ascii"), target.host
            target = target.copy_with(host=address)
        client = httpx.AsyncClient(
            follow_redirects=True, max_redirects=limits.redirects, timeout=limits.seconds, trust_env=address is None
        )
        # the timeout of httpx is per read; this one bounds the whole download
        async with (
            asyncio.timeout(limits.seconds),
            client,
            client.stream("GET", target, headers=headers, extensions=extensions) as response,
        ):
            if response.status_code != 200:
                status = f"{response.status_code} ({response.reason_phrase})"
                raise OtptError(f"Cannot fetch {url!r}: the server answered {status}; {remedy}")
            async for part in response.aiter_bytes():
                data += part
                if len(data) > limits.max_bytes:
                    raise OtptError(
                        f"The file at {url!r} has more than {limits.max_bytes:,} bytes; download it and pass its path."
                    )
    except (TimeoutError, httpx.TimeoutException):
        raise OtptError(
            f"Cannot fetch {url!r} within {limits.seconds:g} s; try again, or download it and pass its path."
        ) from None
    except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
        if isinstance(error, OtptError):
            raise
        raise OtptError(f"Cannot fetch {url!r}: {_reason(error) or type(error).__name__}; {remedy}") from None
    return bytes(data)


def open_header(
    file: IO[bytes], formats: tuple[str, ...] | None = None, *, name: str = "the given bytes"
) -> Image.Image:
    """Open an image file in one of Pillow's ``formats`` (default: all) without decoding it."""
    try:
        return _quietly(lambda: Image.open(file, formats=formats))
    except UnidentifiedImageError:
        raise OtptError(f"Cannot use {name} as an image: it is not an image in a known format.") from None
    except Exception as error:  # a corrupt header can raise nearly any exception in Pillow
        raise _unusable(name, error) from None


def _load(image: Image.Image, name: str) -> Image.Image:
    """Decode the pixels of the first frame."""
    if image.format == "EPS":  # Pillow would run Ghostscript
        raise OtptError(f"Cannot use {name} as an image: EPS files are programs; convert it to PNG or JPEG.")
    try:
        image.load()
    except MemoryError:
        raise
    except Exception as error:
        raise _unusable(name, error) from None
    return image


def _to_rgb(image: Image.Image, name: str, upright: bool) -> Image.Image:
    """Return a new image in 8-bit RGB, without metadata, turned as they say if it should be ``upright``."""
    if upright:
        with suppress(Exception):  # ignore corrupt metadata
            image = _quietly(lambda: ImageOps.exif_transpose(image))
    try:
        if image.mode.startswith("I"):
            image = Image.fromarray(_eight_bits(np.asarray(image), name))
        elif image.mode == "F":
            raise OtptError(f"{name} has floating-point values without a defined white level; save it as 8-bit.")
        elif image.mode in ("P", "PA") and "transparency" in image.info:
            # converting directly to RGB gives the same colours, but a warning
            image = image.convert("RGBA")
        elif image.mode in ("RGBa", "La"):
            image = image.convert("RGBA" if image.mode == "RGBa" else "LA")
        rgb = image.convert("RGB")
    except OtptError:
        raise
    except ValueError:
        raise OtptError(f"{name} has the colour mode {image.mode!r}; convert the image to RGB.") from None
    rgb.info = {}
    return rgb


def _check_size(size: tuple[int, int], name: str, max_pixels: int) -> None:
    """Raise for an empty or too large image."""
    width, height = size
    if width == 0 or height == 0:
        raise OtptError(f"Cannot use {name} as an image: it has no pixels ({width}×{height}).")
    if width * height > max_pixels:
        raise OtptError(
            f"{name} has {width}×{height} = {width * height:,} pixels; expected at most {max_pixels:,}; resize it "
            "first."
        )


def _unusable(name: str, error: Exception) -> OtptError:
    reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
    if isinstance(error, Image.DecompressionBombError):
        return OtptError(f"{name} has too many pixels ({reason}); resize it first.")
    return OtptError(f"Cannot use {name} as an image: it is corrupt or truncated ({reason}).")


def _quietly(step: Callable[[], _T]) -> _T:
    """Call a Pillow function without its warnings about metadata and large images."""
    with _warning_lock, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return step()


def is_array(source: object) -> TypeGuard[NDArray[np.generic] | Tensor]:
    """Return whether an object is a numpy array or, by duck typing, a torch tensor."""
    tensor_methods = ("detach", "cpu", "is_floating_point")
    return isinstance(source, np.ndarray) or all(hasattr(source, name) for name in tensor_methods)


def rgb_array(source: NDArray[np.generic] | Tensor) -> NDArray[np.uint8]:
    """Convert an array or tensor (H, W), (H, W, C) or (C, H, W) to (H, W, 3) uint8.

    Floats v in [0, 1] become ⌊255·v + ½⌋, the inverse of ``ToTensor``. 16-bit values are scaled by 255/65535. Grey is
    repeated to three channels, and an alpha channel dropped. An ambiguous shape such as (3, 4, 3) is channels-last for
    an array and channels-first for a tensor.
    """
    values: NDArray[np.generic]
    if isinstance(source, np.ndarray):
        kind, values = "an array", source
    else:
        kind = "a tensor"
        try:
            plain = source.detach().cpu()
            values = (plain.double() if plain.is_floating_point() else plain).numpy()  # numpy has no bfloat16
        except Exception as error:  # a sparse tensor, or one without values
            raise OtptError(f"Cannot use a tensor as an image: {describe_error(error)}.") from None
    name = f"{kind} of shape {tuple(source.shape)} and type {source.dtype}"
    if values.ndim == 4 and len(values) == 1:
        values = values[0]
    if values.ndim == 2:
        values = values[..., None]
    elif values.ndim == 3 and values.shape[0] in _CHANNELS and (kind == "a tensor" or values.shape[2] not in _CHANNELS):
        values = np.moveaxis(values, 0, 2)
    number = values.dtype == np.uint8 or values.dtype == np.uint16 or values.dtype.kind == "f"
    if values.ndim != 3 or values.shape[2] not in _CHANNELS or values.size == 0 or not number:
        batch = "; pass a batch (B, C, H, W) to predict" if values.ndim == 4 else ""
        raise OtptError(f"Cannot use {name} as an image; {_EXPECTED}{batch}.")
    values = values[..., : 1 if values.shape[2] == 1 else 3]  # drop alpha
    if values.dtype == np.uint16:
        values = _eight_bits(values, name)
    elif values.dtype.kind == "f":
        wide = values.astype(np.float64)
        if not np.isfinite(wide).all():
            raise OtptError(f"Cannot use {name} as an image: it has values that are nan or infinite; check its source.")
        low, high = float(wide.min()), float(wide.max())
        if not (low >= -_ROUNDING and high <= 1 + _ROUNDING):
            remedy = "undo its normalisation first" if low < 0 else "divide it by 255"
            raise OtptError(
                f"Cannot use {name} as an image: its values range from {low:.6g} to {high:.6g}, expected floats in "
                f"[0, 1]; {remedy}."
            )
        values = np.floor(255 * wide.clip(0, 1) + 0.5).astype(np.uint8)
    return np.ascontiguousarray(np.broadcast_to(values, (*values.shape[:2], 3)))


def _eight_bits(values: NDArray[np.generic], name: str) -> NDArray[np.uint8]:
    """Convert 16-bit grey values (of any integer type) to 8-bit: v·255/65535, rounded."""
    if values.min() < 0 or values.max() > 65535:
        raise OtptError(f"{name} has 32-bit values without a defined white level; save it as 8- or 16-bit.")
    wide = values.astype(np.int32)  # 65535·255 + 32767 fits
    wide *= 255
    wide += 32767
    wide //= 65535
    return wide.astype(np.uint8)
