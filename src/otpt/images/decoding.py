"""From the bytes of a file, or a PIL image, to an upright 8-bit RGB image, or an error that says why not.

Compared with ``Image.open(path).convert("RGB")``:

* The EXIF orientation is applied. (TPT's scripts ignore it.)
* 16-bit grey is scaled by 255/65535; Pillow's conversion would clip it to white.
* An alpha channel is dropped, the colours beneath it are kept, as Pillow's conversion does.
* Of an animation, the first frame is used.
* A truncated file is refused.
"""

from __future__ import annotations

import io
import threading
import warnings
from collections.abc import Callable
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from otpt.errors import OtptError

# The size at which Pillow itself refuses an image as a decompression bomb.
MAX_PIXELS = 178_956_970

_T = TypeVar("_T")
_PROGRAMS = ("EPS",)  # Pillow gives PostScript to Ghostscript
_ORIENTATION_TAG = 0x0112
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
# Python's warning filters belong to the whole process: only one thread at a time may change and restore them.
_warning_lock = threading.Lock()


def decode(data: bytes, name: str, max_pixels: int) -> Image.Image:
    """An image file's bytes as an image with all its pixels; ``name`` is what to call it in a message."""
    try:
        image = _quietly(lambda: Image.open(io.BytesIO(data)))
    except Image.DecompressionBombError:
        raise _too_large(name, None, max_pixels) from None
    except UnidentifiedImageError:
        raise OtptError(f"Cannot use {name} as an image: it is not an image in a known format.") from None
    except Exception as error:  # a damaged header can raise nearly anything inside a format's reader
        raise _damaged(name, error) from None
    check_size(image.size, name, max_pixels)
    return load(image, name)


def load(image: Image.Image, name: str) -> Image.Image:
    """Decode all pixels (of the first frame)."""
    if image.format in _PROGRAMS:
        raise OtptError(
            f"Cannot use {name} as an image: {image.format} is a program that another program would have to run, which "
            "is not done; convert it to PNG or JPEG."
        )
    try:
        # Readers of this one format warn while decoding; all others decode outside the lock, side by side.
        if image.format == "ICO":
            _quietly(image.load)
        else:
            image.load()
    except Image.DecompressionBombError:
        raise _too_large(name, image.size, MAX_PIXELS) from None
    except MemoryError:
        raise
    except Exception as error:
        raise _damaged(name, error) from None
    return image


def to_rgb(image: Image.Image, name: str) -> Image.Image:
    """Upright and in 8-bit RGB; never the caller's own object."""
    orientation = _UPRIGHT.get(_quietly(lambda: _orientation(image)))
    try:
        if image.mode.startswith("I"):
            image = Image.fromarray(eight_bits(np.asarray(image), name))
        elif image.mode == "F":
            raise OtptError(f"{name} holds floating-point values without a defined white; save it as 8-bit.")
        elif image.mode in ("P", "PA") and "transparency" in image.info:
            # Straight to RGB gives the same colours with a warning about the transparency.
            image = image.convert("RGBA")
        elif image.mode in ("RGBa", "La"):
            image = image.convert("RGBA" if image.mode == "RGBa" else "LA")
        rgb = image.convert("RGB")
    except OtptError:
        raise
    except ValueError:
        raise OtptError(f"{name} has the colour mode {image.mode!r}, which has no RGB form; convert it.") from None
    if orientation is not None:
        rgb = rgb.transpose(orientation)
    # A later reader must not rotate the image again, nor carry the file's metadata along.
    rgb.info = {}
    return rgb


def eight_bits(values: NDArray[np.generic], name: str) -> NDArray[np.uint8]:
    """16-bit grey (also held in 32-bit integers) → 8-bit, v·255/65535 rounded."""
    wide = values.astype(np.int64)
    if wide.min() < 0 or wide.max() > 65535:
        raise OtptError(f"{name} holds 32-bit values without a defined white; save it as 8- or 16-bit.")
    return ((wide * 255 + 32767) // 65535).astype(np.uint8)


def _orientation(image: Image.Image) -> int:
    try:
        value = image.getexif().get(_ORIENTATION_TAG, 1)
    except Exception:  # damaged metadata: the pixels are still good, and so is "upright"
        return 1
    return value if isinstance(value, int) else 1


def check_size(size: tuple[int, int], name: str, max_pixels: int) -> None:
    """``OtptError`` for (width, height) without pixels, or with too many."""
    width, height = size
    if width == 0 or height == 0:
        raise OtptError(f"Cannot use {name} as an image: it has no pixels ({width}×{height}).")
    if width * height > max_pixels:
        raise _too_large(name, size, max_pixels)


def _too_large(name: str, size: tuple[int, int] | None, max_pixels: int) -> OtptError:
    given = "has too many pixels" if size is None else f"has {size[0]}×{size[1]} pixels"
    return OtptError(f"{name} {given}; at most {max_pixels:,} are accepted: make it smaller first.")


def _damaged(name: str, error: Exception) -> OtptError:
    reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
    return OtptError(f"Cannot use {name} as an image: it is damaged or truncated ({reason}).")


def _quietly(step: Callable[[], _T]) -> _T:
    """Run a short step of Pillow's without its warnings (odd metadata, a merely large image)."""
    with _warning_lock, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return step()
