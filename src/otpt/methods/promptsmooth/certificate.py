"""From votes of noisy copies to a class that holds within a radius, or to an abstention.

A classifier that takes the majority over x + N(0, σ²I) keeps its class A for every perturbation of ℓ₂ norm below
R = σ·Φ⁻¹(p_A), where p_A > ½ bounds the probability of A from below (Cohen et al., ICML 2019).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from otpt.errors import OtptError

Votes = npt.NDArray[np.int64]
_HALVINGS = 60


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


def lower_confidence_bound(successes: int, trials: int, alpha: float) -> float:
    """Clopper–Pearson: the p with P[Bin(n, p) ≥ k] = α, below which the true p lies with probability α at most.

    Found by halving, on the exact sum of binomial terms.
    """
    if not 0 <= successes <= trials or trials < 1:
        raise OtptError(
            f"{successes} successes in {trials} trials; expected 0 to the number of trials, which is 1 or more."
        )
    if not 0 < alpha < 1:
        raise OtptError(f"The error probability alpha is {alpha}; expected a number between 0 and 1.")
    if successes == 0:
        return 0.0
    low, high = 0.0, successes / trials
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if upper_tail(successes, trials, middle) < alpha:
            low = middle
        else:
            high = middle
    return low


def upper_tail(successes: int, trials: int, probability: float) -> float:
    """P[Bin(n, p) ≥ k] = Σ_{i≥k} C(n, i) pⁱ (1 − p)ⁿ⁻ⁱ."""
    if probability <= 0:
        return float(successes == 0)
    if probability >= 1:
        return 1.0
    i = np.arange(successes, trials + 1)
    log_factorials = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, trials + 1)))])
    log_terms = (
        log_factorials[trials]
        - log_factorials[i]
        - log_factorials[trials - i]
        + i * math.log(probability)
        + (trials - i) * math.log1p(-probability)
    )
    return min(float(np.exp(log_terms).sum()), 1.0)


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
    p_value = min(2 * upper_tail(most, both, 0.5), 1.0)
    return None if p_value > alpha else int(first)
