"""Centred percentile bootstrap intervals of a metric and of the difference of two methods.

Each of ``resamples`` resamples draws N of the N images with replacement. The resampled metrics t_1 … t_R are shifted
so that their median is the estimate t, t_r + t − median(t_1 … t_R), and clipped to the metric's range; the interval
runs from their (1 − level)/2 to their (1 + level)/2 quantile. It always contains the estimate. The draws depend only on
the seed, so two methods on the same images are compared in pairs.

AUROC and FPR95 are not defined in a resample without a wrong prediction, or without a correct one; such resamples are
left out, and ``Interval.resamples`` counts the others.

ECE, MCE, SCE and adaptive ECE need the shift, since they are sums of absolute values: resampling adds noise that cannot
cancel, so their resamples lie above the estimate. The interval is one for the metric's expectation with N images, which
for the ECE of a calibrated model is above 0 too; see :func:`otpt.metrics.debiased_ece`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from otpt.arguments import checked
from otpt.errors import OtptError
from otpt.metrics.inputs import FloatArray, Floating, IntArray, Values, check_bins, check_count, check_probabilities
from otpt.metrics.table import get_metric, rows_of

MetricLike: TypeAlias = str | Callable[[Floating, IntArray], float]

UNBOUNDED = (-np.inf, np.inf)
_CHUNK_ENTRIES = 1 << 21  # weights per chunk of resamples, 16 MiB


@dataclass(frozen=True)
class Interval:
    """Estimate with its bootstrap interval [low, high]."""

    estimate: float
    low: float
    high: float
    level: float
    resamples: int

    def contains(self, value: float) -> bool:
        """Return whether ``value`` is in the interval; a difference is significant if its interval excludes 0."""
        return self.low <= value <= self.high


@checked
def bootstrap(
    metric: MetricLike,
    probabilities: Values,
    labels: Values,
    *,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
    n_bins: int = 20,
    side: str = "right",
) -> Interval:
    """Compute the interval of a metric of probabilities (N, C) and labels (N,), or confidence and correct (N,).

    ``metric`` is a name in :data:`otpt.metrics.METRICS` ("ece", "aurc", …), or a function of (probabilities, labels)
    that returns a float; such a function is called once per resample and sets its own bins.
    """
    value, n = _statistic(metric, probabilities, labels, n_bins, side)
    within = get_metric(metric).range if isinstance(metric, str) else UNBOUNDED
    return _interval(value, n, resamples, level, seed, within)


@checked
def bootstrap_difference(
    metric: MetricLike,
    first: tuple[Values, Values],
    second: tuple[Values, Values],
    *,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
    n_bins: int = 20,
    side: str = "right",
) -> Interval:
    """Compute the interval of metric(*first) − metric(*second) for two methods on the same images.

    Each argument is a pair (probabilities, labels) or (confidence, correct). Each resample draws the same images for
    both, so that the difficulty of images cancels.
    """
    for name, pair in {"first": first, "second": second}.items():
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise OtptError(f"{name} is {pair!r:.80}; expected a pair (probabilities, labels).")
    (of_first, n), (of_second, m) = (_statistic(metric, *pair, n_bins, side) for pair in (first, second))
    if n != m:
        raise OtptError(f"expected two methods on the same images, but got {n} and {m} images.")
    return _interval(lambda weights: of_first(weights) - of_second(weights), n, resamples, level, seed, UNBOUNDED)


def _statistic(
    metric: MetricLike, first: Values, second: Values, n_bins: int, side: str
) -> tuple[Callable[[FloatArray], FloatArray], int]:
    """Return the metric as a function of weights (R, N), and N."""
    check_bins(n_bins, side)
    if isinstance(metric, str):
        registered = get_metric(metric)
        rows = rows_of(first, second, registered.needs, registered.name)
        return lambda weights: registered.resampled(rows, weights, n_bins=n_bins, side=side), len(rows.correct)
    if not callable(metric):
        raise OtptError(f"expected metric as a name or a function, but got {metric!r}.")
    p, y = check_probabilities(first, second)

    def value(weights: FloatArray) -> FloatArray:
        drawn = (np.repeat(np.arange(len(y)), row.astype(np.int64)) for row in weights)
        return np.array([float(metric(p[index], y[index])) for index in drawn])

    return value, len(y)


def _interval(
    value: Callable[[FloatArray], FloatArray],
    n: int,
    resamples: int,
    level: float,
    seed: int,
    within: tuple[float, float],
) -> Interval:
    check_count("resamples", resamples)
    if seed < 0:
        raise OtptError(f"seed is {seed}; expected 0 or more.")
    check_level(level)  # fail early
    values = np.concatenate([value(weights) for weights in resample_weights(n, resamples, seed)])
    return centred_interval(value(np.ones((1, n)))[0], values, level, within)


def check_level(level: float) -> None:
    """Raise unless ``level`` is between 0 and 1."""
    if not 0.0 < level < 1.0:
        raise OtptError(f"expected level between 0 and 1, both excluded, but got {level!r}; such as 0.95.")


def centred(estimate: float, values: FloatArray) -> FloatArray:
    """Shift resampled values (R,) so that their median is the estimate; drop undefined ones (nan)."""
    defined = values[~np.isnan(values)]
    return np.asarray(defined + (estimate - np.median(defined))) if len(defined) else defined


def centred_interval(
    estimate: float, values: FloatArray, level: float, within: tuple[float, float] = UNBOUNDED
) -> Interval:
    """Return the interval of resampled values (R,); ``within`` is the range of the metric."""
    check_level(level)
    shifted = np.clip(centred(estimate, values), *within)
    estimate = float(estimate)
    if not len(shifted):
        return Interval(estimate, float("nan"), float("nan"), level, 0)
    low, high = np.quantile(shifted, [(1.0 - level) / 2.0, (1.0 + level) / 2.0]).tolist()
    # rounding of the shift must not push an end past the estimate
    return Interval(estimate, min(low, estimate), max(high, estimate), level, len(shifted))


def resample_weights(n: int, resamples: int, seed: int | Sequence[int]) -> Iterator[FloatArray]:
    """Yield chunks (R, N) of counts of N draws with replacement, independent of the chunk size."""
    generator = np.random.default_rng(seed)
    rows = max(1, _CHUNK_ENTRIES // n)
    for start in range(0, resamples, rows):
        count = min(rows, resamples - start)
        draws = (generator.integers(0, n, size=n) for _ in range(count))
        yield np.stack([np.bincount(draw, minlength=n) for draw in draws]).astype(np.float64)
