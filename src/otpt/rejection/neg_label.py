"""Negative labels (NegLabel, Jiang et al., 2024): do the classes or other words explain the image?"""

from __future__ import annotations

from importlib import resources

import torch
from torch import Tensor

GROUPS = 1
"""Groups that the negative words are dealt into; the score is averaged over them."""

KEPT = 0.5
"""Fraction of the words that is kept: those that are furthest from the classes."""

_NEAR = 0.95
"""Quantile of a word's cosines with the classes that counts as its nearness to them."""


def neg_label(logits: Tensor, negatives: Tensor, groups: int = GROUPS) -> Tensor:
    """Mean over groups g of Σ_{j ∈ g} exp ν_j / (Σ_c exp ℓ_c + Σ_{j ∈ g} exp ν_j): (…, C), (…, M) → (…).

    ν are the logits of the negative words, of which every ``groups``-th is in the same group.
    """
    classes = logits.logsumexp(dim=-1)
    dealt = [negatives[..., g::groups].logsumexp(dim=-1) for g in range(groups)]
    return torch.stack([torch.sigmoid(each - classes) for each in dealt]).mean(dim=0)


def negative_words() -> list[str]:
    """Common English nouns for things that images show."""
    text = resources.files("otpt.rejection").joinpath("words.txt").read_text(encoding="utf-8")
    return text.split("\n")[:-1]


def furthest(words: Tensor, classes: Tensor, kept: float = KEPT) -> Tensor:
    """Indices of the words whose texts (W, D) are furthest from those of the classes (C, D), furthest first.

    A word's nearness is the 95 % quantile of its cosines with the classes: one odd class does not decide.
    """
    nearness = (words @ classes.mT).double().quantile(_NEAR, dim=-1)
    return nearness.argsort(stable=True)[: max(1, round(kept * len(words)))]
