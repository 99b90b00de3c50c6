"""The metrics as functions of how often each image was drawn, for fast resampling.

A resample of N images out of N is given by its weights (N,): how often each image was drawn. A statistic
takes the weights (R, N) of R resamples and returns the metric of each, (R,). Weights of one give the metric
itself.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from otpt.errors import OtptError, unknown
from otpt.metrics._inputs import BoolArray, FloatArray, IntArray, Statistic, of_all
from otpt.metrics.calibration.binning import bin_index, groups
from otpt.metrics.calibration.calibration_error import ece_statistic
from otpt.metrics.calibration.classwise import sce_statistic
from otpt.metrics.calibration.classwise_adaptive import ace_statistic
from otpt.metrics.calibration.debiased import debiased_statistic
from otpt.metrics.calibration.ks import ks_statistic
from otpt.metrics.calibration.smooth import smooth_statistic
from otpt.metrics.f1 import macro_f1_statistic
from otpt.metrics.ranking import auroc_statistic, fpr95_statistic
from otpt.metrics.scores import brier_values, confident, entropy_values, hits, nll_values, top_label_brier_values
from otpt.metrics.selective import (
    aurc_statistic,
    coverage_at_risk_statistic,
    excess_aurc_statistic,
    selective_accuracy_statistic,
)

_WITHOUT_BINS = {
    "smooth_ece": smooth_statistic,
    "ks_error": ks_statistic,
    "aurc": aurc_statistic,
    "excess_aurc": excess_aurc_statistic,
    "auroc": auroc_statistic,
    "fpr95": fpr95_statistic,
    "selective_accuracy": selective_accuracy_statistic,
    "coverage_at_risk": coverage_at_risk_statistic,
}
_MEANS = ("accuracy", "confidence", "overconfidence", "top_label_brier")
OF_CONFIDENCE = (*_MEANS, "ece", "debiased_ece", "adaptive_ece", "mce", *_WITHOUT_BINS)
OF_PROBABILITIES = (
    *OF_CONFIDENCE,
    "top5_accuracy",
    "macro_f1",
    "sce",
    "classwise_adaptive_ece",
    "brier",
    "nll",
    "entropy",
)


def statistic_of_confidence(metric: str, confidence: FloatArray, correct: BoolArray, bins: int, side: str) -> Statistic:
    """The statistic of a metric that needs no more than confidence (N,) and correct (N,)."""
    if metric == "accuracy":
        return mean_statistic(correct.astype(np.float64))
    if metric == "confidence":
        return mean_statistic(confidence)
    if metric == "overconfidence":
        return mean_statistic(confidence - correct)
    if metric == "top_label_brier":
        return mean_statistic(top_label_brier_values(confidence, correct))
    if metric == "ece":
        return ece_statistic(confidence, correct, bins, side)
    if metric == "debiased_ece":
        return debiased_statistic(confidence, correct, bins, side)
    if metric == "mce":
        return _mce(confidence, correct, bins, side)
    if metric == "adaptive_ece":
        return _adaptive_ece(confidence, correct, bins)
    if metric in _WITHOUT_BINS:
        return _WITHOUT_BINS[metric](confidence, correct)
    if metric in OF_PROBABILITIES:
        raise OtptError(
            f"Metric {metric!r} needs probabilities and labels; "
            f"confidence and correct suffice for: {', '.join(OF_CONFIDENCE)}."
        )
    raise unknown("metric", metric, OF_CONFIDENCE)


def further_values(confidence: FloatArray, correct: BoolArray, bins: int, side: str) -> dict[str, Any]:
    """The metrics of ``Metrics`` that are written as statistics only, by name; None where one is not defined."""
    names = ("debiased_ece", *_WITHOUT_BINS)
    values = {
        name: of_all(statistic_of_confidence(name, confidence, correct, bins, side), len(correct)) for name in names
    }
    return {name: None if np.isnan(value) else value for name, value in values.items()}


def statistic_of_probabilities(
    metric: str, p: npt.NDArray[Any], y: IntArray, bins: int, side: str, floor: float
) -> Statistic:
    """The statistic of any metric, from checked probabilities (N, C) and labels (N,)."""
    if metric in OF_CONFIDENCE:
        return statistic_of_confidence(metric, *confident(p, y), bins, side)
    if metric == "top5_accuracy":
        return mean_statistic(hits(p, y, 5))
    if metric == "macro_f1":
        return macro_f1_statistic(p.argmax(axis=1), y)
    if metric == "classwise_adaptive_ece":
        return ace_statistic(p, y, bins)
    if metric == "brier":
        return mean_statistic(brier_values(p, y))
    if metric == "nll":
        return mean_statistic(nll_values(p, y, floor))
    if metric == "entropy":
        return mean_statistic(entropy_values(p))
    if metric == "sce":
        return sce_statistic(p, y, bins, side)
    raise unknown("metric", metric, OF_PROBABILITIES)


def mean_statistic(values: FloatArray) -> Statistic:
    """Of a metric that is the mean of one number per image, (N,)."""
    return lambda weights: weights @ values / len(values)


def _mce(confidence: FloatArray, correct: BoolArray, bins: int, side: str) -> Statistic:
    index = bin_index(confidence, bins, side)
    surplus = np.where(index >= 0, confidence - correct, 0.0)
    order, starts = groups(index)

    def value(weights: FloatArray) -> FloatArray:
        drawn = weights[:, order]
        counts = np.add.reduceat(drawn, starts, axis=1)
        sums = np.abs(np.add.reduceat(drawn * surplus[order], starts, axis=1))
        # a bin none of whose images was drawn has sum 0 and must stay out of the maximum
        return np.asarray(np.max(sums / np.maximum(counts, 1.0), axis=1))

    return value


def _adaptive_ece(confidence: FloatArray, correct: BoolArray, bins: int) -> Statistic:
    n = len(confidence)
    order = np.argsort(confidence, kind="stable")
    ordered = confidence[order]
    surplus = ordered - correct[order]
    last_of_tie = np.searchsorted(ordered, ordered, side="right") - 1
    targets = (np.arange(1, bins + 1) * n + bins - 1) // bins  # ⌈mN/M⌉

    def value(weights: FloatArray) -> FloatArray:
        drawn = weights[:, order]
        ranks = np.cumsum(drawn, axis=1)
        sums = np.cumsum(drawn * surplus, axis=1)
        ends = np.stack([last_of_tie[np.searchsorted(row, targets, side="left")] for row in ranks])  # (R, M)
        of_bins = np.diff(np.take_along_axis(sums, ends, axis=1), axis=1, prepend=0.0)
        return np.asarray(np.abs(of_bins).sum(axis=1) / n)

    return value
