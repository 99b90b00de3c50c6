"""Plain test-time augmentation: means over the views, of probabilities, logits or features.

All views count unless ``mean_fraction`` says how many: int(V·fraction), at least one, the most confident under the
initial prompt, which are the ones that a step sees too.
"""

from __future__ import annotations

from torch import Tensor

from otpt.objectives.entropy import select_fraction


def mean_probability(probabilities: Tensor, zero_shot: Tensor, mean_fraction: float = 1.0) -> Tensor:
    """(1/k) Σ_i softmax(ℓ_i): (V, C) → (C,)."""
    return probabilities[select_fraction(zero_shot, mean_fraction)].mean(dim=0)


def mean_logit(logits: Tensor, zero_shot: Tensor, mean_fraction: float = 1.0) -> Tensor:
    """softmax((1/k) Σ_i ℓ_i): (V, C) → (C,)."""
    return logits[select_fraction(zero_shot, mean_fraction)].mean(dim=0).softmax(dim=-1)


def mean_feature(
    features: Tensor,
    zero_shot: Tensor,
    adapted_text_features: Tensor,
    logit_scale: float,
    mean_fraction: float = 1.0,
) -> Tensor:
    """softmax(scale·m·Eᵀ), m = (Σ_i v_i)/‖Σ_i v_i‖: (V, D) → (C,)."""
    total = features[select_fraction(zero_shot, mean_fraction)].sum(dim=0)
    return (logit_scale * (total / total.norm()) @ adapted_text_features.mT).softmax(dim=-1)
