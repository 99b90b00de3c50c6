"""Keeping the logits within a reference range while tuning (Robust-adapt: Penalty and ZS).

The range [lo, hi] is the least and the greatest logit of a reference row. Two readings exist of which row that is:
the released test-time code takes the most confident selected view under the prompt that is being tuned, so that the
range itself carries gradient; the paper speaks of the zero-shot logits of the picture, which are constants.
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


def rescaled_entropy(logits: Tensor, reference: Range) -> Tensor:
    """Entropy of the mean of rows rescaled to the range: (…, k, C) → (…).

    ℓ' = (ℓ − min ℓ)/(max ℓ − min ℓ)·(hi − lo) + lo for each row; the soft-max sees only the spread hi − lo.
    """
    lo, hi = (bound[..., None, None] for bound in reference)
    least, most = logits.amin(dim=-1, keepdim=True), logits.amax(dim=-1, keepdim=True)
    return entropy_of_mean((logits - least) / (most - least) * (hi - lo) + lo)
