"""The class-wise adaptive error against a reference value and a literal loop over classes and ranks."""

from __future__ import annotations

import math

import numpy as np
import pytest
from oracles.data.predictions import predictions, softmax

from otpt import metrics


def loop_ace(p, y, bins):
    n, classes = p.shape
    gaps = []
    for c in range(classes):
        column = p[:, c].astype(float)
        # equal probabilities share their mean label
        mean_label = [np.mean([y[j] == c for j in range(n) if column[j] == column[i]]) for i in range(n)]
        order = sorted(range(n), key=lambda i: column[i])
        for m in range(1, bins + 1):
            members = order[math.ceil((m - 1) * n / bins) : math.ceil(m * n / bins)]
            if members:
                gaps.append(abs(sum(mean_label[i] - column[i] for i in members)) / len(members))
    return sum(gaps) / len(gaps)


def test_reference_value():
    i, j = np.arange(1, 9)[:, None], np.arange(1, 6)[None, :]
    p = softmax(8 * np.sin(1.7 * i + 0.9 * j * (1 + 0.1 * i)))
    labels = np.array([0, 1, 2, 3, 4, 0, 1, 2])
    found = metrics.classwise_adaptive_calibration_error(p, labels, n_bins=4)
    assert found == pytest.approx(0.249014503640, abs=1e-12)


@pytest.mark.parametrize("bins", [1, 4, 7, 20])
@pytest.mark.parametrize(("n", "dtype"), [(40, np.float64), (37, np.float16), (3, np.float32)])
def test_against_loops(bins, n, dtype):
    p, y = predictions(seed=n, n=n, classes=4, dtype=dtype)
    found = metrics.classwise_adaptive_calibration_error(p, y, n_bins=bins)
    assert found == pytest.approx(loop_ace(p, y, bins), abs=1e-12)


def test_ties_across_a_bin_end_and_the_order_of_images():
    p = np.array([[0.75, 0.25], [0.5, 0.5], [0.5, 0.5], [0.5, 0.5], [0.25, 0.75], [0.75, 0.25]])
    y = np.array([0, 1, 0, 0, 1, 1])
    expected = loop_ace(p, y, 3)
    rng = np.random.default_rng(0)
    for _ in range(5):
        order = rng.permutation(6)
        found = metrics.classwise_adaptive_calibration_error(p[order], y[order], n_bins=3)
        assert found == pytest.approx(expected, abs=1e-12)
