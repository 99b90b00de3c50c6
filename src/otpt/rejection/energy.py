"""Free energy of the logits (Liu et al., 2020)."""

from __future__ import annotations

from torch import Tensor


def energy(logits: Tensor) -> Tensor:
    """−log Σ_c exp ℓ_c: (…, C) → (…)."""
    return -logits.logsumexp(dim=-1)
