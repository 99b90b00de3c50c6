"""Metrics of the order of confidences: misclassification AUROC, FPR95, and selective prediction.

Selective prediction abstains below a confidence threshold. With the confidences sorted, largest first, the coverage n/N
is the fraction answered and the risk e_n/n the fraction of errors among them. Where confidences tie, e_n is its mean
over all orders of the tied predictions, so no value depends on the order of the images.
"""

from __future__ import annotations

import numpy as np

from otpt.arguments import checked
from otpt.errors import OtptError
from otpt.metrics.inputs import Confidences, FloatArray, Values, sums_by
from otpt.metrics.table import METRICS, metric, rows_of


def _right_and_wrong(rows: Confidences, weights: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Count correct and wrong predictions for each distinct confidence, largest first: two arrays (R, G)."""
    _, right = sums_by(-rows.confidences, weights * rows.correct)
    return right, sums_by(-rows.confidences, weights)[1] - right


def _fraction(numerator: FloatArray, denominator: FloatArray) -> FloatArray:
    return np.divide(numerator, denominator, out=np.full(len(numerator), np.nan), where=denominator > 0)


@metric("auroc", "AUROC", best="higher")
def misclassification_auroc(rows: Confidences, weights: FloatArray) -> FloatArray:
    """AUROC = P(confidence of a correct prediction > confidence of a wrong one), ties counted half; 1 is best.

    nan where no prediction, or every prediction, is correct.

    >>> misclassification_auroc([0.9, 0.6, 0.6], [1, 1, 0])
    0.75
    """
    right, wrong = _right_and_wrong(rows, weights)
    below = wrong.sum(axis=1, keepdims=True) - np.cumsum(wrong, axis=1)
    won = (right * (below + wrong / 2.0)).sum(axis=1)
    return _fraction(won, right.sum(axis=1) * wrong.sum(axis=1))


@metric("fpr95", "FPR95")
def fpr95(rows: Confidences, weights: FloatArray) -> FloatArray:
    """Fraction of the wrong predictions with confidence ≥ t, where t accepts 95 % of the correct ones; 0 is best.

    t is the largest confidence with at least 95 % of the correct predictions at or above it; nan as for the AUROC.

    >>> fpr95([0.9, 0.8, 0.7, 0.3], [1, 0, 1, 0])
    0.5
    """
    right, wrong = _right_and_wrong(rows, weights)
    accepted, passed = np.cumsum(right, axis=1), np.cumsum(wrong, axis=1)
    at = np.argmax(20.0 * accepted >= 19.0 * accepted[:, -1:], axis=1)  # integers avoid rounding of 95 %
    above = np.take_along_axis(passed, at[:, None], axis=1)[:, 0]
    return _fraction(np.where(accepted[:, -1] > 0, above, np.nan), passed[:, -1])


@metric("aurc", "AURC")
def aurc(rows: Confidences, weights: FloatArray) -> FloatArray:
    """AURC, the area under the risk–coverage curve: (1/N) Σ_n e_n/n; 0 is best.

    >>> round(aurc([0.9, 0.8, 0.7, 0.6], [1, 0, 1, 1]), 12)
    0.270833333333
    """
    # A group of k tied predictions, w of them wrong, after a others, e of them wrong, adds
    #   Σ_{j=1…k} (e + w·j/k)/(a + j) = w + (e − a·w/k)·(H_{a+k} − H_a),   H_n = Σ_{i≤n} 1/i.
    n = len(rows.correct)
    harmonic = np.concatenate([[0.0], np.cumsum(1.0 / np.arange(1, n + 1))])
    right, wrong = _right_and_wrong(rows, weights)
    tied = right + wrong
    after = np.cumsum(tied, axis=1).astype(np.int64)
    before = after - tied.astype(np.int64)
    errors = np.cumsum(wrong, axis=1) - wrong
    areas = wrong + (errors - before * wrong / np.maximum(tied, 1.0)) * (harmonic[after] - harmonic[before])
    return np.asarray(areas.sum(axis=1) / n)


@metric("excess_aurc", "E-AURC")
def excess_aurc(rows: Confidences, weights: FloatArray) -> FloatArray:
    """E-AURC = AURC − (r + (1 − r)·ln(1 − r)) with the error rate r, the excess over a perfect order.

    The bracket is the area for many images if all wrong predictions come last. Never negative; for few images a perfect
    order is slightly above 0.
    """
    accuracy = METRICS["accuracy"].compute(rows, weights)
    logs = np.log(accuracy, out=np.zeros_like(accuracy), where=accuracy > 0)  # 0·ln 0 = 0
    return np.maximum(METRICS["aurc"].compute(rows, weights) - (1.0 - accuracy + accuracy * logs), 0.0)


@metric("selective_accuracy", "accuracy@80", short="Acc.@80", best="higher")
def selective_accuracy(rows: Confidences, weights: FloatArray, *, coverage: float = 0.8) -> FloatArray:
    """Accuracy of the ⌈coverage·N⌉ most confident predictions.

    >>> selective_accuracy([0.9, 0.8, 0.7, 0.6], [1, 1, 1, 0], coverage=0.75)
    1.0
    """
    if not 0.0 < coverage <= 1.0:
        raise OtptError(f"expected coverage above 0 and up to 1, but got {coverage!r}; such as 0.8.")
    answered = max(1, int(np.ceil(round(coverage * len(rows.correct), 9))))  # 0.07·100 is 7.000000000000001
    right, wrong = _right_and_wrong(rows, weights)
    tied = right + wrong
    taken = np.clip(answered - (np.cumsum(tied, axis=1) - tied), 0.0, tied)
    return np.asarray((taken * right / np.maximum(tied, 1.0)).sum(axis=1) / answered)


@metric("coverage_at_risk", "coverage@5", short="Cov.@5", best="higher")
def coverage_at_risk(rows: Confidences, weights: FloatArray, *, risk: float = 0.05) -> FloatArray:
    """Largest coverage of a confidence threshold with a risk of at most ``risk``, or 0.

    >>> coverage_at_risk([0.9, 0.8, 0.7, 0.6], [1, 1, 0, 0], risk=0.4)
    0.75
    """
    if not 0.0 <= risk < 1.0:
        raise OtptError(f"expected risk from 0 to below 1, but got {risk!r}; such as 0.05.")
    right, wrong = _right_and_wrong(rows, weights)
    answered, errors = np.cumsum(right + wrong, axis=1), np.cumsum(wrong, axis=1)
    allowed = errors <= np.round(risk * answered, 9)  # 0.07·100 is 7.000000000000001, 0.29·100 below 29
    return np.asarray(np.max(np.where(allowed, answered, 0.0), axis=1) / len(rows.correct))


@checked
def accuracy_above(confidence: Values, correct: Values, *, threshold: float) -> tuple[float, float]:
    """Return the accuracy and the fraction of predictions with confidence ≥ ``threshold``; (nan, 0) if none.

    >>> accuracy_above([0.9, 0.8, 0.7, 0.6], [1, 1, 0, 0], threshold=0.7)
    (0.6666666666666666, 0.75)
    """
    rows = rows_of(confidence, correct)
    answered = rows.confidences >= threshold
    accuracy = float(rows.correct[answered].mean()) if answered.any() else float("nan")
    return accuracy, float(answered.mean())
