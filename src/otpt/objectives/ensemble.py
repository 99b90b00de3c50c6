"""The clean view together with the most confident augmented ones: Ω, the weights of SE, and what USE minimises."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from otpt.objectives.entropy import select_strong, view_entropies
from otpt.objectives.fractions import fraction_of

SPREAD = 0.4
"""How far the clean view's weight may move from one half: ±0.2 with power 1."""


def strong_views(logits: Tensor, strong_ratio: float = 0.1) -> Tensor:
    """Ω, the int((V − 1)·ratio) augmented views of smallest entropy, at least one: (…, V, C) → (…, n) indices.

    The clean view, which comes first, is never among them. Ties keep the order of the views.
    """
    return select_strong(logits, fraction_of(logits.shape[-2] - 1, strong_ratio) + 1)[..., 1:]


def clean_weight(all_views: Tensor, se_power: float = 1.0) -> Tensor:
    """α = ½ + 0.4·sgn(r − ½)·|r − ½|^power, the clean view's weight in SE: (…, V, C) → (…).

    r is the fraction of the augmented views whose entropy is above the clean view's: the surer the clean view is in
    comparison, the more it counts.
    """
    entropies = view_entropies(all_views)
    centred = (entropies[..., 1:] > entropies[..., :1]).to(entropies.dtype).mean(dim=-1) - 0.5
    return 0.5 + SPREAD * centred.sign() * centred.abs().pow(se_power)


def ensemble_cross_entropy(logits: Tensor, zero_shot: Tensor, all_views: Tensor, se_power: float = 1.0) -> Tensor:
    """USE's loss −Σ_c p̃_c log q_c: logits and zero_shot (…, k, C), all_views (…, V, C) → (…).

    The k views are the clean one, then Ω. p̃ is the mean of their softmax, with gradient; q = α·p_0 + (1 − α)·mean_Ω p_i
    is SE's mixture under the initial prompt, without.
    """
    p = logits.softmax(dim=-1).mean(dim=-2)
    log_p = zero_shot.log_softmax(dim=-1)
    log_strong = log_p[..., 1:, :].logsumexp(dim=-2) - math.log(log_p.shape[-2] - 1)
    alpha = clean_weight(all_views, se_power)[..., None]
    log_q = torch.logaddexp(alpha.log() + log_p[..., 0, :], (1 - alpha).log() + log_strong)
    return -(p * log_q).sum(dim=-1)
