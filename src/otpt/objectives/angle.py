"""Angle to the nearest other class (A-TPT)."""

from __future__ import annotations

import torch
from torch import Tensor

CLIP = 0.99999
"""Cosines are clipped at ±CLIP, where the slope of arccos is still finite."""


def nearest_angle(text_features: Tensor) -> Tensor:
    """R_A = (1/C) Σ_c arccos( clip( max_{j≠c} e_c·e_j, ±0.99999 ) ), in radians, for unit rows: (…, C, D) → (…).

    Each class has its own nearest class, and that one alone gets a gradient. Where the cosine is clipped, as between
    two classes of one name, the gradient is 0.
    """
    cosines = text_features @ text_features.mT
    itself = torch.eye(cosines.shape[-1], dtype=torch.bool, device=cosines.device)
    nearest = cosines.masked_fill(itself, -torch.inf).max(dim=-1).values  # amax would share the gradient among ties
    return nearest.clamp(-CLIP, CLIP).arccos().mean(dim=-1)
