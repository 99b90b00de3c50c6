"""Smooth ECE against a literal sum of mirrored Gaussians, integrated numerically, and bisection for its width."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from otpt import metrics
from otpt.metrics import METRICS, binned
from otpt.metrics.inputs import check_confidence


def literal_at(width, confidence, correct, points=4001):
    """∫₀¹ |(1/N) Σ_n (correct_n − conf_n) Σ_k φ_σ(conf_n − z_k)| dt over the mirror images z = 2k ± t of t."""
    t = np.linspace(0, 1, points)
    smoothed = np.zeros_like(t)
    for (c, right), count in Counter(zip(confidence, correct, strict=True)).items():
        for k in range(-2, 3):
            for z in (2 * k + t, 2 * k - t):
                smoothed += count * (right - c) * np.exp(-0.5 * ((c - z) / width) ** 2)
    smoothed /= width * math.sqrt(2 * math.pi) * len(confidence)
    return float(np.trapezoid(np.abs(smoothed), t))


def literal(confidence, correct):
    low, high = 1e-4, 1.0
    for _ in range(24):
        middle = (low + high) / 2
        low, high = (middle, high) if literal_at(middle, confidence, correct) > middle else (low, middle)
    return low


def drawn(seed, n, power):
    rng = np.random.default_rng(seed)
    confidence = rng.beta(3, 1, n)
    return confidence, (rng.random(n) < confidence**power).astype(float)


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "n", "power"), [(0, 12, 1.0), (1, 60, 1.0), (2, 60, 3.0), (3, 80, 0.3), (4, 3, 1.0)])
def test_against_literal_integration(seed, n, power):
    case = drawn(seed, n, power)
    assert metrics.smooth_ece(*case) == pytest.approx(literal(*case), rel=1e-4)


def test_a_small_value_against_literal_integration():
    # pairs of right and wrong ones at 0.5 cancel; a slight over-confidence remains
    confidence = np.concatenate([np.full(40, 0.5), np.full(10, 0.81), np.full(20, 0.96)])
    correct = np.concatenate([np.arange(40) % 2, np.arange(10) < 8, np.arange(20) < 19]).astype(float)
    found = metrics.smooth_ece(confidence, correct)
    assert 0.001 < found < 0.006
    assert found == pytest.approx(literal(confidence, correct), rel=5e-3)


def test_one_sided_gaps_are_not_smoothed_away():
    # the kernel has mass one, so a gap of one sign keeps its size at any width
    assert metrics.smooth_ece(np.full(10, 0.7), np.ones(10)) == pytest.approx(0.3, abs=1e-12)
    assert metrics.smooth_ece([0.0, 1.0], [1, 0]) == pytest.approx(literal([0.0, 1.0], [1, 0]), rel=1e-5)
    assert metrics.smooth_ece([1.0, 1.0, 0.0], [1, 1, 0]) == 0
    rng = np.random.default_rng(0)
    confidence = rng.random(500)
    correct = rng.random(500) < confidence / 2
    gap = float(np.mean(confidence - correct))
    assert gap - 1e-9 <= metrics.smooth_ece(confidence, correct) <= 1


def test_a_calibrated_model_approaches_zero_and_tells_a_miscalibrated_one():
    rng = np.random.default_rng(5)
    found = []
    for n in (100, 1000, 10_000, 100_000):
        confidence = rng.beta(4, 1, n)
        found.append(metrics.smooth_ece(confidence, rng.random(n) < confidence))
    assert all(after < before for before, after in pairwise(found))
    assert found[-1] < 0.006
    assert metrics.smooth_ece(confidence, rng.random(n) < confidence - 0.05) == pytest.approx(0.05, abs=0.005)


def test_the_number_of_resamples_at_a_time_does_not_matter(monkeypatch):
    confidence, correct = drawn(6, 50, 2.0)
    weights = np.random.default_rng(0).multinomial(50, np.full(50, 1 / 50), size=60).astype(float)
    rows = check_confidence(confidence, correct)
    whole = METRICS["smooth_ece"].compute(rows, weights)
    monkeypatch.setattr(binned, "_ROWS", 7)
    parts = METRICS["smooth_ece"].compute(rows, weights)
    assert len(set(whole)) == 60
    assert np.array_equal(whole, parts)
