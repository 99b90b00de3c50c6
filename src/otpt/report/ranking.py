"""Which method is first, which is next, and whether the difference between the two may be chance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from otpt.errors import OtptError
from otpt.metrics.bootstrap import centred, centred_interval
from otpt.report.compare import ALPHA
from otpt.report.defaults import LEVEL, RESAMPLES
from otpt.report.prompts import prompt_of
from otpt.report.results import ResultKey, Results
from otpt.report.statistics import bootstrap_p, resampled
from otpt.report.tables.table import cost

Place = tuple[str, str]
"""(data set, prompt) at which a method is looked at."""


@dataclass(frozen=True)
class Gap:
    """A metric of two methods over the same places and seeds: a − b, its interval, and the p of "no difference"."""

    a: float
    b: float
    low: float
    high: float
    p: float

    @property
    def is_noise(self) -> bool:
        """Whether it may be chance: p ≥ 0.05."""
        return self.p >= ALPHA


def ranked(
    results: Results, metric: str, *, datasets: Sequence[str], seed: int, prompt: str | None
) -> dict[str, float]:
    """Methods with their mean over the data sets, best first; without those that lack one of them."""
    found = {}
    for method in results.methods:
        try:
            keys = [ResultKey(each, seed, prompt_of(results, each, method, prompt), method) for each in datasets]
        except OtptError:  # it has several prompts, or none
            continue
        scores = [results.score(key) for key in keys]
        values = [getattr(s.metrics, metric) for s in scores if s is not None and s.metrics is not None]
        if values and len(values) == len(datasets):
            found[method] = sum(values) / len(values)
    return dict(sorted(found.items(), key=lambda item: cost(metric, item[1])))


def gap(
    results: Results,
    metric: str,
    a: tuple[str, Sequence[Place]],
    b: tuple[str, Sequence[Place]],
    *,
    resamples: int = RESAMPLES,
    level: float = LEVEL,
) -> Gap | None:
    """Two methods, each with its places, by a paired bootstrap over images; the mean over seeds and data sets.

    None if they have not seen the same images under the same seeds, so that nothing can be said.
    """
    keys = [
        [[ResultKey(d, seed, prompt, method) for seed in results.seeds_of(d, method, prompt)] for d, prompt in places]
        for method, places in (a, b)
    ]
    scores = [results.score(key) for own in keys for of_seeds in own for key in of_seeds]
    if any(score is None or score.metrics is None for score in scores):
        return None
    rows = [[[results.rows(key) for key in of_seeds] for of_seeds in own] for own in keys]
    seen = [[[each.ids for each in of_seeds] for of_seeds in own] for own in rows]
    if seen[0] != seen[1] or any(ids != of_seeds[0] for of_seeds in seen[0] for ids in of_seeds):
        return None
    (first, of_first), (second, of_second) = (
        resampled(metric, own, results.bins, results.side, resamples=resamples) for own in rows
    )
    values = of_first - of_second
    found = centred_interval(first - second, values, level)
    return Gap(first, second, found.low, found.high, bootstrap_p(centred(first - second, values)))
