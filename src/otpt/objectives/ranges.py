"""Keeping the logits within a reference range while tuning (Robust-adapt: Penalty and ZS).

The range [lo, hi] is the least and the greatest logit of a reference row. Two readings exist of which row that is:
the released test-time code takes the most confident selected view under the prompt that is being tuned, so that the
range itself carries gradient; the paper speaks of the zero-shot logits of the image, which are constants.
"""

from __future__ import annotations

from torch import Tensor

from otpt.objectives.entropy import entropy_of_mean

Range = tuple[Tensor, Tensor]


def logit_range(row: Tensor) -> Range:
    """(lo, hi) of reference logits: (…, C) → two of (…)."""
    return row.amin(dim=-1), row.amax(dim=-1)


def range_penalty(logits: Tensor, reference: Range) -> Tensor:
    """mean relu(ℓ − hi) + mean relu(lo − ℓ) over the k×C selected logits: (…, k, C) → (…)."""
    lo, hi = (bound[..., None, None] for bound in reference)
    return ((logits - hi).relu() + (lo - logits).relu()).mean(dim=(-2, -1))


def rescale(logits: Tensor, lo: Tensor, hi: Tensor) -> Tensor:
    """ℓ' = (ℓ − min ℓ)/(max ℓ − min ℓ)·(hi − lo) + lo along the last dimension; bounds (…, 1).

    Constant logits (0/0 in the formula) all become ``lo``: their softmax is uniform before and after.
    """
    least = logits.amin(dim=-1, keepdim=True)
    span = logits.amax(dim=-1, keepdim=True) - least
    return (logits - least) / span.masked_fill(span == 0, 1.0) * (hi - lo) + lo


def rescaled_entropy(logits: Tensor, reference: Range) -> Tensor:
    """Entropy of the mean of rows rescaled to the range: (…, k, C) → (…). The softmax sees only the spread hi − lo."""
    lo, hi = (bound[..., None, None] for bound in reference)
    return entropy_of_mean(rescale(logits, lo, hi))
