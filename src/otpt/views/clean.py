"""The clean view before normalisation: the image as a square, by open_clip's rules for inference."""

from __future__ import annotations

from PIL import Image

from otpt.errors import unknown

_INTERPOLATIONS = {"bicubic": Image.Resampling.BICUBIC, "bilinear": Image.Resampling.BILINEAR}
RESIZE_MODES = ("shortest", "squash", "longest")

# An image of 1 × 100,000 pixels would be enlarged to 224 × 22,400,000 only to crop its centre.
_MAX_RESIZED_PIXELS = 32_000_000


def clean_image(image: Image.Image, size: int, *, interpolation: str, resize_mode: str) -> Image.Image:
    """A ``size`` × ``size`` RGB image.

    * ``shortest``: shorter side to ``size``, then the centre;
    * ``squash``: both sides to ``size``, ignoring the aspect ratio;
    * ``longest``: longer side to ``size``, then black borders, centred.

    All resizing is Pillow's, antialiased. Extremely long images (where ``shortest`` would need more than 32
    million pixels in between) are resized only where the centre needs it, which may change a value by one
    level.
    """
    if interpolation not in _INTERPOLATIONS:
        raise unknown("interpolation", interpolation, _INTERPOLATIONS)
    resample = _INTERPOLATIONS[interpolation]
    if resize_mode == "squash":
        return image.resize((size, size), resample)
    if resize_mode == "shortest":
        return _shortest(image, size, resample)
    if resize_mode == "longest":
        return _longest(image, size, resample)
    raise unknown("resize mode", resize_mode, RESIZE_MODES)


def _shortest(image: Image.Image, size: int, resample: Image.Resampling) -> Image.Image:
    width, height = image.size
    new = (max(size, int(size * width / height)), max(size, int(size * height / width)))
    left, top = (round((side - size) / 2.0) for side in new)
    if new[0] * new[1] > _MAX_RESIZED_PIXELS:
        x, y = width / new[0], height / new[1]
        box = (left * x, top * y, min((left + size) * x, width), min((top + size) * y, height))
        return image.resize((size, size), resample, box=box)
    return image.resize(new, resample).crop((left, top, left + size, top + size))


def _longest(image: Image.Image, size: int, resample: Image.Resampling) -> Image.Image:
    ratio = max(image.width / size, image.height / size)
    width, height = (min(size, max(1, round(side / ratio))) for side in image.size)
    resized = image.resize((width, height), resample)
    square = Image.new("RGB", (size, size))
    square.paste(resized, ((size - width) // 2, (size - height) // 2))
    return square
