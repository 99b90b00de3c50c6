"""Centred percentile bootstrap: how much a metric, or the difference of two methods, varies with the sample of images.

The N images are drawn N times with replacement, ``resamples`` times over. The resampled metrics t_1 … t_R are shifted
so that their median is the estimate t, t_r + t − median(t_1 … t_R), and cut to the metric's range; the interval
runs from their (1 − level)/2 to their (1 + level)/2 quantile. So it always contains its estimate. The draws depend only
on the seed, so that two methods on the same images are compared in pairs.

AUROC and FPR95 are not defined in a resample without a wrong prediction, or without a right one; such resamples are
left out, and ``Interval.resamples`` counts the others.

The shift is what ECE, MCE, SCE and adaptive ECE need, sums of absolute values: resampling adds noise that cannot
cancel, so their resamples lie above the estimate, at few images all of them. Those of accuracy have their median at the
estimate already. The interval is one for the metric's expectation with N images: a calibrated model's ECE is
above 0 in expectation too, and :func:`otpt.metrics.debiased_ece` says by how much.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from otpt.errors import OtptError
from otpt.metrics._inputs import (
    FloatArray,
    IntArray,
    Statistic,
    check_bins,
    check_confidence,
    check_count,
    check_probabilities,
)
from otpt.metrics._weighted import statistic_of_confidence, statistic_of_probabilities
from otpt.metrics.scores import NLL_FLOOR, check_floor

if TYPE_CHECKING:
    from otpt.metrics._inputs import Values

Metric: TypeAlias = str | Callable[[npt.NDArray[Any], IntArray], float]

UNBOUNDED = (-np.inf, np.inf)
_RANGES = {
    "debiased_ece": (-1.0, 1.0),
    "overconfidence": (-1.0, 1.0),
    "brier": (0.0, 2.0),
    "nll": (0.0, np.inf),
    "entropy": (0.0, np.inf),
}
"""Of metrics that are not fractions."""

_CHUNK_ENTRIES = 1 << 21  # weights of several resamples at a time: 16 MiB


@dataclass(frozen=True)
class Interval:
    """An estimate and its bootstrap interval [low, high], which contains it."""

    estimate: float
    low: float
    high: float
    level: float
    resamples: int

    def contains(self, value: float) -> bool:
        """Whether ``value`` is in the interval; a difference whose interval excludes 0 is significant at its level."""
        return self.low <= value <= self.high


def bootstrap(
    metric: Metric,
    probabilities: Values,
    labels: Values,
    *,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
    bins: int = 20,
    side: str = "right",
    floor: float = NLL_FLOOR,
) -> Interval:
    """Interval of a metric of probabilities (N, C) and labels (N,).

    ``metric`` is the name of a number in ``Metrics`` ("ece", "aurc", …), "classwise_adaptive_ece", or a function of
    (probabilities, labels) that returns a float; such a function is called once per resample and sets its own bins.
    """
    p, y = check_probabilities(probabilities, labels)
    statistic = _statistic(metric, p, y, bins, side, floor)
    return _interval([statistic], len(y), resamples, level, seed, value_range(metric))


def bootstrap_difference(
    metric: Metric,
    first: Values,
    second: Values,
    labels: Values,
    *,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
    bins: int = 20,
    side: str = "right",
    floor: float = NLL_FLOOR,
) -> Interval:
    """Interval of metric(first) − metric(second), two methods' probabilities (N, C) for the same images.

    Each resample draws the same images for both, so that the difficulty of images cancels.
    """
    statistics = []
    for probabilities in (first, second):
        p, y = check_probabilities(probabilities, labels)
        statistics.append(_statistic(metric, p, y, bins, side, floor))
    return _interval(statistics, len(y), resamples, level, seed)


def bootstrap_from_confidence(
    metric: str,
    confidence: Values,
    correct: Values,
    *,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
    bins: int = 20,
    side: str = "right",
) -> Interval:
    """Interval of a metric of confidence (N,) and correct (N,), as rows of results store them.

    These two suffice for all metrics but those of several probabilities (top5_accuracy, sce, brier, nll, entropy) and
    of classes (macro_f1).
    """
    check_bins(bins, side)
    c, right = check_confidence(confidence, correct)
    statistic = statistic_of_confidence(metric, c, right, bins, side)
    return _interval([statistic], len(c), resamples, level, seed, value_range(metric))


def bootstrap_difference_from_confidence(
    metric: str,
    first: tuple[Values, Values],
    second: tuple[Values, Values],
    *,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
    bins: int = 20,
    side: str = "right",
) -> Interval:
    """Interval of metric(first) − metric(second), each a pair (confidence, correct) for the same images."""
    check_bins(bins, side)
    pairs = [check_confidence(*first), check_confidence(*second)]
    sizes = [len(confidence) for confidence, _ in pairs]
    if sizes[0] != sizes[1]:
        raise OtptError(f"expected two methods on the same images, but got {sizes[0]} and {sizes[1]} of them.")
    statistics = [statistic_of_confidence(metric, *pair, bins, side) for pair in pairs]
    return _interval(statistics, sizes[0], resamples, level, seed)


def _statistic(metric: Metric, p: npt.NDArray[Any], y: IntArray, bins: int, side: str, floor: float) -> Statistic:
    if isinstance(metric, str):
        check_bins(bins, side)
        check_floor(floor)
        return statistic_of_probabilities(metric, p, y, bins, side, floor)
    if not callable(metric):
        raise OtptError(f"expected metric as a name or a function, but got {metric!r}.")

    def value(weights: FloatArray) -> FloatArray:
        drawn = (np.repeat(np.arange(len(y)), row.astype(np.int64)) for row in weights)
        return np.array([float(metric(p[index], y[index])) for index in drawn])

    return value


def _interval(
    statistics: list[Statistic],
    n: int,
    resamples: int,
    level: float,
    seed: int,
    within: tuple[float, float] = UNBOUNDED,
) -> Interval:
    """Interval of the one statistic, or of the first minus the second."""
    check_count("resamples", resamples)
    check_level(level)

    def value(weights: FloatArray) -> FloatArray:
        first = statistics[0](weights)
        return first - statistics[1](weights) if len(statistics) == 2 else first

    values = np.concatenate([value(weights) for weights in resample_weights(n, resamples, seed)])
    return centred_interval(value(np.ones((1, n)))[0], values, level, within)


def check_level(level: float) -> None:
    """Refuse a level that no interval has."""
    if not 0.0 < level < 1.0:
        raise OtptError(f"expected level between 0 and 1, both excluded, but got {level!r}; such as 0.95.")


def centred(estimate: float, values: FloatArray) -> FloatArray:
    """Resampled values (R,) without those in which the metric is not defined (nan), their median at the estimate."""
    known = values[~np.isnan(values)]
    return np.asarray(known + (estimate - np.median(known))) if len(known) else known


def centred_interval(
    estimate: float, values: FloatArray, level: float, within: tuple[float, float] = UNBOUNDED
) -> Interval:
    """The interval of resampled values (R,); ``within`` is the range that the metric can have."""
    check_level(level)
    known = np.clip(centred(estimate, values), *within)
    if not len(known):
        return Interval(float(estimate), float("nan"), float("nan"), level, 0)
    low, high = np.quantile(known, [(1.0 - level) / 2.0, (1.0 + level) / 2.0])
    # rounding of the shift must not push an end past the estimate
    return Interval(float(estimate), min(float(low), estimate), max(float(high), estimate), level, len(known))


def value_range(metric: Metric) -> tuple[float, float]:
    """The values that a metric can have; any for a function of the user's."""
    return _RANGES.get(metric, (0.0, 1.0)) if isinstance(metric, str) else UNBOUNDED


def resample_weights(n: int, resamples: int, seed: int | Sequence[int]) -> Iterator[FloatArray]:
    """(R, N) counts of N draws with replacement; drawn one resample at a time, so R does not change them."""
    generator = np.random.default_rng(seed)
    rows = max(1, _CHUNK_ENTRIES // n)
    for start in range(0, resamples, rows):
        counts = [
            np.bincount(generator.integers(0, n, size=n), minlength=n) for _ in range(min(rows, resamples - start))
        ]
        yield np.stack(counts).astype(np.float64)
