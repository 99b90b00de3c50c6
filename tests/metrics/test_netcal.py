"""ECE, MCE and ACE against netcal.

netcal bins with [lo, hi), the last bin closed, on float64 edges: our ``side="left"``. Confidences off the
edges fall into the same bins with either side, so there our default agrees with it too. Its equal-mass bins
have interpolated quantiles as edges; where the number of bins divides the number of images and nothing is
tied, they separate the same images as ours. Its ACE is the *average* calibration error: the plain mean of
the gaps of the filled bins.
"""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from otpt import metrics

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # netcal's own docstrings and imports warn
    from netcal.metrics import ACE, ECE, MCE


def predictions(seed, n=600, classes=5):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, n)
    logits = rng.normal(size=(n, classes)) * 1.5
    logits[np.arange(n), labels] += 1.0
    p = np.exp(logits)
    return p / p.sum(axis=1, keepdims=True), labels


@pytest.mark.parametrize("bins", [5, 10, 15, 20])
@pytest.mark.parametrize("seed", [0, 1])
def test_equal_width_bins(bins, seed):
    p, y = predictions(seed)
    for side in ("left", "right"):
        options = {"n_bins": bins, "side": side}
        assert metrics.expected_calibration_error(p, y, **options) == pytest.approx(ECE(bins).measure(p, y), abs=1e-12)
        assert metrics.maximum_calibration_error(p, y, **options) == pytest.approx(MCE(bins).measure(p, y), abs=1e-12)
        gaps = metrics.reliability_bins(p, y, **options).gaps
        assert np.nanmean(np.abs(gaps)) == pytest.approx(ACE(bins).measure(p, y), abs=1e-12)


@pytest.mark.parametrize("bins", [5, 10, 15, 20])
def test_equal_mass_bins(bins):
    p, y = predictions(2)
    theirs = ECE(bins, equal_intervals=False).measure(p, y)
    assert metrics.adaptive_calibration_error(p, y, n_bins=bins) == pytest.approx(theirs, abs=1e-12)
