"""Selective prediction: only the surest predictions are answered, and the others are left to somebody else.

With the confidences sorted, largest first, the coverage n/N is the fraction that is answered and the risk e_n/n the
fraction of wrong ones among them. Where confidences tie, e_n is its mean over all orders of the tied predictions, so no
value depends on the order of the images.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from otpt.errors import OtptError
from otpt.metrics._inputs import BoolArray, FloatArray, Statistic, check_confidence, of_all
from otpt.metrics.ranking import right_and_wrong

if TYPE_CHECKING:
    from otpt.metrics._inputs import Values

COVERAGE = 0.8
"""Coverage of the selective accuracy in ``Metrics``."""

RISK = 0.05
"""Risk of the coverage in ``Metrics``."""


def aurc(confidence: Values, correct: Values) -> float:
    """AURC, the area under the risk–coverage curve: (1/N) Σ_n e_n/n; 0 is best.

    >>> round(aurc([0.9, 0.8, 0.7, 0.6], [1, 0, 1, 1]), 12)
    0.270833333333
    """
    return of_all(aurc_statistic(*check_confidence(confidence, correct)), len(confidence))


def excess_aurc(confidence: Values, correct: Values) -> float:
    """E-AURC = AURC − (r + (1 − r)·ln(1 − r)) with the error rate r: what a perfect order would save.

    The bracket is the area for many images if all wrong predictions come last. Never negative; for few images a perfect
    order is slightly above 0.
    """
    return of_all(excess_aurc_statistic(*check_confidence(confidence, correct)), len(confidence))


def selective_accuracy(confidence: Values, correct: Values, *, coverage: float = COVERAGE) -> float:
    """Accuracy of the ⌈coverage·N⌉ surest predictions.

    >>> selective_accuracy([0.9, 0.8, 0.7, 0.6], [1, 1, 1, 0], coverage=0.75)
    1.0
    """
    if not 0.0 < coverage <= 1.0:
        raise OtptError(f"expected coverage above 0 and up to 1, but got {coverage!r}; such as 0.8.")
    return of_all(selective_accuracy_statistic(*check_confidence(confidence, correct), coverage), len(confidence))


def coverage_at_risk(confidence: Values, correct: Values, *, risk: float = RISK) -> float:
    """Largest coverage of a threshold on the confidence whose risk is not above ``risk``; 0 if there is none.

    >>> coverage_at_risk([0.9, 0.8, 0.7, 0.6], [1, 1, 0, 0], risk=0.4)
    0.75
    """
    if not 0.0 <= risk < 1.0:
        raise OtptError(f"expected risk from 0 to below 1, but got {risk!r}; such as 0.05.")
    return of_all(coverage_at_risk_statistic(*check_confidence(confidence, correct), risk), len(confidence))


def accuracy_above(confidence: Values, correct: Values, *, threshold: float) -> tuple[float, float]:
    """Accuracy of the predictions with confidence ≥ ``threshold``, and their fraction; nan and 0 without any.

    >>> accuracy_above([0.9, 0.8, 0.7, 0.6], [1, 1, 0, 0], threshold=0.7)
    (0.6666666666666666, 0.75)
    """
    c, right = check_confidence(confidence, correct)
    answered = c >= threshold
    return float(right[answered].mean()) if answered.any() else float("nan"), float(answered.mean())


def aurc_statistic(confidence: FloatArray, correct: BoolArray) -> Statistic:
    """AURC as a function of weights, from checked input.

    A group of k tied predictions, w of them wrong, after a others, e of them wrong, adds

        Σ_{j=1…k} (e + w·j/k)/(a + j) = w + (e − a·w/k)·(H_{a+k} − H_a),   H_n = Σ_{i≤n} 1/i.
    """
    counts = right_and_wrong(confidence, correct)
    n = len(confidence)
    harmonic = np.concatenate([[0.0], np.cumsum(1.0 / np.arange(1, n + 1))])

    def value(weights: FloatArray) -> FloatArray:
        right, wrong = counts(weights)
        tied = right + wrong
        after = np.cumsum(tied, axis=1).astype(np.int64)
        before = after - tied.astype(np.int64)
        errors = np.cumsum(wrong, axis=1) - wrong
        each = wrong + (errors - before * wrong / np.maximum(tied, 1.0)) * (harmonic[after] - harmonic[before])
        return np.asarray(each.sum(axis=1) / n)

    return value


def excess_aurc_statistic(confidence: FloatArray, correct: BoolArray) -> Statistic:
    """E-AURC as a function of weights, from checked input."""
    area = aurc_statistic(confidence, correct)
    right = correct.astype(np.float64)

    def value(weights: FloatArray) -> FloatArray:
        accuracy = (weights * right).sum(axis=1) / len(right)
        logs = np.log(accuracy, out=np.zeros_like(accuracy), where=accuracy > 0)  # 0·ln 0 = 0
        return np.asarray(np.maximum(area(weights) - (1.0 - accuracy + accuracy * logs), 0.0))

    return value


def selective_accuracy_statistic(confidence: FloatArray, correct: BoolArray, coverage: float = COVERAGE) -> Statistic:
    """Selective accuracy as a function of weights, from checked input."""
    counts = right_and_wrong(confidence, correct)
    answered = max(1, int(np.ceil(round(coverage * len(confidence), 9))))  # 0.07·100 is 7.000000000000001

    def value(weights: FloatArray) -> FloatArray:
        right, wrong = counts(weights)
        tied = right + wrong
        before = np.cumsum(tied, axis=1) - tied
        taken = np.clip(answered - before, 0.0, tied)
        return np.asarray((taken * right / np.maximum(tied, 1.0)).sum(axis=1) / answered)

    return value


def coverage_at_risk_statistic(confidence: FloatArray, correct: BoolArray, risk: float = RISK) -> Statistic:
    """Coverage at a risk as a function of weights, from checked input."""
    counts = right_and_wrong(confidence, correct)

    def value(weights: FloatArray) -> FloatArray:
        right, wrong = counts(weights)
        answered, errors = np.cumsum(right + wrong, axis=1), np.cumsum(wrong, axis=1)
        allowed = errors <= np.round(risk * answered, 9)  # 0.07·100 is 7.000000000000001, 0.29·100 below 29
        return np.asarray(np.max(np.where(allowed, answered, 0.0), axis=1) / len(confidence))

    return value
