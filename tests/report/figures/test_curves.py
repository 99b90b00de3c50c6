"""Densities, curves, fronts and correlations against scipy and against brute force."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from otpt.report.figures.drawing.curves import (
    density,
    pairwise_cosines,
    pareto_front,
    pearson,
    risk_coverage,
    spearman,
)
from otpt.report.sweeps import swept, variant

pytestmark = pytest.mark.slow

RNG = np.random.default_rng(3)


def test_pairwise_cosines() -> None:
    features = RNG.normal(size=(7, 5))
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    expected = [float(features[i] @ features[j]) for i in range(7) for j in range(i + 1, 7)]
    assert pairwise_cosines(features) == pytest.approx(expected)


def test_density_is_that_of_scipy_and_integrates_to_one() -> None:
    values = RNG.normal(0.6, 0.08, 500)
    at = np.linspace(0.1, 1.1, 400)
    spread = min(values.std(ddof=1), stats.iqr(values) / 1.34)
    width = 0.9 * spread * 500**-0.2
    expected = stats.gaussian_kde(values, bw_method=width / values.std(ddof=1))(at)
    found = density(values, at)
    assert found == pytest.approx(expected, abs=1e-3 * expected.max())
    assert np.trapezoid(found, at) == pytest.approx(1.0, abs=1e-3)
    assert np.isfinite(density(np.array([0.5]), at)).all(), "two classes have one pair"


def test_risk_and_coverage_with_ties() -> None:
    confidence = np.array([0.5, 0.9, 0.5, 0.7, 0.5])
    correct = np.array([True, True, False, False, True])
    coverage, risk = risk_coverage(confidence, correct)
    assert coverage == pytest.approx([0.2, 0.4, 1.0])
    assert risk == pytest.approx([0.0, 0.5, 0.4])
    shuffled = [4, 2, 0, 3, 1]
    again = risk_coverage(confidence[shuffled], correct[shuffled])
    assert again[0] == pytest.approx(coverage)
    assert again[1] == pytest.approx(risk)


def test_nobody_beats_the_front_and_it_beats_all_others() -> None:
    accuracy, ece = RNG.integers(0, 8, 40) / 8, RNG.integers(0, 8, 40) / 8
    front = pareto_front(accuracy, ece)
    for i in range(40):
        beaten = any(
            accuracy[k] >= accuracy[i] and ece[k] <= ece[i] and (accuracy[k], ece[k]) != (accuracy[i], ece[i])
            for k in range(40)
        )
        twin = any((accuracy[k], ece[k]) == (accuracy[i], ece[i]) for k in front)
        assert beaten != twin


def test_correlations_with_ties() -> None:
    x, y = RNG.integers(0, 6, 30).astype(float), RNG.normal(size=30)
    assert pearson(x, y) == pytest.approx(stats.pearsonr(x, y).statistic)
    assert spearman(x, y) == pytest.approx(stats.spearmanr(x, y).statistic)
    assert np.isnan(pearson(np.ones(4), np.arange(4.0)))


def test_variants_of_a_sweep() -> None:
    assert variant("tpt+ts") is None
    assert variant("a[b]") is None, "a name of one's own is no setting"
    methods = ["o-tpt[lambda=18,steps=2]", "c-tpt", "o-tpt[lambda=2,steps=2]", "tpt+penalty[reference=clean]"]
    assert swept(methods) == {
        "o-tpt": [("λ=2,steps=2", methods[2]), ("λ=18,steps=2", methods[0])],
        "tpt+penalty": [("reference=clean", methods[3])],
    }
