"""Huber loss of the cosines between classes (SoC)."""

from __future__ import annotations

import torch
from torch import Tensor


def huber_cosine(text_features: Tensor, huber_delta: float = 0.5) -> Tensor:
    """R_S = (1/(C(C−1))) Σ_{i≠j} ρ(e_i·e_j) for unit rows: (…, C, D) → (…).

    ρ(s) = s²/2 for s ≤ δ, and δ·(s − δ/2) above, so that no pair pulls harder than δ. If all cosines exceed δ it is
    δ·(mean cosine − δ/2): its direction is that of the mean cosine.
    """
    cosines = text_features @ text_features.mT
    classes = cosines.shape[-1]
    loss = torch.where(cosines <= huber_delta, cosines.square() / 2, huber_delta * (cosines - huber_delta / 2))
    itself = torch.eye(classes, dtype=torch.bool, device=cosines.device)
    return loss.masked_fill(itself, 0).sum(dim=(-2, -1)) / (classes * (classes - 1))
