"""Metrics against published values, literal loops, netcal and each other."""

from __future__ import annotations

import math
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles.data.predictions import predictions, softmax

from otpt import metrics
from otpt.metrics import METRICS, evaluate_rows


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


def test_classwise_reference_values():
    i, j = np.arange(1, 9)[:, None], np.arange(1, 6)[None, :]
    p, labels = softmax(8 * np.sin(1.7 * i + 0.9 * j * (1 + 0.1 * i))), np.array([0, 1, 2, 3, 4, 0, 1, 2])
    for bins in (15, 20):
        assert metrics.sce(p, labels, n_bins=bins) == pytest.approx(0.33775169264582, abs=1e-13)
    assert metrics.classwise_adaptive_ece(p, labels, n_bins=4) == pytest.approx(0.249014503640, abs=1e-12)


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


def test_chunks_do_not_change_the_values(monkeypatch):
    p, y = predictions(seed=8)
    whole = metrics.evaluate(p, y).as_dict()
    monkeypatch.setattr("otpt.metrics.inputs._CHUNK_ENTRIES", 5 * p.shape[1])
    assert metrics.evaluate(p, y).as_dict() == pytest.approx(whole, abs=1e-12)


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


@pytest.mark.parametrize("bins", [1, 4, 7, 20])
@pytest.mark.parametrize(("n", "dtype"), [(40, np.float64), (37, np.float16), (3, np.float32)])
def test_classwise_adaptive_error_against_loops(bins, n, dtype):
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


with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # netcal's own docstrings and imports warn
    from netcal.metrics import ACE, ECE, MCE


@pytest.mark.parametrize("bins", [5, 10, 15, 20])
@pytest.mark.parametrize("seed", [0, 1])
def test_equal_width_bins_are_netcals(bins, seed):
    p, y = predictions(seed)
    for side in ("left", "right"):
        options = {"n_bins": bins, "side": side}
        assert metrics.expected_calibration_error(p, y, **options) == pytest.approx(ECE(bins).measure(p, y), abs=1e-12)
        assert metrics.maximum_calibration_error(p, y, **options) == pytest.approx(MCE(bins).measure(p, y), abs=1e-12)
        gaps = metrics.reliability_bins(p, y, **options).gaps
        assert np.nanmean(np.abs(gaps)) == pytest.approx(ACE(bins).measure(p, y), abs=1e-12)


@pytest.mark.parametrize("bins", [5, 10, 15, 20])
def test_equal_mass_bins_are_netcals(bins):
    p, y = predictions(2)
    theirs = ECE(bins, equal_intervals=False).measure(p, y)
    assert metrics.adaptive_calibration_error(p, y, n_bins=bins) == pytest.approx(theirs, abs=1e-12)


KEPT = 0.01


def stored(p: np.ndarray, y: np.ndarray) -> SimpleNamespace:
    """Rows by the definition: the five largest probabilities and all of one percent and more."""
    tops = [sorted(range(len(row)), key=lambda c: -row[c])[: max(5, int((row >= KEPT).sum()))] for row in p]
    return SimpleNamespace(
        labels=y,
        probabilities=p[np.arange(len(y)), y],
        predictions=p.argmax(axis=1),
        confidences=p.max(axis=1),
        correct=p.argmax(axis=1) == y,
        ranks=np.array([int((row > row[label]).sum()) for row, label in zip(p, y, strict=True)]),
        squares=(p**2).sum(axis=1),
        entropies=-(p * np.log(p)).sum(axis=1),
        top_counts=np.array([len(top) for top in tops]),
        top_classes=np.concatenate(tops),
        top_probabilities=np.concatenate([row[top] for row, top in zip(p, tops, strict=True)]),
        class_sums=p.sum(axis=0),
    )


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("bins", [1, 10, 20, 100])
@pytest.mark.parametrize(("n", "classes"), [(80, 6), (60, 120), (1, 5)])
def test_stored_rows_have_the_metrics_of_all_probabilities(n: int, classes: int, bins: int, side: str) -> None:
    p, y = predictions(n, n, classes)
    found = evaluate_rows(stored(p, y), n_bins=bins, side=side).as_dict()
    expected = metrics.evaluate(p, y, n_bins=bins, side=side).as_dict()
    assert (found.pop("side"), expected.pop("side")) == (side, side)
    assert found == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("metric", [name for name in METRICS if METRICS[name].needs != "probabilities"])
def test_weights_of_one_give_the_metric(metric: str) -> None:
    p, y = predictions(3, 70, 40)
    rows = stored(p, y)
    value = METRICS[metric].resampled(rows, np.ones((2, 70)), n_bins=15)
    assert value == pytest.approx([getattr(metrics.evaluate(p, y, n_bins=15), metric)] * 2, abs=1e-12)


quick = settings(max_examples=25, deadline=None, database=None, derandomize=True)


@st.composite
def cases(draw):
    """(probabilities, labels) with ties, zeros and ones among them."""
    n, classes = draw(st.integers(1, 30)), draw(st.integers(1, 6))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    sharpness = draw(st.sampled_from([0.0, 1.0, 5.0, 200.0]))
    dtype = draw(st.sampled_from([np.float64, np.float32, np.float16]))
    logits = np.round(rng.normal(size=(n, classes)), draw(st.integers(0, 3))) * sharpness
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    return (p / p.sum(axis=1, keepdims=True)).astype(dtype), rng.integers(0, classes, n)


@quick
@given(cases(), st.integers(1, 25), st.sampled_from(["right", "left"]))
def test_ranges_and_orders(case, bins, side):
    p, y = case
    m = metrics.evaluate(p, y, n_bins=bins, side=side)
    for share in (m.accuracy, m.top5_accuracy, m.ece, m.adaptive_ece, m.mce, m.sce, m.confidence,
                  m.macro_f1, m.smooth_ece, m.ks_error, m.aurc, m.excess_aurc, m.auroc or 0, m.fpr95 or 0,
                  m.selective_accuracy, m.coverage_at_risk, m.top_label_brier):  # fmt: skip
        assert 0 <= share <= 1
    assert -1 <= m.debiased_ece <= m.ece + 1e-12
    assert abs(m.overconfidence) <= min(m.ks_error, m.smooth_ece) + 1e-9
    assert 0 <= m.brier <= 2 + 1e-2  # rows rounded to float16 sum to one only roughly
    assert m.nll >= 0
    assert -1e-12 <= m.entropy <= math.log(p.shape[1]) + 1e-2
    assert m.accuracy <= m.top5_accuracy
    assert m.ece <= m.mce + 1e-12  # a mean is not above the maximum
    assert abs(m.overconfidence) <= m.ece + 1e-12  # gaps of several bins can cancel there
    assert abs(m.overconfidence) <= m.adaptive_ece + 1e-12


@quick
@given(cases(), st.integers(0, 2**32 - 1))
def test_order_of_images_does_not_matter(case, seed):
    p, y = case
    order = np.random.default_rng(seed).permutation(len(y))
    assert metrics.evaluate(p[order], y[order]).as_dict() == pytest.approx(metrics.evaluate(p, y).as_dict(), abs=1e-12)


@quick
@given(cases())
def test_torch_and_numpy_agree(case):
    p, y = case
    expected = metrics.evaluate(p, y)
    tensor = torch.from_numpy(p).requires_grad_()
    assert metrics.evaluate(tensor, torch.from_numpy(y)) == expected
    assert metrics.evaluate(tensor, torch.from_numpy(y.astype(np.uint8))) == expected
    assert metrics.evaluate(p.tolist(), y.tolist()) == metrics.evaluate(p.astype(np.float64), y)
