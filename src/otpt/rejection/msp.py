"""Maximum softmax probability (Hendrycks and Gimpel, 2017)."""

from __future__ import annotations

from torch import Tensor


def msp(probabilities: Tensor) -> Tensor:
    """1 − max_c p_c: (…, C) → (…)."""
    return 1 - probabilities.amax(dim=-1)
