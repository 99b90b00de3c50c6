"""Negative labels (NegLabel, Jiang et al., 2024): do the classes or other words explain the image?"""

from __future__ import annotations

import torch
from torch import Tensor

GROUPS = 5
"""Groups that the negative words are dealt into; the score is averaged over them, so that no single word decides."""

KEPT = 0.9
"""Fraction of the words that is kept: those that are furthest from the classes. Synonyms of classes must go."""


def neg_label(logits: Tensor, word_logits: Tensor) -> Tensor:
    """Mean over groups g of Σ_{j ∈ g} exp ν_j / (Σ_c exp ℓ_c + Σ_{j ∈ g} exp ν_j): (…, C), (…, M) → (…).

    ν are the logits of the kept words, of which every fifth is in the same group.
    """
    classes, kept = logits.logsumexp(dim=-1), word_logits[..., : max(GROUPS, round(KEPT * word_logits.shape[-1]))]
    dealt = [kept[..., g::GROUPS].logsumexp(dim=-1) for g in range(GROUPS)]
    return torch.stack([torch.sigmoid(each - classes) for each in dealt]).mean(dim=0)
