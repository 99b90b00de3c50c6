"""Maximum concept matching (Ming et al., 2022): the softmax of the cosines themselves, without the model's scale."""

from __future__ import annotations

from torch import Tensor


def mcm(cosines: Tensor) -> Tensor:
    """1 − max_c softmax(cos)_c, temperature 1: (…, C) → (…)."""
    return 1 - cosines.softmax(dim=-1).amax(dim=-1)
