"""Exact binomial tails, and the Clopper–Pearson bounds that follow from them."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from otpt.errors import OtptError
from otpt.metrics._inputs import FloatArray

_HALVINGS = 60


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
    if upper_tail(successes, trials, high) < alpha:  # above the estimate, for an alpha of more than one half
        low, high = high, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if upper_tail(successes, trials, middle) < alpha:
            low = middle
        else:
            high = middle
    return low


def clopper_pearson(successes: int, trials: int, level: float = 0.95) -> tuple[float, float]:
    """The two-sided interval of a probability: each side is exceeded with probability (1 − level)/2 at most.

    >>> [round(bound, 4) for bound in clopper_pearson(8, 10)]
    [0.4439, 0.9748]
    """
    alpha = (1.0 - level) / 2.0
    low = lower_confidence_bound(successes, trials, alpha)
    return low, 1.0 - lower_confidence_bound(trials - successes, trials, alpha)


def upper_tail(successes: int, trials: int, probability: float) -> float:
    """P[Bin(n, p) ≥ k] = Σ_{i≥k} C(n, i) pⁱ (1 − p)ⁿ⁻ⁱ."""
    if probability <= 0:
        return float(successes == 0)
    if probability >= 1:
        return 1.0
    i = np.arange(successes, trials + 1)
    log_factorials = _log_factorials(trials)
    log_terms = (
        log_factorials[trials]
        - log_factorials[i]
        - log_factorials[trials - i]
        + i * math.log(probability)
        + (trials - i) * math.log1p(-probability)
    )
    return min(float(np.exp(log_terms).sum()), 1.0)


def lower_tail(successes: int, trials: int, probability: float) -> float:
    """P[Bin(n, p) ≤ k], as the upper tail of the failures."""
    return upper_tail(trials - successes, trials, 1.0 - probability)


@lru_cache(maxsize=8)
def _log_factorials(n: int) -> FloatArray:
    return np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, n + 1)))])
