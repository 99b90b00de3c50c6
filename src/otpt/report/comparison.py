"""Bootstrap over stored rows, for intervals of a metric and for two methods: is their difference more than chance?

A metric over several data sets is the mean of theirs; the images of each are resampled independently. Over several
seeds it is the mean over seeds, and the same images are drawn for all of them. Two methods that saw the same images are
resampled alike, so that what makes an image hard for both cancels. Accuracy under a single seed has the exact McNemar
test.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.special import bdtr

from otpt.errors import OtptError
from otpt.metrics import METRICS, Interval
from otpt.metrics.bootstrap import centred, centred_interval, resample_weights
from otpt.report.papers import prompt_of
from otpt.report.results import FEW, LEVEL, Results, check_names
from otpt.runs import Rows

RESAMPLES = 1000
ALPHA = 0.05
"""A difference with p below this is called one; others may be chance."""
ALL = "all data sets"
COMPARED = ("accuracy", "ece", "debiased_ece", "sce", "brier", "nll")

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


@dataclass(frozen=True)
class Comparison:
    """Two methods on one data set, or over all: ``dataset`` is then "all data sets".

    Attributes:
        seeds: seeds that were averaged.
        only_a, only_b: images, over all seeds, that only one of them gets right.
        partial: a run is still in progress.
        differences: by metric.
    """

    dataset: str
    a: str
    b: str
    seeds: tuple[int, ...]
    images: int
    only_a: int
    only_b: int
    partial: bool
    differences: dict[str, Difference]

    def better(self, metric: str) -> str | None:
        """The method that is better beyond chance; None if neither is."""
        return {"a": self.a, "b": self.b, None: None}[self.differences[metric].better]

    def as_dict(self) -> dict[str, object]:
        """Plain data."""
        rows = [
            {**asdict(each), "difference": each.difference, "better": self.better(metric)}
            for metric, each in self.differences.items()
        ]
        return {**asdict(self), "differences": rows, "conclusion": self.conclusion}

    @property
    def conclusion(self) -> str:
        """What the numbers say, in one sentence."""
        where = "Over all data sets" if self.dataset == ALL else f"On {self.dataset}"
        words = []
        for metric, better, noun in (("accuracy", "more accurate", "accuracy"), ("ece", "better calibrated", "ECE")):
            each, best = self.differences[metric], self.better(metric)
            if best is None:
                words.append(f"the difference in {noun} may be chance (p = {each.p:.3g})")
            else:
                other = self.b if best == self.a else self.a
                points = f"{100 * abs(each.difference):.2f} points"
                words.append(f"{best} is {better} than {other} by {points} (p = {each.p:.3g})")
        if self.images < FEW:
            words.append(f"with fewer than {FEW} images, most of an ECE may be bias")
        if self.partial:
            words.append("the run is still in progress")
        seeds = f"seeds {', '.join(map(str, self.seeds))}" if len(self.seeds) > 1 else f"seed {self.seeds[0]}"
        return f"{where}, {self.images} images, {seeds}: {'; '.join(words)}."


def compare_methods(
    results: Results,
    a: str,
    b: str,
    *,
    datasets: Sequence[str] | None = None,
    prompt: str | None = None,
    resamples: int = RESAMPLES,
    level: float = LEVEL,
) -> list[Comparison]:
    """Compare method ``a`` with ``b`` on each data set that has both, and over all of them if there are several.

    All seeds that both methods have are used; select others with the ``seeds`` of :func:`open_results`.
    """
    check_names("method", (a, b), results.methods)
    if a == b:
        raise OtptError(f"Method {a!r} was given twice; expected two methods to compare.")
    check_names("data set", datasets, results.datasets)
    rows: dict[str, list[list[Rows]]] = {}  # data set → rows of a and of b, by seed
    seeds: dict[str, list[int]] = {}
    partial = set()
    for dataset in datasets or results.datasets:
        keys = [results.keys_of(dataset, m, prompt_of(results, dataset, m, prompt)) for m in (a, b)]
        common = [key.seed for key in keys[0] if key.seed in {other.seed for other in keys[1]}]
        if not common:
            continue
        keys = [[key for key in own if key.seed in common] for own in keys]
        rows[dataset], seeds[dataset] = [[results.rows(key) for key in own] for own in keys], common
        _check_same_images(dataset, a, b, [each for own in rows[dataset] for each in own])
        if any(results.score(key)["partial"] for own in keys for key in own):
            partial.add(dataset)
    if not rows:
        raise OtptError(f"No data set of the runs has both {a!r} and {b!r} under one prompt and seed.")
    groups = [[dataset] for dataset in rows] + ([list(rows)] if len(rows) > 1 else [])
    comparisons = []
    for group in groups:
        first, second = (
            resample(results, COMPARED, [rows[name][k] for name in group], resamples=resamples) for k in (0, 1)
        )
        right = [(x.correct, y.correct) for name in group for x, y in zip(*rows[name], strict=True)]
        only_a, only_b = (sum(int((pair[k] & ~pair[1 - k]).sum()) for pair in right) for k in (0, 1))
        used = tuple(dict.fromkeys(seed for name in group for seed in seeds[name]))
        found = {metric: difference(first[metric], second[metric], level=level) for metric in COMPARED}
        if len(used) == 1:
            values = asdict(found["accuracy"]) | {"p": mcnemar_p(only_a, only_b)}
            found["accuracy"] = Difference(**values)
        images = sum(len(rows[name][0][0]) for name in group)
        name = group[0] if len(group) == 1 else ALL
        comparisons.append(Comparison(name, a, b, used, images, only_a, only_b, bool(partial & set(group)), found))
    return comparisons


def comparison_table(comparisons: Sequence[Comparison], level: float = LEVEL) -> pd.DataFrame:
    """Strings to print: a line per data set and metric with both values, difference, interval, p and the better one."""
    lines = []
    for each in comparisons:
        for metric, one in each.differences.items():
            show = METRICS[metric].format
            lines.append(
                {
                    "data set": each.dataset if metric == COMPARED[0] else "",
                    "metric": METRICS[metric].heading,
                    each.a: show(one.a),
                    each.b: show(one.b),
                    "difference": show(one.difference),
                    f"{100 * level:g} %": f"{show(one.low)} … {show(one.high)}",
                    "p": f"{one.p:.3g}",
                    "better": each.better(metric) or "–",
                }
            )
    return pd.DataFrame(lines)


def ranked(
    results: Results, metric: str, *, datasets: Sequence[str] | None = None, prompt: str | None = None
) -> dict[str, float]:
    """Methods with their mean over data sets and seeds, best first; without those that lack one of them."""
    found = {}
    for method in results.methods:
        try:
            places = [(name, prompt_of(results, name, method, prompt)) for name in datasets or results.datasets]
        except OtptError:  # several prompts
            continue
        values = [results.select(dataset=name, prompt=held, method=method)[metric] for name, held in places]
        if all(len(own) and own.notna().all() for own in values):
            found[method] = float(sum(own.mean() for own in values) / len(values))
    return dict(sorted(found.items(), key=lambda item: METRICS[metric].cost(item[1])))


def gap(
    results: Results, metric: str, a: tuple[str, Sequence[Place]], b: tuple[str, Sequence[Place]]
) -> Difference | None:
    """Compare two methods, each with its places; None unless both saw the same images under the same seeds."""
    if not saw_same_images(results, [a, b]):
        return None
    first, second = (resample_method(results, [metric], *each)[metric] for each in (a, b))
    return difference(first, second)


def saw_same_images(results: Results, sides: Sequence[tuple[str, Sequence[Place]]]) -> bool:
    """Whether methods, each with its places, have predicted the same images there, under all seeds of a data set."""
    seen = []
    for method, places in sides:
        keys = [key for name, prompt in places for key in results.keys_of(name, method, prompt)]
        if not keys or any(results.score(key) is None for key in keys):
            return False
        seen.append([(key.dataset, key.seed, results.rows(key).ids) for key in keys])
    of_datasets = {(dataset, ids) for dataset, _, ids in seen[0]}
    return all(each == seen[0] for each in seen) and len(of_datasets) == len({dataset for dataset, _ in of_datasets})


def resample_method(
    results: Results, metrics: Sequence[str], method: str, places: Sequence[Place]
) -> dict[str, Resampled]:
    """Resample metrics of a method over data sets with their prompts, and over all seeds of each."""
    rows = [[results.rows(key) for key in results.keys_of(name, method, prompt)] for name, prompt in places]
    return resample(results, metrics, rows)


def resample(
    results: Results, metrics: Sequence[str], rows: Sequence[Sequence[Rows]], *, resamples: int = RESAMPLES
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
            bins = {"n_bins": results.n_bins, "side": results.side}
            found = [METRICS[metric].resampled(each, weights, **bins) for each in of_seeds]
            return np.asarray(np.mean(found, axis=0), np.float64)

        # one data set is drawn as otpt.metrics.bootstrap draws it; each further one differently
        start = 0
        for weights in resample_weights(n, resamples, 0 if position == 0 else (0, position)):
            part = slice(start, start + len(weights))
            for metric in metrics:
                values[metric][part] += mean(metric, weights)
            start = part.stop
        for metric in metrics:
            estimates[metric] += float(mean(metric, np.ones((1, n)))[0])
    return {metric: Resampled(metric, estimates[metric] / len(rows), values[metric] / len(rows)) for metric in metrics}


def difference(a: Resampled, b: Resampled, *, level: float = LEVEL) -> Difference:
    """Compare two methods on the same images by their paired resamples."""
    estimate, values = a.estimate - b.estimate, a.values - b.values
    found = centred_interval(estimate, values, level)
    return Difference(a.metric, a.estimate, b.estimate, found.low, found.high, bootstrap_p(centred(estimate, values)))


def bootstrap_p(differences: Floats) -> float:
    """Two-sided p-value of "no difference" from resampled differences: 2·min(P(d ≤ 0), P(d ≥ 0)), never quite 0."""
    below, above = int((differences <= 0).sum()), int((differences >= 0).sum())
    return min(1.0, 2.0 * (min(below, above) + 1) / (len(differences) + 1))


def mcnemar_p(only_first: int, only_second: int) -> float:
    """Exact two-sided McNemar test on the numbers of images that only one of two methods gets right."""
    n = only_first + only_second
    return min(1.0, 2.0 * float(bdtr(min(only_first, only_second), n, 0.5)))


def _check_same_images(dataset: str, a: str, b: str, rows: Sequence[Rows]) -> None:
    if any(each.ids != rows[0].ids for each in rows):
        counts = " and ".join(dict.fromkeys(str(len(each)) for each in rows))
        raise OtptError(
            f"{a!r} and {b!r} have not predicted the same images of {dataset!r} ({counts}), so they cannot be "
            "compared; finish both runs."
        )
