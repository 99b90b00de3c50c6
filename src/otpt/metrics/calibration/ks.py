"""KS calibration error: the largest gap of the cumulative confidence and accuracy. It needs no bins."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from otpt.metrics._inputs import BoolArray, FloatArray, Statistic, check_confidence, of_all
from otpt.metrics.calibration.binning import groups

if TYPE_CHECKING:
    from otpt.metrics._inputs import Values


def ks_calibration_error(confidence: Values, correct: Values) -> float:
    """KS = max_n |(1/N) Σ_{i ≤ n} (conf_i − correct_i)|, images by rising confidence, ties together; in [0, 1].

    >>> round(ks_calibration_error([0.9, 0.8, 0.6], [1, 0, 0]), 12)
    0.466666666667
    """
    return of_all(ks_statistic(*check_confidence(confidence, correct)), len(confidence))


def ks_statistic(confidence: FloatArray, correct: BoolArray) -> Statistic:
    """KS as a function of weights, from checked input."""
    order, starts = groups(confidence)
    surplus = (confidence - correct)[order]

    def value(weights: FloatArray) -> FloatArray:
        sums = np.cumsum(np.add.reduceat(weights[:, order] * surplus, starts, axis=1), axis=1)
        return np.asarray(np.max(np.abs(sums), axis=1) / len(surplus))

    return value
