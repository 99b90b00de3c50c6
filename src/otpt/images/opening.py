"""Open an image as 8-bit RGB, or raise an error that says why it cannot be used.

    open_image("photo.jpg")          # a path, a URL, bytes, a file object, a PIL image, an array or a tensor

Same pixels, same digest: however an image is given, its default id is a hash of its decoded RGB pixels.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeAlias

from numpy.typing import NDArray
from PIL import Image

from otpt.errors import OtptError, unknown
from otpt.images.arrays import is_array, rgb_array
from otpt.images.decoding import MAX_PIXELS, check_size, decode, load, to_rgb
from otpt.images.reading import is_file_object, read_file, read_file_object
from otpt.images.urls import LIMITS, UrlLimits, fetch_url, is_url

if TYPE_CHECKING:
    from torch import Tensor

    ImageSource: TypeAlias = str | Path | bytes | IO[bytes] | Image.Image | NDArray[Any] | Tensor
else:
    ImageSource: TypeAlias = "str | Path | bytes | IO[bytes] | Image.Image | NDArray[Any] | Tensor"

KEYS = ("pixels", "file")
"""What a digest is made of: the decoded pixels, or the bytes of the file where there is one."""


def open_image(source: ImageSource, *, max_pixels: int = MAX_PIXELS, urls: UrlLimits | None = LIMITS) -> Image.Image:
    """The image as an upright 8-bit RGB image, fully decoded.

    Args:
        source: a path, an http(s) address, the bytes of a file, a file object (read from its start if it can be
            rewound, as Pillow does, and left where it stood), a PIL image, an array or tensor (see
            :func:`otpt.images.arrays.rgb_array`).
        max_pixels: more are refused (Pillow's own limit, ``Image.MAX_IMAGE_PIXELS``, applies as well).
        urls: size and time limits of addresses; None refuses them.

    Raises :class:`OtptError` for an image that is missing, a folder, not readable, empty, not an image, truncated, or
    too large.
    """
    return open_with_digest(source, max_pixels=max_pixels, urls=urls)[0]


def image_digest(source: ImageSource, *, key: str = KEYS[0], urls: UrlLimits | None = LIMITS) -> str:
    """32 hexadecimal digits of an image's content: the default image id. See :func:`open_with_digest`."""
    return open_with_digest(source, key=key, urls=urls)[1]


def open_with_digest(
    source: ImageSource, *, max_pixels: int = MAX_PIXELS, key: str = KEYS[0], urls: UrlLimits | None = LIMITS
) -> tuple[Image.Image, str]:
    """:func:`open_image` and a digest of its content: the first 32 hexadecimal digits of a SHA-256.

    With the key "pixels" it is that of ``b"width height\\n"`` and the RGB bytes, so that a BMP and a TIFF of one image,
    its path and the opened image agree. With "file" it is that of the file's bytes where there is a file; of a PIL
    image, an array or a tensor it is that of the pixels all the same.
    """
    if key not in KEYS:
        raise unknown("key of the views", key, KEYS)
    data: bytes | None = None
    if isinstance(source, Image.Image):
        name = "the given PIL image"
        check_size(source.size, name, max_pixels)
        image = to_rgb(load(source, name), name)
    elif is_array(source):
        values = rgb_array(source)
        check_size((values.shape[1], values.shape[0]), "the given array", max_pixels)
        image = Image.fromarray(values)
    else:
        data, name = _file_bytes(source, urls)
        image = to_rgb(decode(data, name, max_pixels), name)
    if data is None or key == "pixels":
        data = b"%d %d\n" % image.size + image.tobytes()
    return image, hashlib.sha256(data).hexdigest()[:32]


def _file_bytes(source: Any, urls: UrlLimits | None) -> tuple[bytes, str]:
    """The bytes of an image file and what to call it in a message."""
    if isinstance(source, (bytes, bytearray, memoryview)):
        data, name = bytes(source), "the given bytes"
    elif isinstance(source, str) and is_url(source):
        data, name = fetch_url(source, urls), repr(source)
    elif isinstance(source, (str, os.PathLike)):
        data, name = read_file(source), repr(str(source))
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
