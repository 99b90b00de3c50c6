"""Aggregations: functions that combine the predictions of the views of an image."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from otpt.objectives import clean_weight as se_weight
from otpt.objectives import fraction_of, select_fraction, strong_views, view_entropies
from otpt.registry import NONE, Count, Fraction, NonNegative, Positive, aggregation

FROM_FEATURES = {"calibrate": (NONE,)}
"""Aggregations that compute their own logits cannot be combined with a calibrator."""
ROUNDS, TOLERANCE = 5, 1e-6
"""MTA: number of iterations of each loop, and the tolerance at which the inner loops stop early."""

CleanWeight = Annotated[float, Field(ge=0, lt=1)]


# ---- means over the views -------------------------------------------------------------------------------------------
# mean_fraction selects the int(V·fraction) most confident views under the initial prompt, at least one, as a step does.
# clean_weight, w below, is an extra weight of the clean view.

_TTA = "Krizhevsky et al., NeurIPS 2012"


@aggregation(source=_TTA)
def mean_probability(
    probabilities: Tensor, zero_shot: Tensor, mean_fraction: Fraction = 1.0, clean_weight: CleanWeight = 0.0
) -> Tensor:
    """Plain test-time augmentation: the mean prediction over the views.

    w·softmax(ℓ_0) + (1 − w)·(1/k) Σ_i softmax(ℓ_i): (V, C) → (C,).
    """
    mean = probabilities[select_fraction(zero_shot, mean_fraction)].mean(dim=0)
    return clean_weight * probabilities[0] + (1 - clean_weight) * mean


@aggregation(source=_TTA)
def mean_logit(
    logits: Tensor, zero_shot: Tensor, mean_fraction: Fraction = 1.0, clean_weight: CleanWeight = 0.0
) -> Tensor:
    """Plain test-time augmentation: the softmax of the mean logits over the views.

    softmax(w·ℓ_0 + (1 − w)·(1/k) Σ_i ℓ_i): (V, C) → (C,).
    """
    mean = logits[select_fraction(zero_shot, mean_fraction)].mean(dim=0)
    return (clean_weight * logits[0] + (1 - clean_weight) * mean).softmax(dim=-1)


@aggregation(source=_TTA, only=FROM_FEATURES)
def mean_feature(
    features: Tensor,
    zero_shot: Tensor,
    adapted_text_features: Tensor,
    logit_scale: float,
    mean_fraction: Fraction = 1.0,
    clean_weight: CleanWeight = 0.0,
) -> Tensor:
    """Plain test-time augmentation: the mean of the views' unit features, normalised, against the texts.

    softmax(scale·m·Eᵀ), m the unit vector along w·v_0 + (1 − w)·s/‖s‖, s = Σ_i v_i: (V, D) → (C,).
    """
    total = features[select_fraction(zero_shot, mean_fraction)].sum(dim=0)
    # times ‖s‖/(1 − w), which changes no direction: with w = 0 nothing is rounded a second time
    total = total + clean_weight / (1 - clean_weight) * total.norm() * features[0]
    return (logit_scale * (total / total.norm()) @ adapted_text_features.mT).softmax(dim=-1)


# ---- the clean view mixed with the strong views, Ω ------------------------------------------------------------------


@aggregation(source="Liang et al., 2026 (CoTS)")
def weak_strong(
    probabilities: Tensor, uncalibrated: Tensor, mean_cosine: float, strong_ratio: Fraction = 0.1
) -> tuple[Tensor, dict[str, float]]:
    """The clean view and the mean of the strong views, mixed by the mean cosine of the text features.

    α·p_0 + (1 − α)·mean_Ω p_i, (V, C) → (C,), with α the mean cosine. Ω is chosen by the logits before calibration:
    dividing by a temperature changes the order of the entropies, and CoTS takes the same Ω.
    """
    alpha = min(max(mean_cosine, 0.0), 1.0)
    return _mixed(probabilities, strong_views(uncalibrated, strong_ratio), alpha), {"alpha": alpha}


@aggregation(source="Jiang et al., ICML 2026 (USE)")
def se(
    probabilities: Tensor, zero_shot: Tensor, se_power: Positive = 1.0, strong_ratio: Fraction = 0.1
) -> tuple[Tensor, dict[str, float]]:
    """SE: the clean view and the mean of the strong views, the clean one weighted by its relative confidence.

    α·p_0 + (1 − α)·mean_Ω p_i, (V, C) → (C,), with α of :func:`otpt.objectives.clean_weight`. Ω and α are those of the
    zero-shot logits, before and after a step. ``se_power`` is 1 for the linear form, 2 for the quadratic one.
    """
    alpha = float(se_weight(zero_shot, se_power))
    return _mixed(probabilities, strong_views(zero_shot, strong_ratio), alpha), {"alpha": alpha}


def _mixed(probabilities: Tensor, chosen: Tensor, alpha: float) -> Tensor:
    return alpha * probabilities[0] + (1 - alpha) * probabilities[chosen].mean(dim=0)


# ---- votes, modes and reliability -----------------------------------------------------------------------------------


@aggregation(source="Farina et al., NeurIPS 2024")
def zero(logits: Tensor, logit_scale: float, vote_ratio: Fraction = 0.3, vote_temperature: NonNegative = 0.0) -> Tensor:
    """ZERO: the vote of the 30 % most confident views.

    q/Σq with q = Σ_{i∈S} softmax(cos(v_i, e_·)/T), S the int(V·ratio) most confident views: (V, C) → (C,). T = 0 is a
    vote: each view of S counts for its class. Where classes tie, the first of the remaining views, in order of entropy,
    whose class is among them decides: that class gets one vote more.

    Args:
        vote_ratio: fraction of the views that vote, rounded down (at least one).
        vote_temperature: T, on the scale of cosines; 2⁻¹⁰ gives the numbers of the released code.
    """
    order = view_entropies(logits).argsort(stable=True)
    count = fraction_of(len(logits), vote_ratio)
    voters, remaining = logits[order[:count]], logits[order[count:]]
    if vote_temperature == 0:
        votes = torch.zeros_like(voters[0]).index_add(0, voters.argmax(dim=1), torch.ones_like(voters[:, 0]))
    else:
        votes = (voters / (logit_scale * vote_temperature)).softmax(dim=1).sum(dim=0)
    tied = votes == votes.max()
    if int(tied.sum()) > 1:
        votes[_tie_break(tied, remaining if len(remaining) else voters)] += 1
    return votes / votes.sum()


def _tie_break(tied: Tensor, views: Tensor) -> Tensor:
    """Return the class of the first view (n, C) that is ``tied`` (C,), or else the first view's best tied class."""
    labels = views.argmax(dim=1)
    candidates = labels[tied[labels]]
    return candidates[0] if len(candidates) else views[0].masked_fill(~tied, -torch.inf).argmax()


@aggregation(source="Zanella and Ben Ayed, CVPR 2024", only=FROM_FEATURES)
def mta(
    features: Tensor,
    probabilities: Tensor,
    adapted_text_features: Tensor,
    logit_scale: float,
    mta_neighbours: Fraction = 0.3,
    mta_lambda_q: NonNegative = 4.0,
    mta_lambda_y: Positive = 0.2,
) -> Tensor:
    """MTA: the mode of the views' features, by mean shift with a weight for each view.

    softmax(scale·m·Eᵀ) of the :func:`mode` m: (V, D) → (C,).

    Args:
        mta_neighbours: fraction of the other views that a view's bandwidth is computed from.
        mta_lambda_q: how much views of the same prediction support each other.
        mta_lambda_y: how even the views' weights are.
    """
    centre, _ = mode(features, probabilities, bandwidths(features, mta_neighbours), mta_lambda_q, mta_lambda_y)
    return (logit_scale * centre @ adapted_text_features.mT).softmax(dim=-1)


def bandwidths(features: Tensor, neighbours: float) -> Tensor:
    """Compute h_i² = ½·mean of the int(f·(V−1)) smallest ‖v_i − v_j‖², j ≠ i: (V, D) → (V,).

    At least one neighbour is used. A lower bound keeps the kernel finite for identical views.
    """
    distances = (features[:, None] - features).square().sum(dim=-1).fill_diagonal_(torch.inf)
    count = fraction_of(len(features) - 1, neighbours)
    return distances.sort(dim=1).values[:, :count].mean(dim=1).div(2).clamp(min=torch.finfo(features.dtype).eps)


def mode(
    features: Tensor, probabilities: Tensor, bandwidth: Tensor, lambda_q: float, lambda_y: float
) -> tuple[Tensor, Tensor]:
    """Return the unit mode m (D,) and the view weights y (V,) from features (V, D) and predictions p (V, C).

    From m = v_0 and y = 1/V, five times:

        y ← softmax((K + λ_q·A·y)/λ_y)                           A_ij = p_i·p_j
        m ← Σ_i K_i y_i v_i / Σ_i K_i y_i, then normalised       K_i = exp(−‖v_i − m‖²/(2h_i²))

    where each update is iterated up to five times, until the change is below 1e-6.
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
            kernel_weights = kernel(centre) * weights
            moved = kernel_weights @ features  # normalising also removes the factor Σ K_i y_i
            before, centre = centre, moved / moved.norm()
            if (centre - before).norm() < TOLERANCE:
                break
    return centre, weights


@aggregation(source="Sheng et al., CVPR 2025")
def reliability(
    features: Tensor, logits: Tensor, reliable_neighbours: Count = 20, reliable_temperature: Positive = 0.01
) -> Tensor:
    """R-TPT's ensemble: the mean of the views' logits, weighted by how near a view's neighbours are.

    softmax(Σ_i w_i·ℓ_i), w of :func:`reliability_weights`: (V, D) and (V, C) → (C,).
    """
    weights = reliability_weights(features, reliable_neighbours, reliable_temperature)
    return (weights @ logits.to(weights.dtype)).softmax(dim=-1)


def reliability_weights(features: Tensor, neighbours: int, temperature: float) -> Tensor:
    """Compute softmax(r/T), r_i the mean of the ``neighbours`` largest v_i·v_j, j ≠ i: (V, D) → (V,)."""
    cosines = (features @ features.mT).fill_diagonal_(-torch.inf)
    nearest = cosines.sort(dim=1, descending=True).values[:, : min(neighbours, len(features) - 1)]
    return (nearest.mean(dim=1) / temperature).softmax(dim=0)
