"""The metrics as functions of how often each picture was drawn, for fast resampling.

A resample of N pictures out of N is told by its weights (N,): how often each picture was drawn. A statistic
takes the weights (R, N) of R resamples and returns the metric of each, (R,). Weights of one give the metric
itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from otpt.errors import OtptError, unknown
from otpt.metrics._inputs import BoolArray, FloatArray, IntArray, row_chunks
from otpt.metrics.binning import bin_index
from otpt.metrics.scores import brier_values, confident, entropy_values, hits, nll_values

Statistic: TypeAlias = Callable[[FloatArray], FloatArray]

OF_CONFIDENCE = ("accuracy", "ece", "adaptive_ece", "mce", "confidence", "overconfidence")
OF_PROBABILITIES = (*OF_CONFIDENCE, "top5_accuracy", "sce", "brier", "nll", "entropy")


def statistic_of_confidence(metric: str, confidence: FloatArray, correct: BoolArray, bins: int, side: str) -> Statistic:
    """The statistic of a metric that needs no more than confidence (N,) and correct (N,)."""
    if metric == "accuracy":
        return _mean(correct.astype(np.float64))
    if metric == "confidence":
        return _mean(confidence)
    if metric == "overconfidence":
        return _mean(confidence - correct)
    if metric == "ece":
        return _ece(confidence, correct, bins, side)
    if metric == "mce":
        return _mce(confidence, correct, bins, side)
    if metric == "adaptive_ece":
        return _adaptive_ece(confidence, correct, bins)
    if metric in OF_PROBABILITIES:
        raise OtptError(
            f"Metric {metric!r} needs probabilities and labels; "
            f"confidence and correct suffice for: {', '.join(OF_CONFIDENCE)}."
        )
    raise unknown("metric", metric, OF_CONFIDENCE)


def statistic_of_probabilities(
    metric: str, p: npt.NDArray[Any], y: IntArray, bins: int, side: str, floor: float
) -> Statistic:
    """The statistic of any metric, from checked probabilities (N, C) and labels (N,)."""
    if metric in OF_CONFIDENCE:
        return statistic_of_confidence(metric, *confident(p, y), bins, side)
    if metric == "top5_accuracy":
        return _mean(hits(p, y, 5))
    if metric == "brier":
        return _mean(brier_values(p, y))
    if metric == "nll":
        return _mean(nll_values(p, y, floor))
    if metric == "entropy":
        return _mean(entropy_values(p))
    if metric == "sce":
        return _sce(p, y, bins, side)
    raise unknown("metric", metric, OF_PROBABILITIES)


def _mean(values: FloatArray) -> Statistic:
    return lambda weights: weights @ values / len(values)


def _groups(index: IntArray) -> tuple[IntArray, IntArray]:
    """Order that sorts ``index`` (N,), and where each run of equal numbers starts in it, for ``reduceat``."""
    order = np.argsort(index, kind="stable")
    return order, np.unique(index[order], return_index=True)[1]


def _ece(confidence: FloatArray, correct: BoolArray, bins: int, side: str) -> Statistic:
    index = bin_index(confidence, bins, side)
    surplus = np.where(index >= 0, confidence - correct, 0.0)
    order, starts = _groups(index)

    def value(weights: FloatArray) -> FloatArray:
        sums = np.add.reduceat(weights[:, order] * surplus[order], starts, axis=1)  # (R, filled bins)
        return np.asarray(np.abs(sums).sum(axis=1) / len(surplus))

    return value


def _mce(confidence: FloatArray, correct: BoolArray, bins: int, side: str) -> Statistic:
    index = bin_index(confidence, bins, side)
    surplus = np.where(index >= 0, confidence - correct, 0.0)
    order, starts = _groups(index)

    def value(weights: FloatArray) -> FloatArray:
        drawn = weights[:, order]
        counts = np.add.reduceat(drawn, starts, axis=1)
        sums = np.abs(np.add.reduceat(drawn * surplus[order], starts, axis=1))
        # a bin none of whose pictures was drawn has sum 0 and must stay out of the maximum
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


def _sce(p: npt.NDArray[Any], y: IntArray, bins: int, side: str) -> Statistic:
    """The lowest bin holds nearly all N·C probabilities: its sum is the class's minus the other bins'."""
    n, classes = p.shape
    pictures, cells, surpluses = [], [], []
    for part, rows in row_chunks(p):
        np.minimum(rows, 1.0, out=rows)
        index = bin_index(rows, bins, side)
        right = np.arange(classes)[None, :] == y[part, None]
        # entries in no bin (−1) are zeros: only those of the label have a surplus to take out of the total
        picture, column = np.nonzero((index > 0) | ((index < 0) & right))
        pictures.append(picture + part.start)
        cells.append(column * (bins + 1) + index[picture, column] + 1)
        surpluses.append((rows - right)[picture, column])
    picture, cell, surplus = np.concatenate(pictures), np.concatenate(cells), np.concatenate(surpluses)
    order, starts = _groups(cell)
    picture, surplus = picture[order], surplus[order]
    columns, slots = np.divmod(cell[order][starts], bins + 1)

    def value(weights: FloatArray) -> FloatArray:
        lowest = np.zeros((len(weights), classes))
        for part, rows in row_chunks(p):
            np.minimum(rows, 1.0, out=rows)
            rows[np.arange(len(rows)), y[part]] -= 1.0
            lowest += weights[:, part] @ rows
        if len(starts) == 0:
            return np.asarray(np.abs(lowest).sum(axis=1) / (n * classes))
        others = np.add.reduceat(weights[:, picture] * surplus, starts, axis=1)  # (R, filled cells)
        for at, column in enumerate(columns):
            lowest[:, column] -= others[:, at]
        in_a_bin = np.abs(others[:, slots > 0]).sum(axis=1)
        return np.asarray((np.abs(lowest).sum(axis=1) + in_a_bin) / (n * classes))

    return value
