"""Calibration errors: ECE, adaptive ECE, MCE, and SCE (class-wise ECE).

All return floats in [0, 1]; published tables print them times 100. The ``…_from_confidence`` forms take the
confidence (N,) and whether the prediction was correct (N,), instead of probabilities and labels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from otpt.metrics._inputs import (
    BoolArray,
    FloatArray,
    Statistic,
    check_bins,
    check_confidence,
    check_probabilities,
)
from otpt.metrics.calibration.binning import bin_index, binned, groups
from otpt.metrics.calibration.classwise import sce
from otpt.metrics.scores import confidence_and_correct

if TYPE_CHECKING:
    from otpt.metrics._inputs import Values


def expected_calibration_error(probabilities: Values, labels: Values, *, bins: int = 20, side: str = "right") -> float:
    """ECE = Σ_m (n_m/N)·|acc_m − conf_m| over ``bins`` equal-width bins of the confidence.

    ``side="right"``, the convention of TPT, C-TPT and O-TPT, makes bins (lo, hi] with float32 edges; a
    confidence of exactly 0 is in none. ``side="left"`` makes them [lo, hi), with 1 in the last.

    >>> round(expected_calibration_error([[0.9, 0.1], [0.8, 0.2]], [0, 1]), 12)
    0.45
    """
    check_bins(bins, side)
    return ece(*confidence_and_correct(probabilities, labels), bins, side)


def ece_from_confidence(confidence: Values, correct: Values, *, bins: int = 20, side: str = "right") -> float:
    """ECE from confidence (N,) and correct (N,); see ``expected_calibration_error``.

    >>> round(ece_from_confidence([0.9, 0.8], [True, False]), 12)
    0.45
    """
    check_bins(bins, side)
    return ece(*check_confidence(confidence, correct), bins, side)


def maximum_calibration_error(probabilities: Values, labels: Values, *, bins: int = 20, side: str = "right") -> float:
    """MCE = max_m |acc_m − conf_m| over the bins that hold an image, which are those of the ECE."""
    check_bins(bins, side)
    return mce(*confidence_and_correct(probabilities, labels), bins, side)


def mce_from_confidence(confidence: Values, correct: Values, *, bins: int = 20, side: str = "right") -> float:
    """MCE from confidence (N,) and correct (N,).

    >>> round(mce_from_confidence([0.9, 0.8], [True, False]), 12)
    0.8
    """
    check_bins(bins, side)
    return mce(*check_confidence(confidence, correct), bins, side)


def adaptive_calibration_error(probabilities: Values, labels: Values, *, bins: int = 20) -> float:
    """Adaptive ECE: the formula of the ECE over bins of equal mass.

    With the confidences sorted, c_(1) ≤ … ≤ c_(N), and M bins, bin m is (h_{m−1}, h_m] where h_m = c_(⌈mN/M⌉)
    and h_0 = −∞. Every image is in exactly one bin; without ties the bins differ by at most one image;
    ties are never split, so the value does not depend on the order of the images.
    """
    check_bins(bins)
    return adaptive_ece(*confidence_and_correct(probabilities, labels), bins)


def adaptive_ece_from_confidence(confidence: Values, correct: Values, *, bins: int = 20) -> float:
    """Adaptive ECE from confidence (N,) and correct (N,).

    >>> round(adaptive_ece_from_confidence([0.6, 0.7, 0.8, 0.9], [1, 1, 0, 1], bins=2), 12)
    0.35
    """
    check_bins(bins)
    return adaptive_ece(*check_confidence(confidence, correct), bins)


def classwise_calibration_error(probabilities: Values, labels: Values, *, bins: int = 20, side: str = "right") -> float:
    """SCE = (1/C) Σ_c Σ_m (n_mc/N)·|freq_mc − conf_mc|, the static or class-wise calibration error.

    For each class c all N probabilities p_nc are binned, not only those of predicted images; freq_mc is the
    fraction of label c in bin m and conf_mc the mean p_nc there. C counts the columns, whether or not a class
    occurs as a label.
    """
    check_bins(bins, side)
    return sce(*check_probabilities(probabilities, labels), bins, side)


def ece(confidence: FloatArray, correct: BoolArray, bins: int, side: str) -> float:
    """ECE of checked input."""
    r = binned(confidence, correct, bins, side)
    filled = r.counts > 0
    return float(np.sum(r.counts[filled] * np.abs(r.gaps[filled])) / r.total)


def ece_statistic(confidence: FloatArray, correct: BoolArray, bins: int, side: str) -> Statistic:
    """ECE as a function of weights, from checked input."""
    index = bin_index(confidence, bins, side)
    surplus = np.where(index >= 0, confidence - correct, 0.0)
    order, starts = groups(index)

    def value(weights: FloatArray) -> FloatArray:
        sums = np.add.reduceat(weights[:, order] * surplus[order], starts, axis=1)  # (R, filled bins)
        return np.asarray(np.abs(sums).sum(axis=1) / len(surplus))

    return value


def mce(confidence: FloatArray, correct: BoolArray, bins: int, side: str) -> float:
    """MCE of checked input; 0 if every confidence is in no bin."""
    r = binned(confidence, correct, bins, side)
    return float(np.max(np.abs(r.gaps[r.counts > 0]), initial=0.0))


def adaptive_ece(confidence: FloatArray, correct: BoolArray, bins: int) -> float:
    """Adaptive ECE of checked input."""
    n = len(confidence)
    ends = np.sort(confidence)[(np.arange(1, bins + 1) * n + bins - 1) // bins - 1]  # h_1 … h_M
    index = np.searchsorted(ends, confidence, side="left")
    return float(np.abs(np.bincount(index, weights=correct - confidence, minlength=bins)).sum() / n)
