"""Normalisation of the caller's images: one or many, in any form, read lazily."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from functools import partial
from itertools import chain
from typing import NamedTuple, NoReturn, Protocol, cast, runtime_checkable

import numpy as np
from PIL import Image

from otpt.errors import OtptError
from otpt.images import ImageSource, LocalFile, NamedImage, is_array, is_file_object, is_url, read_file_object
from otpt.video import Frames


class ImageInput(NamedTuple):
    """Image name in messages, function that returns the image, and key of its views (None: digest of its content)."""

    shown: str
    source: Callable[[], ImageSource]
    image_id: str | None


@runtime_checkable
class Sampled(Protocol):
    """Item of a data set: an image with its name, and its label."""

    @property
    def id(self) -> str: ...
    @property
    def source(self) -> ImageSource: ...


def is_one_image(images: object) -> bool:
    """Return whether an object is a single image, not a list, an iterator or a batch (B, C, H, W)."""
    if is_array(images):
        return bool(images.ndim != 4)
    single = (str, bytes, bytearray, memoryview, os.PathLike, Image.Image, np.generic)
    iterable = isinstance(images, Iterable) or hasattr(images, "__getitem__")  # torch data sets need not be iterable
    return isinstance(images, single) or is_file_object(images) or not iterable


def count_images(images: object) -> int | None:
    """Return the number of images of a list, a batch, a data set or a data loader; None if it is not known yet."""
    dataset = getattr(images, "dataset", None)  # of a data loader, whose own length is its number of batches
    if isinstance(dataset, Sized):
        return len(dataset)
    if is_array(images):
        return int(images.shape[0])
    if isinstance(images, (list, tuple)) and not all(is_one_image(image) for image in images):
        return None  # batches
    try:
        return len(images) if isinstance(images, Sized) else None
    except Exception:  # of other packages
        return None


def image_inputs(images: Iterable[object], image_ids: Iterable[str] | None = None) -> Iterator[ImageInput]:
    """Lazily yield images in order.

    ``images`` may contain images, batches (B, C, H, W) or (images, labels) pairs of a data loader, rows of a Hugging
    Face data set, items of :func:`otpt.data.open_source`, or samples of an :class:`otpt.data.Dataset`.
    """
    if is_one_image(images):
        shown = repr(images[:100]) if isinstance(images, str) else f"({type(images).__name__})"
        raise OtptError(
            f"images is a single image {shown}; expected a list of images or a batch (B, C, H, W): pass [image]."
        )
    names = None if image_ids is None else iter(image_ids)
    for position, image in enumerate(chain.from_iterable(map(_images_of, images)), start=1):
        name = None if names is None else next(names, None)
        if names is not None and name is None:
            raise OtptError("The numbers of images and image ids differ; expected one id per image.")
        if isinstance(image, NamedImage):
            yield ImageInput(image.id, image.read, name)
            continue
        if isinstance(image, Sampled):
            yield ImageInput(image.id, _source(image.source), name)
            continue
        shown = f"image {position}"
        if isinstance(image, (str, os.PathLike)):
            shown = str(image)
        elif isinstance(image, Frames):
            shown = image.name
        yield ImageInput(shown, _source(image), name)
    if names is not None and next(names, None) is not None:
        raise OtptError("The numbers of images and image ids differ; expected one id per image.")


def _images_of(item: object) -> Iterable[object]:
    """Return the images of an item: an image, a batch, a pair of images and labels, or a row."""
    if isinstance(item, NamedImage):
        return (item,)
    if isinstance(item, (tuple, list)) and item and not isinstance(item[0], (int, float)):
        item = item[0]
    if isinstance(item, Mapping):
        image = next((item[name] for name in ("image", "img", "pixel_values", "jpg", "png") if name in item), None)
        if image is None:
            raise OtptError(f"A row of the data has the columns {list(item)}; expected a column 'image'.")
        item = image
    return item if is_array(item) and item.ndim == 4 else (item,)


def _source(image: object) -> Callable[[], ImageSource]:
    """Return a function that returns the image; a file object is read immediately, in the caller's thread.

    The function can be sent to another process if the image can.
    """
    if isinstance(image, (str, os.PathLike)) and not is_url(path := os.fspath(image)):
        return LocalFile(path)
    if isinstance(image, Image.Image) or not is_file_object(image):
        return partial(_constant, cast(ImageSource, image))  # opening it raises for other objects
    try:
        data = read_file_object(image)
    except OtptError as error:
        return partial(_raise, error)
    return partial(_constant, data)


def _constant(image: ImageSource) -> ImageSource:
    return image


def _raise(error: OtptError) -> NoReturn:
    raise error
