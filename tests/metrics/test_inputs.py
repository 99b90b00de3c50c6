"""What the metrics refuse, and how they say it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from otpt import metrics
from otpt.errors import OtptError

P = np.array([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1]])
Y = np.array([0, 1])

BAD_PROBABILITIES = [
    (P[None], Y, r"\(1, 2, 3\)"),
    (np.zeros((0, 3)), np.zeros(0, dtype=int), r"\(0, 3\)"),
    ([[0.5, 0.5], [1.0]], Y, "unequal length"),
    (np.eye(3, dtype=int)[:2], Y, "int"),
    (P, Y[:1], r"labels .*\(2\).* \(1,\)"),
    (P, Y[:, None], r"\(2, 1\)"),
    (P, Y.astype(float), "float64"),
    (P, [0, 3], "from 0 to 2, but got 3 at position 1"),
    (P, [-1, 1], "-1 at position 0"),
    (np.array([P[0], [np.nan, 0.5, 0.5]]), Y, "row 1 .*nan"),
    (np.array([P[0], [np.inf, 0.5, 0.5]]), Y, "row 1 .*inf"),
    (np.array([P[0], [-0.1, 0.6, 0.5]]), Y, "row 1 .*-0.1"),
    (100 * P, Y, "row 0 .*100"),
]

OF_PROBABILITIES = [
    metrics.accuracy,
    metrics.expected_calibration_error,
    metrics.adaptive_calibration_error,
    metrics.maximum_calibration_error,
    metrics.classwise_calibration_error,
    metrics.brier_score,
    metrics.negative_log_likelihood,
    metrics.overconfidence,
    metrics.mean_entropy,
    metrics.confidence_and_correct,
    metrics.reliability_bins,
    metrics.evaluate,
    lambda p, y: metrics.bootstrap("ece", p, y),
    lambda p, y: metrics.bootstrap_difference("ece", (P, Y), (p, y)),
]


@pytest.mark.parametrize("function", OF_PROBABILITIES)
def test_bad_probabilities_and_labels(function):
    for p, y, message in BAD_PROBABILITIES:
        with pytest.raises(OtptError, match=message):
            function(p, y)


def test_the_row_named_is_the_row_meant_across_chunks():
    p = np.full((2500, 1000), 1 / 1000)  # about a thousand rows at a time
    p[2400, 0] = 0.501
    with pytest.raises(OtptError, match=r"row 2400 .*1\.5"):
        metrics.accuracy(p, np.zeros(2500, dtype=int))


@pytest.mark.parametrize(
    ("confidence", "correct", "message"),
    [
        ([], [], r"\(0,\)"),
        (["high"], [1], "<U4"),
        ([0.5, 1.5], [1, 1], "1.5 at position 1"),
        ([-0.5], [1], "-0.5"),
        ([0.5, float("nan")], [1, 1], "nan at position 1"),
        ([0.5], [1, 0], r"\(2,\)"),
        ([0.5], [2], "zeros and ones"),
        ([0.5], ["yes"], "<U3"),
    ],
)
def test_bad_confidence(confidence, correct, message):
    for function in (
        metrics.ece,
        metrics.mce,
        metrics.adaptive_ece,
        metrics.reliability_bins,
        lambda c, r: metrics.bootstrap("ece", c, r),
    ):
        with pytest.raises(OtptError, match=message):
            function(confidence, correct)


@pytest.mark.parametrize("n_bins", [0, -1, 2.5, True, "20"])
def test_bad_bins(n_bins):
    for function in (metrics.ece, metrics.adaptive_ece, metrics.sce, metrics.reliability_bins, metrics.evaluate):
        with pytest.raises(OtptError, match=f"n_bins .*{n_bins}"):
            function(P, Y, n_bins=n_bins)


def test_bad_options():
    with pytest.raises(OtptError, match=r"expected side 'right' .* but got 'centre'"):
        metrics.evaluate(P, Y, side="centre")
    with pytest.raises(OtptError, match="expected top as an integer >= 1, but got 0"):
        metrics.accuracy(P, Y, top=0)
    for floor in (0.0, 1.0, float("nan")):
        with pytest.raises(OtptError, match="expected floor between 0 and 1"):
            metrics.negative_log_likelihood(P, Y, floor=floor)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("classes", [2, 10, 1000])
def test_rounded_rows_are_accepted(dtype, classes):
    generator = torch.Generator().manual_seed(classes)
    logits = torch.randn(200, classes, generator=generator) * 3
    p = torch.softmax(logits, dim=1).to(dtype)
    labels = torch.randint(0, classes, (200,), generator=generator)
    assert metrics.evaluate(p, labels) == metrics.evaluate(p.float().numpy(), labels.numpy())


def test_a_maximum_rounded_above_one_is_not_lost():
    p = np.array([[1.0 + 1e-6, 0.0]])
    assert metrics.expected_calibration_error(p, [1]) == 1.0
    assert metrics.classwise_calibration_error(p, [1]) == pytest.approx(0.5)  # the zero is in no bin
    assert metrics.negative_log_likelihood(p, [0]) == 0.0
    assert metrics.mean_entropy(p, [0]) == 0.0
