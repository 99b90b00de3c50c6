"""The clean view as plain pixels in [0, 1], and its normalisation, for networks with their own normalisation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from otpt.views.recipe import ViewRecipe, make_views

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor


@dataclass(frozen=True)
class _Plain:
    size: int
    resize_mode: str
    mean: tuple[float, float, float] = (0.0, 0.0, 0.0)
    std: tuple[float, float, float] = (1.0, 1.0, 1.0)
    interpolation: str = "bicubic"


def unit_pixels(image: Image.Image, size: int, *, resize_mode: str = "shortest") -> Tensor:
    """The clean view (bicubic) before normalisation: (3, size, size) in [0, 1]."""
    import torch

    plain = _Plain(size, resize_mode)
    return torch.from_numpy(make_views(image, ViewRecipe(n_views=1), plain, seed=0, image_id="")[0])


def normalised(pixels: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """(x − mean)/std of (…, 3, S, S)."""
    m, s = (pixels.new_tensor(values)[:, None, None] for values in (mean, std))
    return (pixels - m) / s
