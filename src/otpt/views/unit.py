"""The clean view as plain pixels in [0, 1], and its normalisation, for networks with their own normalisation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from otpt.views.clean import clean_image
from otpt.views.recipe import planar

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor


def unit_pixels(image: Image.Image, size: int, *, resize_mode: str = "shortest") -> Tensor:
    """The clean view (bicubic) before normalisation: (3, size, size) in [0, 1]."""
    import torch

    clean = clean_image(image, size, interpolation="bicubic", resize_mode=resize_mode)
    return torch.from_numpy(planar(clean).astype(np.float32) / 255)


def normalised(pixels: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """(x − mean)/std of (…, 3, S, S)."""
    m, s = (pixels.new_tensor(values)[:, None, None] for values in (mean, std))
    return (pixels - m) / s
