"""Spread of texts with attributes, between classes and within them (TCA).

Texts are grouped by class: (…, C·A, D) with A texts "a photo of a {attribute} {name}." of a class in a row.
m_c = (1/A) Σ_a e_ca, not normalised again.
"""

from __future__ import annotations

from torch import Tensor

from otpt.objectives.dispersion import text_dispersion


def attribute_inter(text_features: Tensor, attributes: int) -> Tensor:
    """(1/C) Σ_c ‖m_c − m̄‖₂ with m̄ = (1/C) Σ_c m_c: (…, C·A, D) → (…).

    TCA *maximises* it. With A = 1 it is C-TPT's dispersion.
    """
    return text_dispersion(_by_class(text_features, attributes).mean(dim=-2))


def attribute_intra(text_features: Tensor, attributes: int) -> Tensor:
    """(1/C) Σ_c (1/A) Σ_a ‖e_ca − m_c‖₂, minimised; 0 with A = 1: (…, C·A, D) → (…)."""
    return text_dispersion(_by_class(text_features, attributes)).mean(dim=-1)


def _by_class(text_features: Tensor, attributes: int) -> Tensor:
    """(…, C·A, D) → (…, C, A, D)."""
    return text_features.unflatten(-2, (-1, attributes))
