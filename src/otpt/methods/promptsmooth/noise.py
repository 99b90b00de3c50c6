"""Gaussian copies of an image's clean view."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from otpt.views import PreprocessingLike
from otpt.views.draws import noise_generator


def noisy_copies(
    clean: Tensor,
    preprocessing: PreprocessingLike,
    sigma: float,
    count: int,
    *,
    seed: int,
    image_id: str,
    purpose: str = "tuning",
    batch: int = 100,
) -> Iterator[Tensor]:
    """``count`` copies of a normalised view (3, S, S), in batches (b, 3, S, S).

    The noise N(0, σ²) is added to pixels in [0, 1] without clamping, then normalised: x̂ + σ·ε/std. It depends on
    (seed, image_id, purpose) alone, whatever the size of the batches.
    """
    generator = noise_generator(purpose, seed=seed, image_id=image_id)
    spread = (sigma / torch.tensor(preprocessing.std, dtype=clean.dtype))[:, None, None]
    for start in range(0, count, batch):
        size = (min(batch, count - start), *clean.shape)
        noise = torch.from_numpy(generator.standard_normal(size, dtype=np.float32)).to(clean.dtype)
        yield clean + spread * noise
