"""An image for any seed."""

from __future__ import annotations

import numpy as np
from PIL import Image


def image(seed: int) -> Image.Image:
    """Blobs of colour, 48×40."""
    small = np.random.default_rng(seed).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    return Image.fromarray(small).resize((48, 40), Image.Resampling.BICUBIC)


def turned(picture: Image.Image, orientation: int = 6) -> Image.Image:
    """A picture with the note of a camera that it lies on its side."""
    picture.getexif()[0x0112] = orientation
    return picture
