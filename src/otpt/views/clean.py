"""The clean view before normalisation: the picture as a square, by open_clip's rules for inference."""

from __future__ import annotations

from PIL import Image

from otpt.errors import unknown

_INTERPOLATIONS = {"bicubic": Image.Resampling.BICUBIC, "bilinear": Image.Resampling.BILINEAR}
RESIZE_MODES = ("shortest", "squash", "longest")

# A picture of 1 × 100,000 pixels would be blown up to 224 × 22,400,000 only to cut out its middle.
_MAX_RESIZED_PIXELS = 32_000_000


def clean_picture(picture: Image.Image, size: int, *, interpolation: str, resize_mode: str) -> Image.Image:
    """A ``size`` × ``size`` RGB image.

    * ``shortest``: shorter side to ``size``, then the centre;
    * ``squash``: both sides to ``size``, whatever the aspect;
    * ``longest``: longer side to ``size``, then black borders, centred.

    All resizing is Pillow's, antialiased. Extremely long pictures (where ``shortest`` would need more than 32
    million pixels in between) are resized only where the centre needs it, which may change a value by one
    level.
    """
    if interpolation not in _INTERPOLATIONS:
        raise unknown("interpolation", interpolation, _INTERPOLATIONS)
    resample = _INTERPOLATIONS[interpolation]
    if resize_mode == "squash":
        return picture.resize((size, size), resample)
    if resize_mode == "shortest":
        return _shortest(picture, size, resample)
    if resize_mode == "longest":
        return _longest(picture, size, resample)
    raise unknown("resize mode", resize_mode, RESIZE_MODES)


def _shortest(picture: Image.Image, size: int, resample: Image.Resampling) -> Image.Image:
    width, height = picture.size
    new = (max(size, int(size * width / height)), max(size, int(size * height / width)))
    left, top = (round((side - size) / 2.0) for side in new)
    if new[0] * new[1] > _MAX_RESIZED_PIXELS:
        x, y = width / new[0], height / new[1]
        box = (left * x, top * y, min((left + size) * x, width), min((top + size) * y, height))
        return picture.resize((size, size), resample, box=box)
    return picture.resize(new, resample).crop((left, top, left + size, top + size))


def _longest(picture: Image.Image, size: int, resample: Image.Resampling) -> Image.Image:
    ratio = max(picture.width / size, picture.height / size)
    width, height = (min(size, max(1, round(side / ratio))) for side in picture.size)
    resized = picture.resize((width, height), resample)
    square = Image.new("RGB", (size, size))
    square.paste(resized, ((size - width) // 2, (size - height) // 2))
    return square
