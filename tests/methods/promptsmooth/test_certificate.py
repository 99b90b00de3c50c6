"""Certificates against direct binomial computations: scipy's, and exact sums of fractions."""

from __future__ import annotations

from fractions import Fraction
from math import comb

import numpy as np
import pytest
from scipy import stats

from otpt.errors import OtptError
from otpt.methods.promptsmooth import certify, lower_confidence_bound, predict_or_abstain

pytestmark = pytest.mark.slow


def exact_tail(successes: int, trials: int, p: Fraction) -> Fraction:
    return sum((comb(trials, i) * p**i * (1 - p) ** (trials - i) for i in range(successes, trials + 1)), Fraction(0))


@pytest.mark.parametrize(
    ("k", "n"), [(1, 1), (1, 100), (50, 100), (99, 100), (100, 100), (5031, 10_000), (9_990, 10_000), (10_000, 10_000)]
)
@pytest.mark.parametrize("alpha", [0.001, 0.05, 0.9])
def test_bound_is_clopper_pearson(k: int, n: int, alpha: float) -> None:
    bound = lower_confidence_bound(k, n, alpha)
    assert bound == pytest.approx(stats.beta.ppf(alpha, k, n - k + 1), rel=1e-9)
    # and by its definition: at the bound, so many successes or more have probability alpha
    assert stats.binom.sf(k - 1, n, bound) == pytest.approx(alpha, rel=1e-6)


def test_bound_by_exact_fractions() -> None:
    """All right in n trials: pⁿ = α; and one failure, solved by its own equation."""
    assert lower_confidence_bound(20, 20, 0.001) == pytest.approx(0.001 ** (1 / 20), rel=1e-12)
    bound = Fraction(lower_confidence_bound(19, 20, 0.01))
    assert float(exact_tail(19, 20, bound)) == pytest.approx(0.01, rel=1e-9)
    assert lower_confidence_bound(0, 20, 0.01) == 0


def test_radius_and_abstention() -> None:
    first = np.array([90, 10, 0])
    sure = certify(first, np.array([9_900, 60, 40]), sigma=0.25, alpha=0.001)
    bound = stats.beta.ppf(0.001, 9_900, 101)
    assert sure.label == 0
    assert sure.radius == pytest.approx(0.25 * stats.norm.ppf(bound), rel=1e-9)
    torn = certify(first, np.array([5_050, 4_950, 0]), sigma=0.25, alpha=0.001)
    assert (torn.label, torn.radius) == (None, 0.0)
    assert torn.lower_bound == pytest.approx(stats.beta.ppf(0.001, 5_050, 4_951), rel=1e-9)


def test_class_comes_from_the_first_votes_only() -> None:
    """If the second draw prefers another class, the first one's bound is low: an abstention, not another class."""
    found = certify(np.array([40, 60]), np.array([900, 100]), sigma=1.0, alpha=0.001)
    assert found.label is None


@pytest.mark.parametrize("votes", [(60, 40, 0), (70, 30, 5), (51, 49, 0), (0, 0, 100), (30, 30, 30), (8, 1, 0)])
@pytest.mark.parametrize("alpha", [0.001, 0.05, 0.5])
def test_prediction_is_the_binomial_test(votes: tuple[int, ...], alpha: float) -> None:
    ordered = sorted(votes)
    p_value = stats.binomtest(ordered[-1], ordered[-1] + ordered[-2], 0.5).pvalue
    found = predict_or_abstain(np.array(votes), alpha)
    assert found == (None if p_value > alpha else int(np.argmax(votes)))


@pytest.mark.parametrize(("k", "n", "alpha"), [(3, 2, 0.1), (-1, 2, 0.1), (0, 0, 0.1), (1, 2, 0.0), (1, 2, 1.0)])
def test_bad_numbers(k: int, n: int, alpha: float) -> None:
    with pytest.raises(OtptError, match="expected"):
        lower_confidence_bound(k, n, alpha)
