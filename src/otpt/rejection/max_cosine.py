"""The largest cosine with a text feature; the largest logit, scale·cosine + bias, puts images in the same order."""

from __future__ import annotations

from torch import Tensor


def max_cosine(cosines: Tensor) -> Tensor:
    """1 − max_c cos_c: (…, C) → (…)."""
    return 1 - cosines.amax(dim=-1)
