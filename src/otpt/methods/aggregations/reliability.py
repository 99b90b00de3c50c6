"""R-TPT's ensemble: views count by how near their neighbours are."""

from __future__ import annotations

import torch
from torch import Tensor


def reliability(
    features: Tensor, logits: Tensor, reliable_neighbours: float = 20, reliable_temperature: float = 0.01
) -> Tensor:
    """softmax(Σ_i w_i·ℓ_i), w of :func:`reliability_weights`: (V, D) and (V, C) → (C,). Logits are averaged."""
    weights = reliability_weights(features, int(reliable_neighbours), reliable_temperature)
    return (weights @ logits.to(weights.dtype)).softmax(dim=-1)


def reliability_weights(features: Tensor, neighbours: int, temperature: float) -> Tensor:
    """w = softmax(r/T), r_i the mean of the ``neighbours`` largest v_i·v_j, j ≠ i: (V, D) → (V,)."""
    cosines = (features @ features.mT).fill_diagonal_(-torch.inf)
    nearest = cosines.sort(dim=1, descending=True).values[:, : min(neighbours, len(features) - 1)]
    return (nearest.mean(dim=1) / temperature).softmax(dim=0)
