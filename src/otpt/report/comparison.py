"""Bootstrap over stored rows: intervals of a metric and significance of the difference of two methods.

A metric over several data sets is the mean of theirs; the images of each are resampled independently. Over several
seeds it is the mean over seeds, and the same images are drawn for all of them. Two methods on the same images share
their resamples, so that the difficulty of images cancels. Accuracy under a single seed has the exact McNemar
test.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.special import bdtr

from otpt.errors import OtptError
from otpt.metrics import METRICS, Interval
from otpt.metrics.bootstrap import centred, centred_interval, resample_weights
from otpt.report.papers import choose
from otpt.report.results import FEW, LEVEL, ResultKey, Results, check_names
from otpt.runs import Rows

RESAMPLES = 1000
ALPHA = 0.05
"""Significance level of differences."""
ALL = "all data sets"
COMPARED = ("accuracy", "ece", "debiased_ece", "sce", "brier", "nll")

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Resampled:
    """Metric with its resamples (R,)."""

    metric: str
    estimate: float
    values: Floats

    def interval(self, level: float = LEVEL) -> Interval:
        """Return the centred percentile interval within the range of the metric."""
        return centred_interval(self.estimate, self.values, level, METRICS[self.metric].range)


@dataclass(frozen=True)
class Difference:
    """Difference a − b of a metric with its interval and the p-value of "no difference", as fractions."""

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
        """Whether the difference is not significant, p ≥ 0.05."""
        return self.p >= ALPHA


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
        """Return the significantly better method, or None."""
        each, cost = self.differences[metric], METRICS[metric].cost
        if each.is_noise or cost(each.a) == cost(each.b):
            return None
        return self.a if cost(each.a) < cost(each.b) else self.b

    def as_dict(self) -> dict[str, object]:
        """Return plain data."""
        rows = [
            {**asdict(each), "difference": each.difference, "better": self.better(metric)}
            for metric, each in self.differences.items()
        ]
        return {**asdict(self), "differences": rows, "conclusion": self.conclusion}

    @property
    def conclusion(self) -> str:
        """Conclusion in one sentence."""
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
        return f"{where}, {self.a} against {self.b}, {self.images} images, {seeds}: {'; '.join(words)}."


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
        raise OtptError(f"Method {a!r} was given twice; expected two different methods.")
    pairs: dict[str, list[tuple[ResultKey, ResultKey]]] = {}
    for dataset in check_names("data set", datasets, results.datasets):
        own = choose(results, [dataset], [a, b], prompt)
        found = [pair for pair in product(own.keys_of(method=a), own.keys_of(method=b)) if _is_pair(*pair)]
        if found:
            pairs[dataset] = found
            if not saw_same_images(results, [[pair[k] for pair in found] for k in (0, 1)]):
                raise OtptError(
                    f"{a!r} and {b!r} have not predicted the same images of {dataset!r}, so they cannot be compared; "
                    "finish both runs."
                )
    if not pairs:
        raise OtptError(f"No data set of the runs has both {a!r} and {b!r} under one prompt and seed.")
    groups = [[dataset] for dataset in pairs] + ([list(pairs)] if len(pairs) > 1 else [])
    return [_compare(results, a, b, {name: pairs[name] for name in group}, resamples, level) for group in groups]


def _is_pair(a: ResultKey, b: ResultKey) -> bool:
    """Return whether two keys have the same seed, and the same variant if both have one."""
    return a.seed == b.seed and (a.variant == b.variant or not (a.variant and b.variant))


def _compare(
    results: Results,
    a: str,
    b: str,
    pairs: Mapping[str, Sequence[tuple[ResultKey, ResultKey]]],
    resamples: int,
    level: float,
) -> Comparison:
    every = [pair for own in pairs.values() for pair in own]
    first, second = (resample(results, COMPARED, [pair[k] for pair in every], resamples=resamples) for k in (0, 1))
    found = {metric: difference(first[metric], second[metric], level=level) for metric in COMPARED}
    correct = [[results.rows(key).correct for key in pair] for pair in every]
    only_a, only_b = (sum(int((each[k] & ~each[1 - k]).sum()) for each in correct) for k in (0, 1))
    seeds = tuple(dict.fromkeys(key.seed for key, _ in every))
    if len(seeds) == 1 and len(every) == len(pairs):
        found["accuracy"] = replace(found["accuracy"], p=mcnemar_p(only_a, only_b))
    return Comparison(
        dataset=ALL if len(pairs) > 1 else next(iter(pairs)),
        a=a,
        b=b,
        seeds=seeds,
        images=sum(len(results.rows(own[0][0])) for own in pairs.values()),
        only_a=only_a,
        only_b=only_b,
        partial=any(results.score(key)["partial"] for pair in every for key in pair),
        differences=found,
    )


def comparison_table(comparisons: Sequence[Comparison], level: float = LEVEL) -> pd.DataFrame:
    """Format comparisons as a table of strings with one line per data set and metric."""
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
    """Return methods with their mean over data sets and seeds, best first; incomplete methods are skipped."""
    names = list(datasets or results.datasets)
    found = {}
    for method in results.methods:
        try:
            own = choose(results, names, [method], prompt).frame
        except OtptError:  # several prompts
            continue
        means = own.groupby("dataset")[metric].mean()
        if len(means) == len(names) and own[metric].notna().all():
            found[method] = float(means[names].sum() / len(names))
    return dict(sorted(found.items(), key=lambda item: METRICS[metric].cost(item[1])))


def gap(results: Results, metric: str, a: Sequence[ResultKey], b: Sequence[ResultKey]) -> Difference | None:
    """Compare two methods by their results; None unless both saw the same images under the same seeds."""
    if not saw_same_images(results, [a, b]):
        return None
    first, second = (resample(results, [metric], keys)[metric] for keys in (a, b))
    return difference(first, second)


def saw_same_images(results: Results, sides: Sequence[Sequence[ResultKey]]) -> bool:
    """Return whether several methods have results for the same images under all seeds of a data set."""
    seen = []
    for keys in sides:
        if not keys or any(results.score(key) is None for key in keys):
            return False
        seen.append([(key.dataset, key.seed, results.rows(key).ids) for key in keys])
    of_datasets = {(dataset, ids) for dataset, _, ids in seen[0]}
    return all(each == seen[0] for each in seen) and len(of_datasets) == len({dataset for dataset, _ in of_datasets})


def resample(
    results: Results, metrics: Sequence[str], keys: Sequence[ResultKey], *, resamples: int = RESAMPLES
) -> dict[str, Resampled]:
    """Resample metrics over the data sets, seeds and variants of a method, with shared draws."""
    if resamples < 1:
        raise OtptError(f"The number of resamples is {resamples}; expected 1 or more.")
    by_dataset: dict[str, list[Rows]] = {}
    for key in keys:
        by_dataset.setdefault(key.dataset, []).append(results.rows(key))
    estimates, values = dict.fromkeys(metrics, 0.0), {metric: np.zeros(resamples) for metric in metrics}
    for position, replicates in enumerate(by_dataset.values()):
        n = len(replicates[0])
        if any(each.ids != replicates[0].ids for each in replicates):
            raise OtptError("The seeds did not see the same images, so these cannot be resampled; finish the run.")

        def mean(metric: str, weights: Floats, replicates: Sequence[Rows] = replicates) -> Floats:
            bins = {"n_bins": results.n_bins, "side": results.side}
            found = [METRICS[metric].resampled(each, weights, **bins) for each in replicates]
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
    n = len(by_dataset)
    return {metric: Resampled(metric, estimates[metric] / n, values[metric] / n) for metric in metrics}


def difference(a: Resampled, b: Resampled, *, level: float = LEVEL) -> Difference:
    """Compare two methods on the same images by their paired resamples."""
    estimate, values = a.estimate - b.estimate, a.values - b.values
    found = centred_interval(estimate, values, level)
    return Difference(a.metric, a.estimate, b.estimate, found.low, found.high, bootstrap_p(centred(estimate, values)))


def bootstrap_p(differences: Floats) -> float:
    """Compute the two-sided p-value 2·min(P(d ≤ 0), P(d ≥ 0)) of resampled differences, always above 0."""
    below, above = int((differences <= 0).sum()), int((differences >= 0).sum())
    return min(1.0, 2.0 * (min(below, above) + 1) / (len(differences) + 1))


def mcnemar_p(only_first: int, only_second: int) -> float:
    """Return the p-value of the exact two-sided McNemar test."""
    n = only_first + only_second
    return min(1.0, 2.0 * float(bdtr(min(only_first, only_second), n, 0.5)))
