"""Bootstrap over stored rows, for intervals of a metric and of the difference of two methods.

A metric over several data sets is the mean of theirs; the images of each are resampled independently. Over several
seeds it is the mean over seeds, and the same images are drawn for all of them. Two methods that saw the same images are
resampled alike, so that the difference of their resamples is paired.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import bdtr

from otpt.errors import OtptError
from otpt.metrics import METRICS, Interval
from otpt.metrics.bootstrap import centred, centred_interval, resample_weights
from otpt.report.results import LEVEL, ResultKey, Results
from otpt.runs import Rows

RESAMPLES = 1000
ALPHA = 0.05
"""A difference with p below this is called one; others may be chance."""

Floats = npt.NDArray[np.float64]
Place = tuple[str, str]
"""(data set, prompt) at which a method is evaluated."""


@dataclass(frozen=True)
class Resampled:
    """A metric and its (R,) resamples."""

    metric: str
    estimate: float
    values: Floats

    def interval(self, level: float = LEVEL) -> Interval:
        """Centred percentile interval, within the range of the metric."""
        return centred_interval(self.estimate, self.values, level, METRICS[self.metric].range)


@dataclass(frozen=True)
class Difference:
    """A metric of two methods: a − b with its interval, and the p-value of "no difference". Fractions, not percent."""

    metric: str
    a: float
    b: float
    low: float
    high: float
    p: float

    @property
    def difference(self) -> float:
        return self.a - self.b

    @property
    def is_noise(self) -> bool:
        """Whether it may be chance: p ≥ 0.05."""
        return self.p >= ALPHA

    @property
    def better(self) -> str | None:
        """ "a" or "b", the method with the better value; None if it may be chance."""
        cost = METRICS[self.metric].cost
        if self.is_noise or cost(self.a) == cost(self.b):
            return None
        return "a" if cost(self.a) < cost(self.b) else "b"


def resample(
    metrics: Sequence[str],
    rows: Sequence[Sequence[Rows]],
    n_bins: int,
    side: str,
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> dict[str, Resampled]:
    """Resample metrics of ``rows[data set][seed]``; images are drawn once for all metrics. nan: undefined there."""
    if resamples < 1:
        raise OtptError(f"The number of resamples is {resamples}; expected 1 or more.")
    estimates, values = dict.fromkeys(metrics, 0.0), {metric: np.zeros(resamples) for metric in metrics}
    for position, of_seeds in enumerate(rows):
        n = len(of_seeds[0])
        if any(each.ids != of_seeds[0].ids for each in of_seeds):
            raise OtptError("The seeds did not see the same images, so these cannot be resampled; finish the run.")

        def mean(metric: str, weights: Floats, of_seeds: Sequence[Rows] = of_seeds) -> Floats:
            found = [METRICS[metric].resampled(each, weights, n_bins=n_bins, side=side) for each in of_seeds]
            return np.asarray(np.mean(found, axis=0), np.float64)

        # one data set is drawn as otpt.metrics.bootstrap draws it; each further one differently
        start = 0
        for weights in resample_weights(n, resamples, seed if position == 0 else (seed, position)):
            part = slice(start, start + len(weights))
            for metric in metrics:
                values[metric][part] += mean(metric, weights)
            start = part.stop
        for metric in metrics:
            estimates[metric] += float(mean(metric, np.ones((1, n)))[0])
    return {metric: Resampled(metric, estimates[metric] / len(rows), values[metric] / len(rows)) for metric in metrics}


def resample_method(
    results: Results, metrics: Sequence[str], method: str, places: Sequence[Place], *, resamples: int = RESAMPLES
) -> dict[str, Resampled]:
    """Resample metrics of a method over data sets with their prompts, and over all seeds of each."""
    rows = [
        [results.rows(ResultKey(name, seed, prompt, method)) for seed in results.seeds_of(name, method, prompt)]
        for name, prompt in places
    ]
    return resample(metrics, rows, results.n_bins, results.side, resamples=resamples)


def difference(a: Resampled, b: Resampled, *, level: float = LEVEL, p: float | None = None) -> Difference:
    """Compare two methods on the same images by their paired resamples; ``p`` replaces the bootstrap's p-value."""
    estimate, values = a.estimate - b.estimate, a.values - b.values
    found = centred_interval(estimate, values, level)
    p = bootstrap_p(centred(estimate, values)) if p is None else p
    return Difference(a.metric, a.estimate, b.estimate, found.low, found.high, p)


def gap(
    results: Results, metric: str, a: tuple[str, Sequence[Place]], b: tuple[str, Sequence[Place]]
) -> Difference | None:
    """Compare two methods, each with its places; None unless both saw the same images under the same seeds."""
    seen = []
    for method, places in (a, b):
        keys = [
            ResultKey(name, seed, prompt, method)
            for name, prompt in places
            for seed in results.seeds_of(name, method, prompt)
        ]
        if not keys or any(results.score(key) is None for key in keys):
            return None
        seen.append([(key.dataset, key.seed, results.rows(key).ids) for key in keys])
    if seen[0] != seen[1] or len({(dataset, ids) for dataset, _, ids in seen[0]}) != len({each[0] for each in seen[0]}):
        return None
    first, second = (resample_method(results, [metric], *each)[metric] for each in (a, b))
    return difference(first, second)


def bootstrap_p(differences: Floats) -> float:
    """Two-sided p-value of "no difference" from resampled differences: 2·min(P(d ≤ 0), P(d ≥ 0)), never quite 0."""
    below, above = int((differences <= 0).sum()), int((differences >= 0).sum())
    return min(1.0, 2.0 * (min(below, above) + 1) / (len(differences) + 1))


def mcnemar_p(only_first: int, only_second: int) -> float:
    """Exact two-sided McNemar test on the numbers of images that only one of two methods gets right."""
    n = only_first + only_second
    return min(1.0, 2.0 * float(bdtr(min(only_first, only_second), n, 0.5)))
