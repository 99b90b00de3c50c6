"""Metrics of the order of confidences, KS, top-label Brier and macro F1: reference values, literal loops, scikit-learn.

Values for tied confidences are compared with the mean over all orders, one permutation after the other.
"""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise, permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import f1_score, roc_auc_score

from otpt import metrics

quick = settings(max_examples=60, deadline=None, database=None, derandomize=True)

CONFIDENCE = (0.05, 0.0501, 0.51, 0.55, 0.62, 0.63, 0.99, 1.0)
CORRECT = (0, 1, 1, 0, 1, 1, 1, 0)
REFERENCE = {
    metrics.aurc: 0.434672619048,
    metrics.excess_aurc: 0.353424887326,
    metrics.misclassification_auroc: 0.533333333333,
    metrics.fpr95: 0.666666666667,
    metrics.ks_calibration_error: 0.1999875,
    metrics.top_label_brier_score: 0.341101251250,
}


@st.composite
def answers(draw, most=30):
    """(confidence, correct) with many ties."""
    n = draw(st.integers(1, most))
    levels = draw(st.sampled_from([1, 3, 10, 1000]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return rng.integers(0, levels + 1, n) / levels, rng.random(n) < draw(st.sampled_from([0.0, 0.3, 0.8, 1.0]))


def orders(confidence):
    """All orders of the images by falling confidence: tied ones in every order."""
    for order in permutations(range(len(confidence))):
        if all(confidence[a] >= confidence[b] for a, b in pairwise(order)):
            yield order


def loop_aurc(confidence, correct):
    values = []
    for order in orders(confidence):
        wrong = [not correct[i] for i in order]
        values.append(sum(sum(wrong[:n]) / n for n in range(1, len(wrong) + 1)) / len(wrong))
    return sum(values) / len(values)


def loop_auroc(confidence, correct):
    pairs = [(a > b) + (a == b) / 2 for a in confidence[correct] for b in confidence[~correct]]
    return sum(pairs) / len(pairs) if pairs else math.nan


def loop_fpr95(confidence, correct):
    right, wrong = list(confidence[correct]), list(confidence[~correct])
    if not right or not wrong:
        return math.nan
    t = max(t for t in confidence if Fraction(sum(c >= t for c in right), len(right)) >= Fraction(95, 100))
    return sum(c >= t for c in wrong) / len(wrong)


def loop_ks(confidence, correct):
    return max(abs(sum(c - r for c, r in zip(confidence, correct, strict=True) if c <= t)) for t in confidence) / len(
        confidence
    )


@pytest.mark.parametrize("metric", REFERENCE)
def test_reference_values(metric):
    assert metric(CONFIDENCE, CORRECT) == pytest.approx(REFERENCE[metric], abs=1e-12)
    backwards = metric(CONFIDENCE[::-1], CORRECT[::-1])
    assert backwards == pytest.approx(REFERENCE[metric], abs=1e-12)


@quick
@given(answers(most=6))
def test_ties_count_as_the_mean_over_their_orders(case):
    confidence, correct = case
    assert metrics.aurc(*case) == pytest.approx(loop_aurc(*case), abs=1e-12)
    for tenths in range(1, 11):
        first = -(-tenths * len(correct) // 10)
        expected = np.mean([np.mean([correct[i] for i in order[:first]]) for order in orders(confidence)])
        assert metrics.selective_accuracy(*case, coverage=tenths / 10) == pytest.approx(expected, abs=1e-12)


@quick
@given(answers())
def test_against_loops(case):
    confidence, correct = case
    assert metrics.misclassification_auroc(*case) == pytest.approx(loop_auroc(*case), abs=1e-12, nan_ok=True)
    assert metrics.fpr95(*case) == pytest.approx(loop_fpr95(*case), abs=1e-12, nan_ok=True)
    assert metrics.ks_calibration_error(*case) == pytest.approx(loop_ks(*case), abs=1e-12)
    brier = sum((c - r) ** 2 for c, r in zip(confidence, correct, strict=True)) / len(correct)
    assert metrics.top_label_brier_score(*case) == pytest.approx(brier, abs=1e-12)
    wrong_rate = Fraction(int((~correct).sum()), len(correct))
    best = float(wrong_rate) + (float(1 - wrong_rate) * math.log(1 - wrong_rate) if wrong_rate < 1 else 0.0)
    assert metrics.excess_aurc(*case) == pytest.approx(metrics.aurc(*case) - best, abs=1e-12)
    assert metrics.excess_aurc(*case) >= 0
    for percent in (0, 5, 10, 29, 50):
        covered = [Fraction(0)]
        for t in confidence:
            answered = correct[confidence >= t]
            if Fraction(int((~answered).sum()), len(answered)) <= Fraction(percent, 100):
                covered.append(Fraction(len(answered), len(correct)))
        assert metrics.coverage_at_risk(*case, risk=percent / 100) == pytest.approx(float(max(covered)), abs=1e-12)
    for t in (0.0, 0.5, confidence[0]):
        accuracy, coverage = metrics.accuracy_above(*case, threshold=t)
        expected = [r for c, r in zip(confidence, correct, strict=True) if c >= t]
        assert coverage == pytest.approx(len(expected) / len(correct))
        assert accuracy == pytest.approx(sum(expected) / len(expected) if expected else math.nan, nan_ok=True)


def test_against_scikit_learn():
    rng = np.random.default_rng(1)
    for decimals in (1, 6):
        confidence = np.round(rng.random(500), decimals)
        correct = rng.random(500) < confidence
        found = metrics.misclassification_auroc(confidence, correct)
        assert found == pytest.approx(roc_auc_score(correct, confidence), abs=1e-12)
    for classes in (2, 5, 40):
        labels, predictions = rng.integers(0, classes, 60), rng.integers(0, classes, 60)
        theirs = f1_score(labels, predictions, labels=np.unique(labels), average="macro", zero_division=0)
        assert metrics.macro_f1(predictions, labels) == pytest.approx(theirs, abs=1e-12)


def test_all_right_or_all_wrong_has_no_auroc():
    p = np.array([[0.9, 0.1], [0.8, 0.2]])
    for labels, aurc in (([0, 0], 0.0), ([1, 1], 1.0)):
        found = metrics.evaluate(p, labels)
        assert (found.auroc, found.fpr95, found.aurc) == (None, None, aurc)
        assert found.as_dict()["auroc"] is None
        assert found.as_percent()["fpr95"] == "–"
        interval = metrics.bootstrap("auroc", p, labels, resamples=10)
        assert (interval.resamples, math.isnan(interval.low)) == (0, True)
    # with one wrong of three, 8/27 of the resamples have none of it and are left out; so are those that have only it
    interval = metrics.bootstrap("auroc", [0.9, 0.8, 0.7], [1, 1, 0], resamples=400)
    assert interval.resamples == pytest.approx(400 * (1 - 9 / 27), abs=40)
