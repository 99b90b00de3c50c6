"""The negative words: common English nouns for things that images show."""

from __future__ import annotations

from importlib import resources

from torch import Tensor

_NEAR = 0.95
"""Quantile of a word's cosines with the classes that counts as its nearness to them: one odd class does not decide."""


def negative_words() -> list[str]:
    """All words, in alphabetical order."""
    text = resources.files("otpt.rejection").joinpath("words.txt").read_text(encoding="utf-8")
    return text.split("\n")[:-1]


def furthest_first(words: Tensor, classes: Tensor) -> Tensor:
    """Indices (W,) of the words' text features (W, D) by their nearness to the classes' (C, D), the furthest first."""
    return (words @ classes.mT).double().quantile(_NEAR, dim=-1).argsort(stable=True)
