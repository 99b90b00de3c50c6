"""Debiased ECE: against all outcomes one by one, against plain convolution, and zero on average if calibrated."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from otpt import metrics
from otpt.metrics import METRICS
from otpt.metrics.binned import mean_absolute_deviation
from otpt.metrics.inputs import check_confidence


def statistic(confidence, correct, weights):
    return METRICS["debiased_ece"].compute(check_confidence(confidence, correct), weights.astype(float))


def expected_ece(confidence, bins, side, copies=None):
    """The mean ECE over all 2^N outcomes of a calibrated model, each with its probability; ``copies`` of each image."""
    confidence = np.asarray(confidence)
    copies = np.ones(len(confidence), dtype=int) if copies is None else np.asarray(copies)
    total = 0.0
    for outcome in product((0, 1), repeat=len(confidence)):
        chance = np.prod(np.where(outcome, confidence, 1 - confidence))
        drawn = np.repeat(confidence, copies), np.repeat(outcome, copies)
        total += chance * metrics.ece(*drawn, n_bins=bins, side=side)
    return total


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("bins", [1, 5, 20])
def test_against_all_outcomes(bins, side):
    rng = np.random.default_rng(bins)
    for n in (1, 4, 9):
        confidence = np.round(rng.random(n), 1)  # zeros, ones and edges among them
        correct = rng.random(n) < 0.5
        ece = metrics.ece(confidence, correct, n_bins=bins, side=side)
        found = metrics.debiased_ece(confidence, correct, n_bins=bins, side=side)
        assert found == pytest.approx(ece - expected_ece(confidence, bins, side), abs=1e-12)


def test_many_images_against_plain_convolution():
    rng = np.random.default_rng(0)
    for n, low, high in ((1000, 0.95, 1.0), (2001, 0.0, 1.0), (3000, 0.999, 1.0)):
        p = rng.uniform(low, high, n)
        distribution = np.ones(1)
        for each in p:
            distribution = np.convolve(distribution, [1 - each, each])
        expected = np.abs(np.arange(n + 1) - p.sum()) @ distribution
        assert mean_absolute_deviation(p) == pytest.approx(expected, rel=1e-10)
    sigma = np.sqrt((p := np.full(40_000, 0.5)).size * 0.25)
    assert mean_absolute_deviation(p) == pytest.approx(np.sqrt(2 / np.pi) * sigma, rel=1e-4)  # nearly normal


@pytest.mark.slow
def test_a_calibrated_model_has_none_on_average_but_its_ece_is_positive():
    rng = np.random.default_rng(7)
    raw, debiased, resampled = [], [], []
    for _ in range(200):
        confidence = rng.beta(4, 1.5, 150)
        correct = rng.random(150) < confidence
        raw.append(metrics.ece(confidence, correct))
        debiased.append(metrics.debiased_ece(confidence, correct))
        weights = rng.multinomial(150, np.full(150, 1 / 150), size=5).astype(float)
        resampled.append(statistic(confidence, correct, weights).mean())
    error = np.std(debiased, ddof=1) / np.sqrt(len(debiased))
    assert abs(np.mean(debiased)) < 3 * error
    assert np.mean(raw) > 20 * error
    assert min(debiased) < 0 < max(debiased)
    # resampling adds no bias: copies of an image are right or wrong together, and the correction knows
    assert abs(np.mean(resampled)) < 4 * np.std(resampled, ddof=1) / np.sqrt(len(resampled))


def test_a_resample_is_corrected_for_its_copies():
    confidence, correct = np.array([0.62, 0.64, 0.71, 0.83, 0.84]), np.array([1, 0, 1, 1, 0], dtype=bool)
    # all images of a bin are drawn equally often: exact
    copies = np.array([2, 2, 0, 1, 1])
    drawn = np.repeat(confidence, copies), np.repeat(correct, copies)
    scale = copies.sum() / len(copies)  # a resample has as many draws as there are images
    expected = scale * (metrics.ece(*drawn) - expected_ece(confidence, 20, "right", copies))
    assert statistic(confidence, correct, copies[None]) == pytest.approx([expected], abs=1e-12)
    # otherwise the standard deviation scales the mean: literally, bin by bin
    copies = np.array([0, 2, 1, 1, 1])
    bias = 0.0
    for members in ([0, 1], [2], [3, 4]):
        own, w = confidence[members], copies[members]
        exact = sum(
            np.prod(np.where(o, own, 1 - own)) * abs(sum(o) - own.sum()) for o in product((0, 1), repeat=len(own))
        )
        bias += exact * np.sqrt((w**2 * own * (1 - own)).sum() / (own * (1 - own)).sum()) / 5
    drawn = np.repeat(confidence, copies), np.repeat(correct, copies)
    expected = metrics.ece(*drawn) - bias
    assert statistic(confidence, correct, copies[None]) == pytest.approx([expected], abs=1e-12)


def test_the_interval_is_that_of_the_statistic():
    rng = np.random.default_rng(3)
    confidence = rng.random(80)
    correct = rng.random(80) < confidence**2
    found = metrics.bootstrap("debiased_ece", confidence, correct, resamples=50, level=0.8, seed=4)
    generator = np.random.default_rng(4)
    weights = [np.bincount(generator.integers(0, 80, size=80), minlength=80) for _ in range(50)]
    values = statistic(confidence, correct, np.array(weights))
    shifted = values + found.estimate - np.median(values)  # their median at the estimate
    assert [found.low, found.high] == pytest.approx(np.quantile(shifted, [0.1, 0.9]).tolist(), abs=1e-12)
    assert found.estimate == metrics.debiased_ece(confidence, correct)
