"""Plain test-time augmentation: means over the views, of probabilities, logits or features, mixed with the clean view.

All views count unless ``mean_fraction`` says how many: int(V·fraction), at least one, the most confident under the
initial prompt, which are the ones that a step sees too. ``clean_weight``, w below, is what the clean view counts for
beside that mean; by default it is one of the views.
"""

from __future__ import annotations

from torch import Tensor

from otpt.objectives.entropy import select_fraction


def mean_probability(
    probabilities: Tensor, zero_shot: Tensor, mean_fraction: float = 1.0, clean_weight: float = 0.0
) -> Tensor:
    """w·softmax(ℓ_0) + (1 − w)·(1/k) Σ_i softmax(ℓ_i): (V, C) → (C,)."""
    mean = probabilities[select_fraction(zero_shot, mean_fraction)].mean(dim=0)
    return clean_weight * probabilities[0] + (1 - clean_weight) * mean


def mean_logit(logits: Tensor, zero_shot: Tensor, mean_fraction: float = 1.0, clean_weight: float = 0.0) -> Tensor:
    """softmax(w·ℓ_0 + (1 − w)·(1/k) Σ_i ℓ_i): (V, C) → (C,)."""
    mean = logits[select_fraction(zero_shot, mean_fraction)].mean(dim=0)
    return (clean_weight * logits[0] + (1 - clean_weight) * mean).softmax(dim=-1)


def mean_feature(
    features: Tensor,
    zero_shot: Tensor,
    adapted_text_features: Tensor,
    logit_scale: float,
    mean_fraction: float = 1.0,
    clean_weight: float = 0.0,
) -> Tensor:
    """softmax(scale·m·Eᵀ), m the unit vector along w·v_0 + (1 − w)·s/‖s‖, s = Σ_i v_i: (V, D) → (C,); w < 1."""
    total = features[select_fraction(zero_shot, mean_fraction)].sum(dim=0)
    # times ‖s‖/(1 − w), which changes no direction: with w = 0 nothing is rounded a second time
    total = total + clean_weight / (1 - clean_weight) * total.norm() * features[0]
    return (logit_scale * (total / total.norm()) @ adapted_text_features.mT).softmax(dim=-1)
