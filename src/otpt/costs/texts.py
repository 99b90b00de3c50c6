"""The tokens of class names, by CLIP's own tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from otpt.costs.language import Texts

CONTEXT = "a photo of a"
_TYPICAL = (4, 5)
"""Tokens of a class that is not known: a name of two or three, full stop, end token; in turns."""
_END = -1  # in place of the id


@lru_cache(maxsize=64)
def texts_of(names: Sequence[str], context: str = CONTEXT) -> Texts:
    """The tokens of "{context} {name}." for each class."""
    from otpt.backbones.clip_tokenizer import ClipTokenizer

    tokenizer = ClipTokenizer()
    words = len(tokenizer.encode(context))
    # the full stop and the tokenizer's own end come after the name
    own = [(*tokenizer.encode(f"{name.replace('_', ' ')}."), _END) for name in names]
    return Texts(1 + words, tuple(map(len, own)), words)


def typical_texts(classes: int) -> Texts:
    """So many classes of unknown names."""
    return Texts(5, tuple(_TYPICAL[i % len(_TYPICAL)] for i in range(classes)))
