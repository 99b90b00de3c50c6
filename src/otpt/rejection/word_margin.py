"""The best class against the best of a thousand words that are none of the classes."""

from __future__ import annotations

from torch import Tensor

BEST = 10
"""Words that stand for what else the image may show: several, since one may mean the same as a class."""


def word_margin(cosines: Tensor, word_cosines: Tensor) -> Tensor:
    """Mean of the ten largest cosines with words − max_c cos_c: (…, C), (…, M) → (…)."""
    return word_cosines.topk(BEST, dim=-1).values.mean(dim=-1) - cosines.amax(dim=-1)
