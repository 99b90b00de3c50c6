"""Opened pictures, and training pictures: in another order, cropped and flipped anew in each epoch."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from otpt.backbones import Preprocessing
from otpt.data import Dataset
from otpt.errors import OtptError
from otpt.views import ViewRecipe, make_views, open_with_digest
from otpt.views.draws import draw_view


def open_or_error(dataset: Dataset, index: int) -> tuple[Image.Image, str] | OtptError:
    """A picture with the digest of its content, or why it cannot be read."""
    try:
        return open_with_digest(dataset[index].source)
    except OtptError as error:
        return error


def shuffled(items: Sequence[int], seed: int, epoch: int) -> list[int]:
    """The items in the order of an epoch."""
    return random.Random(f"{seed} {epoch}").sample(list(items), len(items))


def augmented(
    picture: Image.Image,
    size: int,
    *,
    seed: int,
    picture_id: str,
    epoch: int,
    scale: tuple[float, float] = (0.08, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
) -> Tensor:
    """A random resized crop (bicubic), flipped with probability ½: (3, size, size) in [0, 1]."""
    width, height = picture.size
    draw = draw_view(seed, picture_id, epoch + 1, width=width, height=height, crop_scale=scale, crop_ratio=ratio)
    top, left, high, wide = draw.crop
    box = (left, top, left + wide, top + high)
    crop = picture.resize((size, size), Image.Resampling.BICUBIC, box=box)
    pixels = torch.from_numpy(np.array(crop, np.float32)).permute(2, 0, 1) / 255
    return pixels.flip(-1) if draw.flip else pixels


def unit_pixels(picture: Image.Image, size: int, *, resize_mode: str = "shortest") -> Tensor:
    """The clean view (bicubic) before normalisation: (3, size, size) in [0, 1]."""
    plain = Preprocessing(size, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0), resize_mode=resize_mode)
    return torch.from_numpy(make_views(picture, ViewRecipe(n_views=1), plain, seed=0, picture_id="")[0])


def normalised(pixels: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """(x − mean)/std of (…, 3, S, S)."""
    m, s = (torch.tensor(values, dtype=pixels.dtype, device=pixels.device)[:, None, None] for values in (mean, std))
    return (pixels - m) / s
