"""Bootstrap intervals: the fast weights against drawing images literally, and against theory."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from otpt import metrics
from otpt.metrics import METRICS

BINS = 7
WITH_BINS = {name for name in METRICS if "n_bins" in METRICS[name].options}
OF_CONFIDENCE = [name for name in METRICS if METRICS[name].needs == "confidence"]


def predictions(seed, n=120, classes=8, decimals=1, sharpness=2.0):
    """Rounded logits, so that confidences tie; a sharpness of 100 rounds probabilities to exact zeros in
    float16.
    """
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, n)
    logits = np.round(rng.normal(size=(n, classes)), decimals) * sharpness
    logits[np.arange(n), labels] += 1.0
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    return p / p.sum(axis=1, keepdims=True), labels


def function_of(name):
    """The public function of a metric, with the bins of these tests."""
    function = getattr(metrics, METRICS[name].aliases[0])
    return (lambda p, y: function(p, y, n_bins=BINS)) if name in WITH_BINS else function


def shifted(values, estimate, level, within=(-np.inf, np.inf)):
    """Quantiles of the values once their median is the estimate and they are within the metric's range."""
    moved = np.clip(np.asarray(values) - np.median(values) + estimate, *within)
    low, high = np.quantile(moved, [(1 - level) / 2, (1 + level) / 2])
    return [min(low, estimate), max(high, estimate)]


def literal(function, p, y, resamples, level, seed, within=(0, 1)):
    """Draw images, call the metric, take quantiles of what is defined around the estimate."""
    generator = np.random.default_rng(seed)
    values = []
    for _ in range(resamples):
        drawn = generator.integers(0, len(y), size=len(y))
        values.append(function(p[drawn], y[drawn]))
    known = [value for value in values if not np.isnan(value)] or [np.nan]
    return shifted(known, function(p, y), level, within)


@pytest.mark.parametrize("metric", [name for name in METRICS if name != "debiased_ece"])  # copies: test_debiased
@pytest.mark.parametrize(("n", "sharpness"), [(120, 2.0), (60, 100.0), (1, 2.0), (3, 2.0)])
def test_equals_literal_resampling(metric, n, sharpness):
    p, y = predictions(seed=n, n=n, sharpness=sharpness)
    p = p.astype(np.float16)
    found = metrics.bootstrap(metric, p, y, resamples=40, level=0.8, seed=5, n_bins=BINS)
    expected = literal(function_of(metric), p, y, 40, 0.8, 5, METRICS[metric].range)
    assert [found.low, found.high] == pytest.approx(expected, abs=1e-12, nan_ok=True)
    assert found.estimate == pytest.approx(function_of(metric)(p, y), abs=1e-12, nan_ok=True)
    assert found.level == 0.8
    assert found.resamples == 40 or metric in {"auroc", "fpr95"}


@pytest.mark.parametrize("metric", ["ece", "mce", "sce"])
@pytest.mark.parametrize("bins", [1, 20])
def test_left_bins_too(metric, bins):
    p, y = predictions(seed=1, n=50, sharpness=100.0)
    p = p.astype(np.float16)
    name = {"ece": "expected", "mce": "maximum", "sce": "classwise"}[metric]
    function = getattr(metrics, f"{name}_calibration_error")
    expected = literal(lambda p, y: function(p, y, n_bins=bins, side="left"), p, y, 20, 0.9, 0)
    found = metrics.bootstrap(metric, p, y, resamples=20, level=0.9, n_bins=bins, side="left")
    assert [found.low, found.high] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("metric", OF_CONFIDENCE)
def test_confidence_form_is_the_same(metric):
    p, y = predictions(seed=2)
    q, _ = predictions(seed=3)
    options = {"resamples": 30, "seed": 9, "n_bins": BINS}
    pairs = [metrics.confidence_and_correct(p, y), metrics.confidence_and_correct(q, y)]
    assert metrics.bootstrap(metric, *pairs[0], **options) == metrics.bootstrap(metric, p, y, **options)
    found = metrics.bootstrap_difference(metric, *pairs, **options)
    assert found == metrics.bootstrap_difference(metric, (p, y), (q, y), **options)


@pytest.mark.parametrize("metric", ["ece", "accuracy", "sce"])
def test_difference_draws_the_same_images_for_both(metric):
    p, y = predictions(seed=4)
    q, _ = predictions(seed=5)
    function = function_of(metric)
    generator = np.random.default_rng(3)
    values = []
    for _ in range(25):
        drawn = generator.integers(0, len(y), size=len(y))
        values.append(function(p[drawn], y[drawn]) - function(q[drawn], y[drawn]))
    found = metrics.bootstrap_difference(metric, (p, y), (q, y), resamples=25, level=0.5, seed=3, n_bins=BINS)
    assert [found.low, found.high] == pytest.approx(shifted(values, found.estimate, 0.5), abs=1e-12)
    assert found.estimate == pytest.approx(function(p, y) - function(q, y), abs=1e-12)
    same = metrics.bootstrap_difference(metric, (p, y), (p, y), resamples=25)
    assert (same.low, same.estimate, same.high) == (0, 0, 0)
    assert same.contains(0)


def test_a_function_as_metric():
    p, y = predictions(seed=7)
    found = metrics.bootstrap(lambda p, y: float(p[np.arange(len(y)), y].mean()), p, y, resamples=30, seed=1)
    expected = literal(lambda p, y: p[np.arange(len(y)), y].mean(), p, y, 30, 0.95, 1, (-np.inf, np.inf))
    assert [found.low, found.high] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("n", [1, 5, 80, 300])
def test_an_interval_contains_its_estimate_and_stays_in_the_range(n):
    """Resampled ECEs of few images all lie above the estimate; the interval does not."""
    rng = np.random.default_rng(n)
    confidence = rng.beta(4, 1, n)
    correct = rng.random(n) < confidence
    for metric in OF_CONFIDENCE:
        found = metrics.bootstrap(metric, confidence, correct, resamples=60, level=0.5)
        if found.resamples:
            assert found.contains(found.estimate), metric
            assert found.low >= METRICS[metric].range[0], metric
            assert found.high <= 1, metric


@pytest.mark.slow
@pytest.mark.parametrize(("metric", "over"), [("ece", 0.0), ("ece", 0.1), ("debiased_ece", 0.0), ("adaptive_ece", 0.1)])
def test_coverage_of_the_expectation(metric, over):
    """Of 95 % intervals from 100 images, nearly 95 % contain the metric's mean over samples of 100 images."""
    rng = np.random.default_rng(3)
    n, samples = 100, 150
    drawn = []
    for _ in range(samples):
        confidence = 0.1 + 0.9 * rng.beta(4, 1, n)
        drawn.append((confidence, rng.random(n) < confidence - over))
    found = [metrics.bootstrap(metric, *each, resamples=150) for each in drawn]
    expectation = np.mean([each.estimate for each in found])
    covered = np.mean([each.contains(expectation) for each in found])
    assert covered > 0.95 - 3 * np.sqrt(0.95 * 0.05 / samples)


def test_chunks_of_rows_and_of_resamples_do_not_change_the_values(monkeypatch):
    p, y = predictions(seed=8)
    whole = metrics.bootstrap("sce", p, y, resamples=6, n_bins=BINS)
    monkeypatch.setattr("otpt.metrics.inputs._CHUNK_ENTRIES", 5 * p.shape[1])
    monkeypatch.setattr(sys.modules["otpt.metrics.bootstrap"], "_CHUNK_ENTRIES", 4 * len(y))  # not the function
    found = metrics.bootstrap("sce", p, y, resamples=6, n_bins=BINS)
    assert [found.estimate, found.low, found.high] == pytest.approx([whole.estimate, whole.low, whole.high], abs=1e-12)
