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
from otpt.report.results import FEW, LEVEL, ResultKey, Results, check_names
from otpt.report.selection import choose
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
        result, cost = self.differences[metric], METRICS[metric].cost
        if result.is_noise or cost(result.a) == cost(result.b):
            return None
        return self.a if cost(result.a) < cost(result.b) else self.b

    def as_dict(self) -> dict[str, object]:
        """Return plain data."""
        rows = [
            {**asdict(result), "difference": result.difference, "better": self.better(metric)}
            for metric, result in self.differences.items()
        ]
        return {**asdict(self), "differences": rows, "conclusion": self.conclusion}

    @property
    def conclusion(self) -> str:
        """Conclusion in one sentence."""
        where = "Over all data sets" if self.dataset == ALL else f"On {self.dataset}"
        words = []
        for metric, better, noun in (("accuracy", "more accurate", "accuracy"), ("ece", "better calibrated", "ECE")):
            result, best = self.differences[metric], self.better(metric)
            if best is None:
                words.append(f"the difference in {noun} may be chance (p = {result.p:.3g})")
            else:
                other = self.b if best == self.a else self.a
                points = f"{100 * abs(result.difference):.2f} points"
                words.append(f"{best} is {better} than {other} by {points} (p = {result.p:.3g})")
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
        chosen = choose(results, [dataset], [a, b], prompt)
        candidates = product(chosen.keys_of(method=a), chosen.keys_of(method=b))
        of_dataset = [pair for pair in candidates if _is_pair(*pair)]
        if of_dataset:
            pairs[dataset] = of_dataset
            if not saw_same_images(results, [[pair[k] for pair in of_dataset] for k in (0, 1)]):
                raise OtptError(
                    f"{a!r} and {b!r} have not predicted the same images of {dataset!r}, so they cannot be compared; "
                    "finish both runs."
                )
    if not pairs:
        raise OtptError(f"No data set of the runs has both {a!r} and {b!r} under one prompt and seed.")
    comparisons = [_compare(results, (a, b), {dataset: pairs[dataset]}, resamples, level) for dataset in pairs]
    if len(pairs) > 1:
        comparisons.append(_compare(results, (a, b), pairs, resamples, level))
    return comparisons


def _is_pair(a: ResultKey, b: ResultKey) -> bool:
    """Return whether two keys have the same seed, and the same variant if both have one."""
    return a.seed == b.seed and (a.variant == b.variant or not (a.variant and b.variant))


def _compare(
    results: Results,
    methods: tuple[str, str],
    pairs: Mapping[str, Sequence[tuple[ResultKey, ResultKey]]],
    resamples: int,
    level: float,
) -> Comparison:
    """Compare two methods by the pairs of their results on each data set."""
    all_pairs = [pair for of_dataset in pairs.values() for pair in of_dataset]
    first = resample(results, COMPARED, [key for key, _ in all_pairs], resamples=resamples)
    second = resample(results, COMPARED, [key for _, key in all_pairs], resamples=resamples)
    differences = {metric: difference(first[metric], second[metric], level=level) for metric in COMPARED}
    only_a = only_b = 0
    for key_a, key_b in all_pairs:
        correct_a, correct_b = results.rows(key_a).correct, results.rows(key_b).correct
        only_a += int((correct_a & ~correct_b).sum())
        only_b += int((correct_b & ~correct_a).sum())
    seeds = tuple(dict.fromkeys(key.seed for key, _ in all_pairs))
    if len(seeds) == 1 and len(all_pairs) == len(pairs):
        differences["accuracy"] = replace(differences["accuracy"], p=mcnemar_p(only_a, only_b))
    return Comparison(
        dataset=ALL if len(pairs) > 1 else next(iter(pairs)),
        a=methods[0],
        b=methods[1],
        seeds=seeds,
        images=sum(len(results.rows(of_dataset[0][0])) for of_dataset in pairs.values()),
        only_a=only_a,
        only_b=only_b,
        partial=any(results.require_score(key)["partial"] for pair in all_pairs for key in pair),
        differences=differences,
    )


def comparison_table(comparisons: Sequence[Comparison], level: float = LEVEL) -> pd.DataFrame:
    """Format comparisons as a table of strings with one line per data set and metric."""
    lines = []
    for comparison in comparisons:
        for metric, result in comparison.differences.items():
            show = METRICS[metric].format
            lines.append(
                {
                    "data set": comparison.dataset if metric == COMPARED[0] else "",
                    "metric": METRICS[metric].heading,
                    comparison.a: show(result.a),
                    comparison.b: show(result.b),
                    "difference": show(result.difference),
                    f"{100 * level:g} %": f"{show(result.low)} … {show(result.high)}",
                    "p": f"{result.p:.3g}",
                    "better": comparison.better(metric) or "–",
                }
            )
    return pd.DataFrame(lines)


def ranked(
    results: Results, metric: str, *, datasets: Sequence[str] | None = None, prompt: str | None = None
) -> dict[str, float]:
    """Return methods with their mean over data sets and seeds, best first; incomplete methods are skipped."""
    names = list(datasets or results.datasets)
    averages = {}
    for method in results.methods:
        try:
            scores = choose(results, names, [method], prompt).frame
        except OtptError:  # several prompts
            continue
        means = scores.groupby("dataset")[metric].mean()
        if len(means) == len(names) and scores[metric].notna().all():
            averages[method] = float(means[names].sum() / len(names))
    return dict(sorted(averages.items(), key=lambda item: METRICS[metric].cost(item[1])))


def gap(results: Results, metric: str, a: Sequence[ResultKey], b: Sequence[ResultKey]) -> Difference | None:
    """Compare two methods by their results; None unless both saw the same images under the same seeds."""
    if not saw_same_images(results, [a, b]):
        return None
    first = resample(results, [metric], a)[metric]
    second = resample(results, [metric], b)[metric]
    return difference(first, second)


def saw_same_images(results: Results, sides: Sequence[Sequence[ResultKey]]) -> bool:
    """Return whether several methods have results for the same images under all seeds of a data set."""
    seen = []
    for keys in sides:
        if not keys or any(results.score(key) is None for key in keys):
            return False
        seen.append([(key.dataset, key.seed, results.rows(key).ids) for key in keys])
    of_datasets = {(dataset, ids) for dataset, _, ids in seen[0]}
    is_same = all(images == seen[0] for images in seen)
    return is_same and len(of_datasets) == len({dataset for dataset, _ in of_datasets})


def resample(
    results: Results, metrics: Sequence[str], keys: Sequence[ResultKey], *, resamples: int = RESAMPLES
) -> dict[str, Resampled]:
    """Resample metrics over the data sets, seeds and variants of a method, with shared draws."""
    if resamples < 1:
        raise OtptError(f"The number of resamples is {resamples}; expected 1 or more.")
    by_dataset: dict[str, list[Rows]] = {}
    for key in keys:
        by_dataset.setdefault(key.dataset, []).append(results.rows(key))
    estimates = dict.fromkeys(metrics, 0.0)
    values = {metric: np.zeros(resamples) for metric in metrics}
    for position, replicates in enumerate(by_dataset.values()):
        n = len(replicates[0])
        if any(rows.ids != replicates[0].ids for rows in replicates):
            raise OtptError("The seeds did not see the same images, so these cannot be resampled; finish the run.")

        def mean(metric: str, weights: Floats, replicates: Sequence[Rows] = replicates) -> Floats:
            resampled = METRICS[metric].resampled
            parts = [resampled(rows, weights, n_bins=results.n_bins, side=results.side) for rows in replicates]
            return np.asarray(np.mean(parts, axis=0), np.float64)

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
    interval = centred_interval(estimate, values, level)
    p = bootstrap_p(centred(estimate, values))
    return Difference(a.metric, a.estimate, b.estimate, interval.low, interval.high, p)


def bootstrap_p(differences: Floats) -> float:
    """Compute the two-sided p-value 2·min(P(d ≤ 0), P(d ≥ 0)) of resampled differences, always above 0."""
    below, above = int((differences <= 0).sum()), int((differences >= 0).sum())
    return min(1.0, 2.0 * (min(below, above) + 1) / (len(differences) + 1))


def mcnemar_p(only_first: int, only_second: int) -> float:
    """Return the p-value of the exact two-sided McNemar test."""
    n = only_first + only_second
    return min(1.0, 2.0 * float(bdtr(min(only_first, only_second), n, 0.5)))
