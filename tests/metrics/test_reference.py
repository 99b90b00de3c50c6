"""Every metric against a literal loop over images, bins and classes, and against values computed
elsewhere.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from oracles.data.predictions import predictions, softmax

from otpt import metrics


def loop_ece(confidence, correct, bins, side="right"):
    """(ECE, MCE) by the definition, one bin and one image at a time."""
    edges = [float(np.float32(m / bins)) for m in range(bins + 1)]
    ece, mce = 0.0, 0.0
    for m in range(bins):
        lo, hi = edges[m], edges[m + 1]
        members = []
        for n, c in enumerate(confidence):
            closed_end = side == "left" and m == bins - 1 and c == 1.0
            if (lo < c <= hi) if side == "right" else (lo <= c < hi or closed_end):
                members.append(n)
        if members:
            acc = sum(float(correct[n]) for n in members) / len(members)
            conf = sum(float(confidence[n]) for n in members) / len(members)
            ece += len(members) / len(confidence) * abs(acc - conf)
            mce = max(mce, abs(acc - conf))
    return ece, mce


def loop_adaptive_ece(confidence, correct, bins):
    ordered = sorted(confidence)
    n = len(ordered)
    total, below = 0.0, -math.inf
    for m in range(1, bins + 1):
        above = ordered[math.ceil(m * n / bins) - 1]
        members = [i for i, c in enumerate(confidence) if below < c <= above]
        if members:
            acc = sum(float(correct[i]) for i in members) / len(members)
            conf = sum(float(confidence[i]) for i in members) / len(members)
            total += len(members) / n * abs(acc - conf)
        below = above
    return total


def loop_sce(probabilities, labels, bins, side="right"):
    """The ECE of each class's column against "is this class", averaged over the classes."""
    columns = [loop_ece(probabilities[:, c], labels == c, bins, side)[0] for c in range(probabilities.shape[1])]
    return sum(columns) / len(columns)


CONFIDENCE = (0.05, 0.050001, 0.51, 0.55, 0.62, 0.62, 0.99, 1.0)
CORRECT = (0, 1, 1, 0, 1, 1, 1, 0)


@pytest.mark.parametrize(("bins", "expected"), [(20, 0.351249875), (10, 0.338749875), (15, 0.461249875)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_ece_reference_value(bins, expected, dtype):
    # 0.05 is in the first of twenty bins, because the edge is a float32 number
    confidence = np.array(CONFIDENCE, dtype=dtype)
    tolerance = 1e-15 if dtype == np.float64 else 1e-7
    assert metrics.ece(confidence, CORRECT, n_bins=bins) == pytest.approx(expected, abs=tolerance)


@pytest.mark.parametrize("bins", [15, 20])
def test_sce_reference_value(bins):
    i, j = np.arange(1, 9)[:, None], np.arange(1, 6)[None, :]
    p = softmax(8 * np.sin(1.7 * i + 0.9 * j * (1 + 0.1 * i)))
    value = metrics.classwise_calibration_error(p, np.array([0, 1, 2, 3, 4, 0, 1, 2]), n_bins=bins)
    assert value == pytest.approx(0.33775169264582, abs=1e-13)


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("bins", [1, 2, 10, 15, 20, 33])
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_calibration_errors_against_loops(bins, side, dtype):
    p, y = predictions(seed=bins, dtype=dtype)
    confidence, correct = p.max(axis=1).astype(np.float64), p.argmax(axis=1) == y
    ece, mce = loop_ece(confidence, correct, bins, side)
    assert metrics.ece(p, y, n_bins=bins, side=side) == pytest.approx(ece, abs=1e-13)
    assert metrics.ece(confidence, correct, n_bins=bins, side=side) == pytest.approx(ece, abs=1e-13)
    assert metrics.maximum_calibration_error(p, y, n_bins=bins, side=side) == pytest.approx(mce, abs=1e-13)
    assert metrics.mce(confidence, correct, n_bins=bins, side=side) == pytest.approx(mce, abs=1e-13)
    sce = loop_sce(p.astype(np.float64), y, bins, side)
    assert metrics.classwise_calibration_error(p, y, n_bins=bins, side=side) == pytest.approx(sce, abs=1e-13)
    adaptive = loop_adaptive_ece(confidence, correct, bins)
    assert metrics.adaptive_calibration_error(p, y, n_bins=bins) == pytest.approx(adaptive, abs=1e-13)
    assert metrics.adaptive_ece(confidence, correct, n_bins=bins) == pytest.approx(adaptive, abs=1e-13)


def test_values_on_the_edges():
    at_edges = np.concatenate([np.linspace(0, 1, 21).astype(np.float32), [0.0, 1.0, 1.0]])
    correct = np.arange(len(at_edges)) % 3 == 0
    for side in ("right", "left"):
        ece, mce = loop_ece(at_edges.astype(np.float64), correct, 20, side)
        assert metrics.ece(at_edges, correct, side=side) == pytest.approx(ece, abs=1e-15)
        assert metrics.mce(at_edges, correct, side=side) == pytest.approx(mce, abs=1e-15)
    assert metrics.reliability_bins(at_edges, correct, side="right").counts.sum() == 22  # two zeros
    assert metrics.reliability_bins(at_edges, correct, side="left").counts.sum() == 24


def test_zero_confidence_is_in_no_bin_but_counts_as_a_image():
    assert metrics.ece([0.0, 0.5], [1, 1]) == 0.25
    assert metrics.ece([0.0], [1]) == 0.0
    assert metrics.mce([0.0], [1]) == 0.0


def test_float16_confidences_meet_the_same_bins_with_torch_edges():
    # torch.linspace rounds its steps: one of its 21 edges (0.45) is a float32 neighbour of ours. No float16
    # number lies between, so the confidences of the official runs fall into the same bins either way.
    every = np.arange(1, 0x3C00 + 1, dtype=np.uint16).view(np.float16).astype(np.float32)
    for bins in (10, 15, 20):
        index = torch.bucketize(torch.from_numpy(every), torch.linspace(0, 1, bins + 1)).numpy() - 1
        expected = np.bincount(index, minlength=bins)
        counts = metrics.reliability_bins(every, np.zeros(len(every)), n_bins=bins).counts
        np.testing.assert_array_equal(counts, expected)


def test_adaptive_bins_hold_equal_mass():
    # four images in two bins: (0.6, 0.7) with one right, (0.8, 0.9) with two right
    assert metrics.adaptive_ece([0.9, 0.6, 0.8, 0.7], [1, 0, 1, 1], n_bins=2) == pytest.approx(
        (abs(1 - 1.3) + abs(2 - 1.7)) / 4
    )
    # all tied: one bin, whatever the number asked for
    assert metrics.adaptive_ece([0.8] * 10, [1] * 8 + [0] * 2) == pytest.approx(0.0, abs=1e-15)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_means_against_loops(dtype):
    p, y = predictions(seed=3, dtype=dtype)
    n, classes = p.shape
    brier = sum((float(p[i, c]) - (y[i] == c)) ** 2 for i in range(n) for c in range(classes)) / n
    nll = -sum(math.log(p[i, y[i]]) for i in range(n)) / n
    entropy = -sum(float(p[i, c]) * math.log(p[i, c]) for i in range(n) for c in range(classes)) / n
    over = sum(float(max(p[i])) - (int(np.argmax(p[i])) == y[i]) for i in range(n)) / n
    assert metrics.brier_score(p, y) == pytest.approx(brier, abs=1e-12)
    assert metrics.negative_log_likelihood(p, y) == pytest.approx(nll, abs=1e-12)
    assert metrics.mean_entropy(p, y) == pytest.approx(entropy, abs=1e-12)
    assert metrics.overconfidence(p, y) == pytest.approx(over, abs=1e-12)
    for top in (1, 2, 5, 7, 99):
        expected = sum(y[i] in sorted(range(classes), key=lambda c: -p[i, c])[:top] for i in range(n)) / n
        assert metrics.accuracy(p, y, top=top) == pytest.approx(expected, abs=1e-15)


def test_ties_go_to_the_class_listed_first():
    p = np.full((4, 4), 0.25)
    labels = np.arange(4)
    assert [metrics.accuracy(p, labels, top=k) for k in (1, 2, 3, 4)] == [0.25, 0.5, 0.75, 1.0]
    assert metrics.confidence_and_correct(p, labels)[1].tolist() == [True, False, False, False]


def test_zero_probability_of_the_label():
    p, y = np.array([[0.0, 1.0], [0.5, 0.5]]), np.array([0, 0])
    assert metrics.negative_log_likelihood(p, y) == pytest.approx((-math.log(metrics.NLL_FLOOR) + math.log(2)) / 2)
    assert metrics.negative_log_likelihood(p, y, floor=2**-24) == pytest.approx((25 * math.log(2)) / 2)
    assert metrics.mean_entropy(p, y) == pytest.approx(math.log(2) / 2)
    assert str(metrics.negative_log_likelihood([[1.0, 0.0]], [0])) == "0.0"  # not "-0.0"


def test_reliability_bins_describe_each_bin():
    r = metrics.reliability_bins(CONFIDENCE, CORRECT, n_bins=20)
    assert r.counts.tolist() == [1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 2, 0, 0, 0, 0, 0, 0, 2]
    assert r.total == 8
    assert r.edges[0] == 0
    assert r.edges[-1] == 1
    assert len(r.edges) == 21
    np.testing.assert_allclose(r.accuracy[[0, 1, 10, 12, 19]], [0, 1, 0.5, 1, 0.5])
    np.testing.assert_allclose(r.confidence[[0, 1, 10, 12, 19]], [0.05, 0.050001, 0.53, 0.62, 0.995])
    np.testing.assert_allclose(r.gaps[[0, 10]], [0.05, 0.03])
    assert np.isnan(r.accuracy[r.counts == 0]).all()
    assert np.isnan(r.confidence[r.counts == 0]).all()
    p, y = predictions(seed=1)
    r = metrics.reliability_bins(p, y)
    filled = r.counts > 0
    ece = float(np.sum(r.counts[filled] / r.total * np.abs(r.gaps[filled])))
    assert ece == pytest.approx(metrics.expected_calibration_error(p, y), abs=1e-15)


def test_percent_has_no_negative_zero():
    assert [metrics.percent(x) for x in (0.0477, -0.0123, -1e-9, 1.0)] == ["4.77", "-1.23", "0.00", "100.00"]


def test_chunks_do_not_change_the_values():
    p, y = predictions(seed=8)
    once, times = metrics.evaluate(p, y).as_dict(), 1200
    often = metrics.evaluate(np.tile(p, (times, 1)), np.tile(y, times)).as_dict()
    assert often["images"] * often["classes"] > 2 << 20, "or all rows are one chunk"
    of_the_number = {"images", "debiased_ece", "aurc", "excess_aurc"}  # these do change with the number of images
    kept = {name: value for name, value in once.items() if name not in of_the_number}
    assert {name: often[name] for name in kept} == pytest.approx(kept, abs=1e-12)
