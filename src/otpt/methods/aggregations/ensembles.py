"""Aggregations that mix the clean view with the most confident augmented ones, Ω (the strong views)."""

from __future__ import annotations

from torch import Tensor

from otpt.objectives.ensemble import clean_weight, strong_views


def weak_strong(
    probabilities: Tensor, uncalibrated: Tensor, mean_cosine: float, strong_ratio: float = 0.1
) -> tuple[Tensor, dict[str, float]]:
    """α·p_0 + (1 − α)·mean_Ω p_i of an image's views, (V, C) → (C,), with α the mean cosine of the text features.

    Ω is chosen by the logits before calibration: dividing by a temperature changes the order of the entropies, and CoTS
    takes the same Ω.
    """
    alpha = min(max(mean_cosine, 0.0), 1.0)
    return _mixed(probabilities, strong_views(uncalibrated, strong_ratio), alpha), {"alpha": alpha}


def se(
    probabilities: Tensor, zero_shot: Tensor, se_power: float = 1.0, strong_ratio: float = 0.1
) -> tuple[Tensor, dict[str, float]]:
    """α·p_0 + (1 − α)·mean_Ω p_i of an image's views, (V, C) → (C,), with α the image's own (:func:`clean_weight`).

    Ω and α are those of the zero-shot logits, before and after a step.
    """
    alpha = float(clean_weight(zero_shot, se_power))
    return _mixed(probabilities, strong_views(zero_shot, strong_ratio), alpha), {"alpha": alpha}


def _mixed(probabilities: Tensor, chosen: Tensor, alpha: float) -> Tensor:
    return alpha * probabilities[0] + (1 - alpha) * probabilities[chosen].mean(dim=0)
