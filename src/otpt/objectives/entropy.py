"""Entropy of the mean prediction over the most confident views (TPT)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from otpt.objectives.fractions import fraction_of

TTL_OFFSET = 0.4
"""Entropy in nats at which a view has the weight 1 in TTL's loss."""


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


def entropy_of_mean(logits: Tensor) -> Tensor:
    """L_TPT = −Σ_c p̄_c log p̄_c with p̄ the mean of the k views' softmax: (…, k, C) → (…).

    It is the entropy of the mean, not the mean of the entropies: views that are sure of different classes
    give a large value.
    """
    views = logits.shape[-2]
    log_mean = logits.log_softmax(dim=-1).logsumexp(dim=-2) - math.log(views)
    # A class whose probability underflows would give 0 · (−inf); its limit is 0.
    log_mean = log_mean.clamp(min=torch.finfo(logits.dtype).min)
    return -(log_mean.exp() * log_mean).sum(dim=-1)


def mean_of_entropies(logits: Tensor) -> Tensor:
    """(1/k) Σ_v H_v, each view's own entropy (R-TPT): (…, k, C) → (…)."""
    return view_entropies(logits).mean(dim=-1)


def weighted_entropies(logits: Tensor) -> Tensor:
    """(1/k) Σ_v exp(0.4 − H_v)·H_v, which trusts confident views more (TTL): (…, k, C) → (…).

    No gradient flows through the weights exp(0.4 − H_v).
    """
    entropies = view_entropies(logits)
    return ((TTL_OFFSET - entropies.detach()).exp() * entropies).mean(dim=-1)


def select_strong(logits: Tensor, count: int) -> Tensor:
    """The clean view, then the most confident augmented ones: ``count`` in all, (…, V, C) → (…, count)."""
    strong = 1 + select_confident(logits[..., 1:, :], count - 1)
    return torch.cat([torch.zeros_like(strong[..., :1]), strong], dim=-1)


SELECTED_BY = {"confident": select_confident, "strong": select_strong}
"""Which views a step sees, by the rule's name: functions of logits (…, V, C) and a number of views."""
