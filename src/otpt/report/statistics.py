"""Bootstrap over stored rows: intervals of a metric and of the difference of two methods, pictures drawn anew.

A metric over several data sets is the mean of theirs; each data set's pictures are drawn apart. Over several seeds it
is the mean over seeds, and the same pictures are drawn for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from otpt.errors import OtptError, unknown
from otpt.metrics import NLL_FLOOR, Interval
from otpt.metrics._weighted import Statistic, statistic_of_confidence
from otpt.metrics.binning import bin_index
from otpt.metrics.resampling import resample_weights
from otpt.report.defaults import LEVEL, RESAMPLES
from otpt.report.rows import Floats, Rows

METRICS = ("accuracy", "ece", "sce", "brier", "nll")
"""Metrics that are compared and get intervals."""


def row_statistic(metric: str, rows: Rows, bins: int, side: str) -> Statistic:
    """The metric of the rows as a function of how often each picture was drawn, (R, N) → (R,)."""
    if metric in {"accuracy", "ece"}:
        return statistic_of_confidence(metric, rows.confidences, rows.correct, bins, side)
    if metric == "brier":
        return _mean(rows.squares - 2.0 * rows.probabilities + 1.0)
    if metric == "nll":
        return _mean(-np.log(np.clip(rows.probabilities, NLL_FLOOR, 1.0)))
    if metric == "sce":
        return _sce(rows, bins, side)
    raise unknown("metric", metric, METRICS)


def resampled(
    metric: str, rows: Sequence[Sequence[Rows]], bins: int, side: str, *, resamples: int = RESAMPLES, seed: int = 0
) -> tuple[float, Floats]:
    """The metric and its (R,) resamples; ``rows`` of each data set and seed: ``rows[data set][seed]``."""
    if resamples < 1:
        raise OtptError(f"The number of resamples is {resamples}; expected 1 or more.")
    estimate, values = 0.0, np.zeros(resamples)
    for position, of_seeds in enumerate(rows):
        n = len(of_seeds[0])
        statistics = [row_statistic(metric, each, bins, side) for each in of_seeds]
        # one data set is drawn as otpt.metrics.bootstrap draws it; each further one differently
        draws = resample_weights(n, resamples, seed if position == 0 else (seed, position))
        values += np.concatenate([np.mean([s(weights) for s in statistics], axis=0) for weights in draws])
        estimate += float(np.mean([s(np.ones((1, n)))[0] for s in statistics]))
    return estimate / len(rows), values / len(rows)


def interval(estimate: float, values: Floats, level: float = LEVEL) -> Interval:
    """The percentile interval of resampled values."""
    if not 0.0 < level < 1.0:
        raise OtptError(f"The level of the intervals is {level}; expected between 0 and 1, such as 0.95.")
    low, high = np.quantile(values, [(1.0 - level) / 2.0, (1.0 + level) / 2.0])
    return Interval(float(estimate), float(low), float(high), level, len(values))


def bootstrap_p(differences: Floats) -> float:
    """Two-sided p-value of "no difference" from resampled differences: 2·min(P(d ≤ 0), P(d ≥ 0)), never quite 0."""
    below, above = int((differences <= 0).sum()), int((differences >= 0).sum())
    return min(1.0, 2.0 * (min(below, above) + 1) / (len(differences) + 1))


def mcnemar_p(only_first: int, only_second: int) -> float:
    """Exact two-sided McNemar test: the pictures that only one of two methods gets right, as throws of a fair coin.

    p = min(1, 2·Σ_{k ≤ min(b, c)} C(b + c, k) / 2^(b + c)).
    """
    n, least = only_first + only_second, min(only_first, only_second)
    k = np.arange(1, least + 1)
    logs = np.concatenate([[0.0], np.cumsum(np.log((n - k + 1) / k))]) - n * np.log(2.0)  # log C(n, k)/2^n
    return min(1.0, float(2.0 * np.exp(logs).sum()))


def _mean(values: Floats) -> Statistic:
    return lambda weights: weights @ values / len(values)


def _sce(rows: Rows, bins: int, side: str) -> Statistic:
    """The class-wise error from what rows keep, Σ_{c,m} |Σ_{n in bin m of class c} w_n (p_nc − [y_n = c])| / (N·C).

    Probabilities below one percent, which lie in the lowest bin, are known as sums: over the classes for each picture,
    and over the pictures for each class. A picture's sum is shared among the classes as theirs is, so the metric itself
    (all weights one) is exact, and its resamples nearly.
    """
    n, classes = len(rows), len(rows.class_sums)
    p = np.minimum(rows.top_probabilities, 1.0)
    of_picture = np.repeat(np.arange(n), rows.top_counts)
    rest_of_class = rows.class_sums - np.bincount(rows.top_classes, weights=p, minlength=classes)
    rest_of_picture = np.maximum(1.0 - np.bincount(of_picture, weights=p, minlength=n), 0.0)
    whole = rest_of_picture.sum()
    share = rest_of_picture / whole if whole > 0 else np.full(n, 1.0 / n)
    of_label = bin_index(np.minimum(rows.probabilities, 1.0), bins, side)
    inside = of_label >= 0
    # one entry for each kept probability (a zero, in no bin, adds nothing to the lowest) and for each label
    picture = np.concatenate([of_picture, np.flatnonzero(inside)])
    slot = np.concatenate([np.maximum(bin_index(p, bins, side), 0), of_label[inside]])
    cell = np.concatenate([rows.top_classes, rows.labels[inside]]) * bins + slot
    surplus = np.concatenate([p, np.full(int(inside.sum()), -1.0)])
    order = np.argsort(cell, kind="stable")
    filled, starts = np.unique(cell[order], return_index=True)
    picture, surplus = picture[order], surplus[order]
    lowest = filled % bins == 0

    def value(weights: Floats) -> Floats:
        sums = np.add.reduceat(weights[:, picture] * surplus, starts, axis=1)  # (R, filled cells)
        in_lowest = (weights @ share)[:, None] * rest_of_class  # (R, C)
        in_lowest[:, filled[lowest] // bins] += sums[:, lowest]
        return np.asarray((np.abs(in_lowest).sum(axis=1) + np.abs(sums[:, ~lowest]).sum(axis=1)) / (n * classes))

    return value
