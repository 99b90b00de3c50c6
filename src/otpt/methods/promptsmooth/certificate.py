"""From votes of noisy copies to a class that holds within a radius, or to an abstention.

A classifier that takes the majority over x + N(0, σ²I) keeps its class A for every perturbation of ℓ₂ norm below
R = σ·Φ⁻¹(p_A), where p_A > ½ bounds the probability of A from below (Cohen et al., ICML 2019).
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt
from scipy import special

from otpt.metrics.sets import lower_confidence_bound

__all__ = ["Certificate", "certify", "lower_confidence_bound", "predict_or_abstain"]

Votes = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Certificate:
    """What smoothing says of an image.

    Attributes:
        label: the class, None for an abstention.
        radius: ℓ₂, in units of pixels in [0, 1]; 0 for an abstention.
        lower_bound: p_A, of the class that had most of the first votes.
    """

    label: int | None
    radius: float
    lower_bound: float


def certify(first_votes: Votes, votes: Votes, *, sigma: float, alpha: float) -> Certificate:
    """The class of most ``first_votes`` (C,), certified by independent ``votes`` (C,)."""
    label = int(first_votes.argmax())
    bound = lower_confidence_bound(int(votes[label]), int(votes.sum()), alpha)
    if bound < 0.5:
        return Certificate(None, 0.0, bound)
    return Certificate(label, sigma * NormalDist().inv_cdf(bound), bound)


def predict_or_abstain(votes: Votes, alpha: float) -> int | None:
    """The class of most votes (C,), None where it may as well be the second: two-sided binomial test at level α."""
    second, first = np.argsort(votes, kind="stable")[-2:]
    most, both = int(votes[first]), int(votes[first] + votes[second])
    p_value = min(2 * float(special.bdtrc(most - 1, both, 0.5)), 1.0)
    return None if p_value > alpha else int(first)
