"""Entropies of an image's views, views selected by them, and the objectives that minimise them."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from otpt.registry import objective

TTL_OFFSET = 0.4
"""Entropy in nats at which a view has the weight 1 in TTL's loss."""
SPREAD = 0.4
"""Factor of the clean view's weight in SE: with power 1 it stays within 0.5 ± 0.2."""


def fraction_of(views: int, fraction: float) -> int:
    """int(V·fraction), at least one: 6 of 64 at 10 %."""
    return max(int(views * fraction), 1)


def view_entropies(logits: Tensor) -> Tensor:
    """H_v = −Σ_c p_vc log p_vc for each view: (…, V, C) → (…, V)."""
    log_p = logits.log_softmax(dim=-1)
    return -(log_p.exp() * log_p).sum(dim=-1)


def select_confident(logits: Tensor, count: int) -> Tensor:
    """Indices of the ``count`` views of smallest entropy, ascending: (…, V, C) → (…, count).

    The first index is the most confident view. Ties keep the order of the views.
    """
    return view_entropies(logits).argsort(dim=-1, stable=True)[..., :count]


def select_fraction(logits: Tensor, fraction: float) -> Tensor:
    """Indices of the int(V·fraction) most confident views, at least one: (…, V, C) → (…, n)."""
    return select_confident(logits, fraction_of(logits.shape[-2], fraction))


def select_strong(logits: Tensor, count: int) -> Tensor:
    """The clean view, then the most confident augmented ones: ``count`` in all, (…, V, C) → (…, count)."""
    strong = 1 + select_confident(logits[..., 1:, :], count - 1)
    return torch.cat([torch.zeros_like(strong[..., :1]), strong], dim=-1)


SELECTED_BY = {"confident": select_confident, "strong": select_strong}
"""Rules that select the views of a step: functions of logits (…, V, C) and a number of views."""


def strong_views(logits: Tensor, strong_ratio: float = 0.1) -> Tensor:
    """Ω, the int((V − 1)·ratio) augmented views of smallest entropy, at least one: (…, V, C) → (…, n) indices.

    The clean view, which comes first, is never among them. Ties keep the order of the views.
    """
    return select_strong(logits, fraction_of(logits.shape[-2] - 1, strong_ratio) + 1)[..., 1:]


def clean_weight(all_views: Tensor, se_power: float = 1.0) -> Tensor:
    """α = ½ + 0.4·sgn(r − ½)·|r − ½|^power, the clean view's weight in SE: (…, V, C) → (…).

    r is the fraction of the augmented views whose entropy is above the clean view's: the more confident the clean view
    is in comparison, the larger its weight.
    """
    entropies = view_entropies(all_views)
    centred = (entropies[..., 1:] > entropies[..., :1]).to(entropies.dtype).mean(dim=-1) - 0.5
    return 0.5 + SPREAD * centred.sign() * centred.abs().pow(se_power)


@objective(name="entropy", source="Shu et al., NeurIPS 2022 (TPT)")
def entropy_of_mean(logits: Tensor) -> Tensor:
    """Entropy of the mean prediction of the selected views, L_TPT = −Σ_c p̄_c log p̄_c.

    p̄ is the mean of the k views' softmax: (…, k, C) → (…). It is the entropy of the mean, not the mean of the
    entropies: views that are confident in different classes give a large value.
    """
    views = logits.shape[-2]
    log_mean = logits.log_softmax(dim=-1).logsumexp(dim=-2) - math.log(views)
    # A class whose probability underflows would give 0 · (−inf); its limit is 0.
    log_mean = log_mean.clamp(min=torch.finfo(logits.dtype).min)
    return -(log_mean.exp() * log_mean).sum(dim=-1)


@objective(name="pointwise-entropy", source="Sheng et al., CVPR 2025 (R-TPT)")
def mean_of_entropies(logits: Tensor) -> Tensor:
    """Mean of the selected views' own entropies, (1/k) Σ_v H_v.

    (…, k, C) → (…).
    """
    return view_entropies(logits).mean(dim=-1)


@objective(name="weighted-entropy", source="Imam et al., WACV 2025 (TTL)")
def weighted_entropies(logits: Tensor) -> Tensor:
    """Mean of the views' entropies, confident views weighted more: (1/k) Σ_v exp(0.4 − H_v)·H_v.

    (…, k, C) → (…). No gradient flows through the weights exp(0.4 − H_v). TTL takes all views: ``selection_ratio=1``.
    """
    entropies = view_entropies(logits)
    return ((TTL_OFFSET - entropies.detach()).exp() * entropies).mean(dim=-1)
