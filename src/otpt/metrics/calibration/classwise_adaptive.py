"""Class-wise adaptive calibration error: the ACE of Nixon et al., called AECE by CoTS. It needs all probabilities."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from otpt.metrics._inputs import FloatArray, IntArray, Statistic, check_bins, check_probabilities, of_all
from otpt.metrics.calibration.binning import groups

if TYPE_CHECKING:
    from otpt.metrics._inputs import Values


def classwise_adaptive_calibration_error(probabilities: Values, labels: Values, *, bins: int = 20) -> float:
    """ACE = (1/RC) Σ_c Σ_m |freq_mc − conf_mc| over R bins of equal mass for each class; bins are not weighted.

    The N probabilities of a class are sorted; bin m holds those of the ranks from ⌈(m−1)N/R⌉ + 1 to ⌈mN/R⌉, with the
    mean probability conf_mc and the fraction freq_mc of label c. Equal probabilities share their mean label, so
    the value does not depend on the order of the images. Bins without a rank (N < R) are left out of the mean.

    >>> classwise_adaptive_calibration_error([[0.9, 0.1], [0.6, 0.4]], [0, 0], bins=1)
    0.25
    """
    check_bins(bins)
    p, y = check_probabilities(probabilities, labels)
    return of_all(ace_statistic(p, y, bins), len(y))


def ace_statistic(p: npt.NDArray[Any], y: IntArray, bins: int) -> Statistic:
    """ACE as a function of weights, from checked probabilities (N, C) and labels (N,)."""
    n, classes = p.shape
    ranks = np.unique((np.arange(bins + 1) * n + bins - 1) // bins)  # 0, then ⌈mN/R⌉
    sizes = np.diff(ranks)

    def value(weights: FloatArray) -> FloatArray:
        total = np.zeros(len(weights))
        for c in range(classes):
            column = np.minimum(p[:, c].astype(np.float64), 1.0)
            order, starts = groups(column)
            drawn, surplus = weights[:, order], (column - (y == c))[order]
            ends = np.cumsum(np.add.reduceat(drawn, starts, axis=1), axis=1)
            sums = np.cumsum(np.add.reduceat(drawn * surplus, starts, axis=1), axis=1)
            for row in range(len(weights)):
                reached = np.interp(ranks, np.append(0.0, ends[row]), np.append(0.0, sums[row]))
                total[row] += np.abs(np.diff(reached) / sizes).sum()
        return total / (len(sizes) * classes)

    return value
