"""Training images: in another order, cropped and flipped anew in each epoch."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from otpt.views.draws import draw_view


def shuffled(items: Sequence[int], seed: int, epoch: int) -> list[int]:
    """The items in the order of an epoch."""
    return random.Random(f"{seed} {epoch}").sample(list(items), len(items))


def augmented(
    image: Image.Image,
    size: int,
    *,
    seed: int,
    image_id: str,
    epoch: int,
    scale: tuple[float, float] = (0.08, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
) -> Tensor:
    """A random resized crop (bicubic), flipped with probability ½: (3, size, size) in [0, 1]."""
    width, height = image.size
    draw = draw_view(seed, image_id, epoch + 1, width=width, height=height, crop_scale=scale, crop_ratio=ratio)
    top, left, high, wide = draw.crop
    box = (left, top, left + wide, top + high)
    crop = image.resize((size, size), Image.Resampling.BICUBIC, box=box)
    pixels = torch.from_numpy(np.array(crop, np.float32)).permute(2, 0, 1) / 255
    return pixels.flip(-1) if draw.flip else pixels
