"""MTA: the mode of the views' features, by mean shift with a weight for each view."""

from __future__ import annotations

import torch
from torch import Tensor

from otpt.objectives.fractions import fraction_of

ROUNDS, TOLERANCE = 5, 1e-6
"""Rounds of the outer loop, which always runs to its end, and of both inner ones, which stop at a smaller change."""


def mta(
    features: Tensor,
    probabilities: Tensor,
    adapted_text_features: Tensor,
    logit_scale: float,
    mta_neighbours: float = 0.3,
    mta_lambda_q: float = 4.0,
    mta_lambda_y: float = 0.2,
) -> Tensor:
    """softmax(scale·m·Eᵀ) of the mode m of the views' features: (V, D) → (C,). See :func:`mode`."""
    found, _ = mode(features, probabilities, bandwidths(features, mta_neighbours), mta_lambda_q, mta_lambda_y)
    return (logit_scale * found @ adapted_text_features.mT).softmax(dim=-1)


def bandwidths(features: Tensor, neighbours: float) -> Tensor:
    """h_i² = ½·mean of the int(f·(V−1)) smallest ‖v_i − v_j‖², j ≠ i: (V, D) → (V,).

    At least one neighbour. Views that are all alike have none; a least bandwidth keeps the kernel finite.
    """
    distances = (features[:, None] - features).square().sum(dim=-1).fill_diagonal_(torch.inf)
    count = fraction_of(len(features) - 1, neighbours)
    return distances.sort(dim=1).values[:, :count].mean(dim=1).div(2).clamp(min=torch.finfo(features.dtype).eps)


def mode(
    features: Tensor, probabilities: Tensor, bandwidth: Tensor, lambda_q: float, lambda_y: float
) -> tuple[Tensor, Tensor]:
    """The mode m (D,), of norm one, and the views' weights y (V,), of features (V, D) and predictions p (V, C).

    From m = v_0 and y = 1/V, five times:

        y ← softmax((K + λ_q·A·y)/λ_y)                           A_ij = p_i·p_j
        m ← Σ_i K_i y_i v_i / Σ_i K_i y_i, then made unit        K_i = exp(−‖v_i − m‖²/(2h_i²))

    each repeated up to five times, until it changes by less than 1e-6.
    """

    def kernel(centre: Tensor) -> Tensor:
        return (-(features - centre).square().sum(dim=1) / (2 * bandwidth)).exp()

    affinity = (probabilities @ probabilities.mT).to(features.dtype)
    centre, weights = features[0], torch.full_like(bandwidth, 1 / len(features))
    for _ in range(ROUNDS):
        near = kernel(centre)
        for _ in range(ROUNDS):
            before, weights = weights, ((near + lambda_q * affinity @ weights) / lambda_y).softmax(dim=0)
            if (weights - before).norm() < TOLERANCE:
                break
        for _ in range(ROUNDS):
            own = kernel(centre) * weights
            moved = own @ features  # its norm is divided out, and with it Σ K_i y_i
            before, centre = centre, moved / moved.norm()
            if (centre - before).norm() < TOLERANCE:
                break
    return centre, weights
