"""Images as a caller gives them: one or many, in any form, with names of their own or without."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple, NoReturn

from PIL import Image

from otpt.errors import OtptError
from otpt.images import ImageSource
from otpt.images.arrays import is_array
from otpt.images.reading import is_file_object, read_file_object


class GivenImage(NamedTuple):
    """What to call it in a message, how to get it, and the name that keys its views (None: its content)."""

    shown: str
    source: Callable[[], ImageSource]
    image_id: str | None


def is_one_image(given: Any) -> bool:
    """Whether something is a single image, not a list, an iterator or a batch (B, C, H, W) of them."""
    return _has_form_of_an_image(given) or not isinstance(given, Iterable)


def check_several(given: Any) -> None:
    """Refuse a single image where a list is expected: the letters of a path and the rows of an array are not images."""
    # what has only __getitem__, as data sets of torch do, can be gone through as well
    if _has_form_of_an_image(given) or not (isinstance(given, Iterable) or hasattr(given, "__getitem__")):
        words = repr(given[:100]) if isinstance(given, str) else f"({type(given).__name__})"
        raise OtptError(
            f"A single image {words} was given; expected a list of images or a batch (B, C, H, W); write [image]."
        )


def _has_form_of_an_image(given: Any) -> bool:
    if is_array(given):
        return bool(given.ndim != 4)
    one = (str, bytes, bytearray, memoryview, os.PathLike, Image.Image)
    return isinstance(given, one) or is_file_object(given)


def given_images(images: Iterable[ImageSource], image_ids: Iterable[str] | None = None) -> Iterator[GivenImage]:
    """The images in their order, read lazily."""
    names = None if image_ids is None else iter(image_ids)
    for position, image in enumerate(images):
        name = None if names is None else next(names, None)
        if names is not None and name is None:
            raise OtptError("There must be as many image ids as images; one list is shorter.")
        yield GivenImage(shown_image(image, position), _source(image), name)
    if names is not None and next(names, None) is not None:
        raise OtptError("There must be as many image ids as images; one list is shorter.")


def shown_image(image: ImageSource, position: int) -> str:
    """A path as it is; the place in the list of anything else."""
    return str(image) if isinstance(image, (str, os.PathLike)) else f"image {position + 1}"


def _source(image: ImageSource) -> Callable[[], ImageSource]:
    """How the threads of the pipeline get an image; a file object is read now, by the thread that it belongs to."""
    if isinstance(image, Image.Image) or not is_file_object(image):
        return lambda: image
    try:
        data = read_file_object(image)
    except OtptError as error:
        return partial(_raise, error)
    return lambda: data


def _raise(error: OtptError) -> NoReturn:
    raise error
