"""Whether confidence tells right predictions from wrong ones: AUROC of misclassification, and FPR95.

Both see the order of the confidences alone: neither changes if all are raised or lowered by a rising function. Both
are nan where no prediction, or every prediction, is right.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from otpt.metrics._inputs import BoolArray, FloatArray, Statistic, check_confidence, of_all
from otpt.metrics.calibration.binning import groups

if TYPE_CHECKING:
    from otpt.metrics._inputs import Values


def misclassification_auroc(confidence: Values, correct: Values) -> float:
    """AUROC = P(confidence of a right prediction > confidence of a wrong one), ties counted half; 1 is best.

    >>> misclassification_auroc([0.9, 0.6, 0.6], [1, 1, 0])
    0.75
    """
    return of_all(auroc_statistic(*check_confidence(confidence, correct)), len(confidence))


def fpr95(confidence: Values, correct: Values) -> float:
    """Fraction of the wrong predictions with confidence ≥ t, where t keeps 95 % of the right ones; 0 is best.

    t is the largest confidence with at least 95 % of the right predictions at or above it.

    >>> fpr95([0.9, 0.8, 0.7, 0.3], [1, 0, 1, 0])
    0.5
    """
    return of_all(fpr95_statistic(*check_confidence(confidence, correct)), len(confidence))


def right_and_wrong(
    confidence: FloatArray, correct: BoolArray
) -> Callable[[FloatArray], tuple[FloatArray, FloatArray]]:
    """Weights (R, N) → how many right and how many wrong predictions have each confidence, (R, G), largest first."""
    order, starts = groups(-confidence)
    right = correct[order].astype(np.float64)

    def counts(weights: FloatArray) -> tuple[FloatArray, FloatArray]:
        drawn = weights[:, order]
        hits = np.add.reduceat(drawn * right, starts, axis=1)
        return hits, np.add.reduceat(drawn, starts, axis=1) - hits

    return counts


def auroc_statistic(confidence: FloatArray, correct: BoolArray) -> Statistic:
    """AUROC as a function of weights, from checked input."""
    counts = right_and_wrong(confidence, correct)

    def value(weights: FloatArray) -> FloatArray:
        right, wrong = counts(weights)
        below = wrong.sum(axis=1, keepdims=True) - np.cumsum(wrong, axis=1)
        won = (right * (below + wrong / 2.0)).sum(axis=1)
        return _fraction(won, right.sum(axis=1) * wrong.sum(axis=1))

    return value


def fpr95_statistic(confidence: FloatArray, correct: BoolArray) -> Statistic:
    """FPR95 as a function of weights, from checked input."""
    counts = right_and_wrong(confidence, correct)

    def value(weights: FloatArray) -> FloatArray:
        right, wrong = counts(weights)
        kept = np.cumsum(right, axis=1)
        at = np.argmax(20.0 * kept >= 19.0 * kept[:, -1:], axis=1)  # whole numbers: 95 % without rounding
        passed = np.cumsum(wrong, axis=1)
        found = np.take_along_axis(passed, at[:, None], axis=1)[:, 0]
        return _fraction(np.where(kept[:, -1] > 0, found, np.nan), passed[:, -1])

    return value


def _fraction(numerator: FloatArray, denominator: FloatArray) -> FloatArray:
    return np.divide(numerator, denominator, out=np.full(len(numerator), np.nan), where=denominator > 0)
