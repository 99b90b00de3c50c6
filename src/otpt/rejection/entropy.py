"""Entropy of the probabilities."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def entropy(probabilities: Tensor) -> Tensor:
    """−Σ_c p_c log p_c / log C, between 0 and 1: (…, C) → (…)."""
    return torch.special.entr(probabilities).sum(dim=-1) / math.log(probabilities.shape[-1])
