"""Bootstrap over stored rows: intervals of a metric and significance of the difference of two methods.

A metric over several data sets is the mean of theirs; the images of each are resampled independently. Over several
seeds it is the mean over seeds, and the same images are drawn for all of them. Two methods on the same images share
their resamples, so that the difficulty of images cancels. Accuracy under a single seed has the exact McNemar
test.

Whether a difference may be chance is decided here alone, by :attr:`Difference.is_noise`: tables, the page, sentences
and ``otpt compare`` show its answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import product
from typing import Literal

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.special import bdtr

from otpt.errors import OtptError
from otpt.metrics import METRICS, Interval
from otpt.metrics.bootstrap import centred, centred_interval, resample_weights
from otpt.report.results import LEVEL, ResultKey, Results, check_names
from otpt.report.selection import choose, refuse_several_prompts
from otpt.runs import Rows

RESAMPLES = 1000
ALPHA = 0.05
"""Significance level of differences."""
LEAST_RESAMPLES_PER_TEST = 200
"""Resamples per test of a family, so that a corrected p-value can be as small as 0.01."""
HOLM = "p (Holm)"
"""Heading of corrected p-values."""
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
    """Difference a − b of a metric with its interval and the p-value of "no difference", as fractions.

    Attributes:
        p: p-value of this test alone.
        floor: smallest p-value that the test can give; 0 for exact tests.
        corrected: p-value after Holm's correction for all tests of its family; None for a single test.
    """

    metric: str
    a: float
    b: float
    low: float
    high: float
    p: float
    floor: float = 0.0
    corrected: float | None = None

    @property
    def difference(self) -> float:
        return self.a - self.b

    @property
    def is_noise(self) -> bool:
        """Whether the difference is not significant, p ≥ 0.05, corrected where there are several tests."""
        return (self.p if self.corrected is None else self.corrected) >= ALPHA

    @property
    def better(self) -> Literal["a", "b"] | None:
        """Which of the two is significantly better, or None."""
        cost_a, cost_b = METRICS[self.metric].cost(self.a), METRICS[self.metric].cost(self.b)
        if self.is_noise or cost_a == cost_b:
            return None
        return "a" if cost_a < cost_b else "b"

    def text(self, p: float) -> str:
        """Format a p-value of this test: "0.034", or "≤ 0.002" where the test cannot give a smaller one."""
        return f"≤ {p:.3g}" if self.p <= self.floor else f"{p:.3g}"

    @property
    def words(self) -> str:
        """Format the p-value for a sentence, such as "p = 0.034" or "p ≤ 0.002, corrected ≤ 0.008"."""
        words = self.text(self.p)
        words = f"p {words}" if words.startswith("≤") else f"p = {words}"
        return words if self.corrected is None else f"{words}, corrected {self.text(self.corrected)}"


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
        return {"a": self.a, "b": self.b, None: None}[self.differences[metric].better]

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
                words.append(f"the difference in {noun} may be chance ({result.words})")
            else:
                other = self.b if best == self.a else self.a
                points = f"{100 * abs(result.difference):.2f} points"
                words.append(f"{best} is {better} than {other} by {points} ({result.words})")
        words += bias_words(self.differences["ece"], self.differences["debiased_ece"])
        if self.partial:
            words.append("the run is still in progress")
        seeds = f"seeds {', '.join(map(str, self.seeds))}" if len(self.seeds) > 1 else f"seed {self.seeds[0]}"
        return f"{where}, {self.a} against {self.b}, {self.images} images, {seeds}: {'; '.join(words)}."


def bias_words(ece: Difference, debiased: Difference) -> list[str]:
    """Return whether the debiased ECE confirms a significant difference of the ECE, as no or one clause."""
    if ece.better is None:
        return []
    if ece.better == debiased.better:
        return [f"the debiased ECE confirms it ({debiased.words})"]
    if max(debiased.a, debiased.b) <= 0:
        return ["the debiased ECE of both is 0 or less, so the bias of the ECE may explain it"]
    return [f"the debiased ECE does not confirm it ({debiased.words}), so the bias of the ECE may explain it"]


def compare_methods(
    results: Results,
    a: str,
    b: str,
    *,
    datasets: Sequence[str] | None = None,
    prompt: str | None = None,
    resamples: int | None = None,
    level: float = LEVEL,
) -> list[Comparison]:
    """Compare method ``a`` with ``b`` on each data set that has both, and over all of them if there are several.

    All seeds that both methods have are used; select others with the ``seeds`` of :func:`open_results`.

    Args:
        results: runs of one model.
        a, b: names of the methods.
        datasets: names of data sets; None for all.
        prompt: prompt of both methods, where the runs have several.
        resamples: number of bootstrap resamples; None for 1,000, or more for many tests.
        level: confidence level of the intervals.

    Returns:
        A comparison for each data set, and one over all if there are several.
    """
    return compare_with_others(results, a, [b], datasets=datasets, prompt=prompt, resamples=resamples, level=level)


def compare_with_others(
    results: Results,
    a: str,
    others: Sequence[str],
    *,
    datasets: Sequence[str] | None = None,
    prompt: str | None = None,
    resamples: int | None = None,
    level: float = LEVEL,
) -> list[Comparison]:
    """Compare method ``a`` with each of several others; see :func:`compare_methods`.

    The tests of a metric on a data set against all other methods are one family: Holm's correction holds the
    probability that any of them is called significant by chance below 5 %.

    Example:
        >>> compare_with_others(results, "o-tpt", ["zero-shot", "tpt", "c-tpt"])           # doctest: +SKIP
    """
    check_names("method", [a, *others], results.methods)
    if len({a, *others}) != 1 + len(others) or not others:
        raise OtptError(f"The methods are {a!r} against {', '.join(map(repr, others))}; expected different ones.")
    if resamples is None:
        resamples = max(RESAMPLES, LEAST_RESAMPLES_PER_TEST * len(others))
    comparisons: list[Comparison] = []
    for other in others:
        comparisons += _compare_two(results, a, other, datasets, prompt, resamples, level)
    order = list(dict.fromkeys(comparison.dataset for comparison in comparisons))
    return _corrected(sorted(comparisons, key=lambda comparison: order.index(comparison.dataset)))


def _corrected(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Add corrected p-values where a method is compared with several others on a data set."""
    changed = []
    for comparison in comparisons:
        family = [other for other in comparisons if other.dataset == comparison.dataset]
        differences = dict(comparison.differences)
        for metric in comparison.differences:
            corrected = correct_family([other.differences[metric] for other in family])
            differences[metric] = corrected[family.index(comparison)]
        changed.append(replace(comparison, differences=differences))
    return changed


def correct_family(differences: Sequence[Difference]) -> list[Difference]:
    """Add Holm-corrected p-values to the tests of one method against all others; a single test needs none."""
    if len(differences) < 2:
        return list(differences)
    corrected = holm([result.p for result in differences])
    return [replace(result, corrected=p) for result, p in zip(differences, corrected, strict=True)]


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct the p-values of a family of tests by Holm's step-down procedure.

    The i-th smallest of m p-values becomes max_{j ≤ i} min(1, (m − j + 1)·p_(j)).

    >>> [round(p, 3) for p in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    order = np.argsort(p_values, kind="stable")
    factors = len(p_values) - np.arange(len(p_values))
    stepped = np.maximum.accumulate(np.minimum(1.0, factors * np.asarray(p_values, np.float64)[order]))
    corrected = np.empty(len(p_values))
    corrected[order] = stepped
    return [float(p) for p in corrected]


def _compare_two(
    results: Results,
    a: str,
    b: str,
    datasets: Sequence[str] | None,
    prompt: str | None,
    resamples: int,
    level: float,
) -> list[Comparison]:
    """Compare two methods on each data set that has both, and over all of them if there are several."""
    pairs: dict[str, list[tuple[ResultKey, ResultKey]]] = {}
    for dataset in check_names("data set", datasets, results.datasets):
        if prompt is None:
            refuse_several_prompts(results, dataset, (a, b))
        chosen = choose(results, [dataset], [a, b], prompt)
        candidates = product(chosen.keys_of(method=a), chosen.keys_of(method=b))
        of_dataset = [pair for pair in candidates if _is_pair(*pair)]
        if of_dataset:
            pairs[dataset] = of_dataset
            sides = [Side(results, tuple(pair[at] for pair in of_dataset), COMPARED) for at in (0, 1)]
            if not saw_same_images(sides):
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
    a, b = (Side(results, tuple(pair[at] for pair in all_pairs), COMPARED, resamples) for at in (0, 1))
    only_a, only_b = discordant(a, b)
    return Comparison(
        dataset=ALL if len(pairs) > 1 else next(iter(pairs)),
        a=methods[0],
        b=methods[1],
        seeds=tuple(dict.fromkeys(key.seed for key in a.keys)),
        images=sum(len(results.rows(of_dataset[0][0])) for of_dataset in pairs.values()),
        only_a=only_a,
        only_b=only_b,
        partial=any(results.require_score(key)["partial"] for pair in all_pairs for key in pair),
        differences=paired_tests(a, b, level=level),
    )


def comparison_table(comparisons: Sequence[Comparison], level: float = LEVEL) -> pd.DataFrame:
    """Format comparisons of one method as a table of strings with one line per data set, other method and metric.

    The p-values of several tests are followed by the corrected ones, which decide the last column.
    """
    several = len({comparison.b for comparison in comparisons}) > 1
    lines = []
    for comparison in comparisons:
        for metric, result in comparison.differences.items():
            show = METRICS[metric].format
            is_first = metric == COMPARED[0]
            line = {"data set": comparison.dataset if is_first else ""}
            if several:
                line["against"] = comparison.b if is_first else ""
            line |= {
                "metric": METRICS[metric].heading,
                comparison.a: show(result.a),
                "other" if several else comparison.b: show(result.b),
                "difference": show(result.difference),
                f"{100 * level:g} %": f"{show(result.low)} … {show(result.high)}",
                "p": result.text(result.p),
            }
            if result.corrected is not None:
                line[HOLM] = result.text(result.corrected)
            lines.append({**line, "better": comparison.better(metric) or "–"})
    return pd.DataFrame(lines)


def comparison_frame(comparisons: Sequence[Comparison]) -> pd.DataFrame:
    """Return comparisons as a data frame of unrounded numbers with one row per data set, other method and metric."""
    rows = []
    for comparison in comparisons:
        keys = {"dataset": comparison.dataset, "method": comparison.a, "against": comparison.b}
        for metric, result in comparison.differences.items():
            values = {**asdict(result), "difference": result.difference, "better": comparison.better(metric)}
            rows.append({**keys, "images": comparison.images, **values})
    return pd.DataFrame(rows)


def comparison_notes(comparisons: Sequence[Comparison]) -> list[str]:
    """Return the conclusion of each comparison, and what the p-values of its table mean."""
    notes = [comparison.conclusion for comparison in comparisons]
    results = [result for comparison in comparisons for result in comparison.differences.values()]
    if any(result.corrected is not None for result in results):
        notes.append(
            f"{HOLM}: corrected for the tests of a metric against {len({one.b for one in comparisons})} methods; it "
            f"decides what is better, at {ALPHA:g}."
        )
    families = len({comparison.dataset for comparison in comparisons}) * len(COMPARED)
    notes.append(
        f"{families} {'families of tests' if len(results) > families else 'tests'}, one for each data set and metric: "
        f"about {ALPHA * families:.1f} of them are below {ALPHA:g} by chance alone."
    )
    if any(result.p <= result.floor for result in results):
        floor = min(result.floor for result in results if result.floor)
        notes.append(f"≤: no resample differs the other way; {2 / floor - 1:.0f} resamples cannot show a smaller p.")
    return notes


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
    first, second = (Side(results, tuple(keys), (metric,)) for keys in (a, b))
    return paired_tests(first, second)[metric] if saw_same_images([first, second]) else None


@dataclass(frozen=True, eq=False)
class Side:
    """A method in tests of differences.

    Attributes:
        results: runs of one model, which have the rows.
        keys: results over which metrics are averaged.
        metrics: names of the metrics.
        resamples: number of bootstrap resamples.
    """

    results: Results
    keys: tuple[ResultKey, ...]
    metrics: tuple[str, ...]
    resamples: int = RESAMPLES

    @cached_property
    def resampled(self) -> dict[str, Resampled]:
        """Metrics with their resamples."""
        return resample(self.results, self.metrics, self.keys, resamples=self.resamples)

    @cached_property
    def images(self) -> list[tuple[str, int, tuple[str, ...]]] | None:
        """Data set, seed and names of the images of each key; None if there are no images of one."""
        if not self.keys or any(self.results.score(key) is None for key in self.keys):
            return None
        return [(key.dataset, key.seed, self.results.rows(key).ids) for key in self.keys]

    @property
    def size(self) -> int:
        """Number of rows that are resampled."""
        scores = (self.results.score(key) for key in self.keys)
        return sum(0 if score is None else int(score["images"]) for score in scores)


def saw_same_images(sides: Sequence[Side]) -> bool:
    """Return whether several methods have results for the same images under all seeds of a data set."""
    first = sides[0].images
    if first is None or any(side.images != first for side in sides):
        return False
    of_datasets: dict[str, tuple[str, ...]] = {}
    return all(ids == of_datasets.setdefault(dataset, ids) for dataset, _, ids in first)


def paired_tests(a: Side, b: Side, *, level: float = LEVEL) -> dict[str, Difference]:
    """Test the differences of two methods on the same images, by metric.

    The accuracy under a single seed has the exact McNemar test, everything else the paired bootstrap.
    """
    tests = {metric: difference(a.resampled[metric], b.resampled[metric], level=level) for metric in a.metrics}
    once = len({key.seed for key in a.keys}) == 1 and len({key.dataset for key in a.keys}) == len(a.keys)
    if "accuracy" in tests and once:
        tests["accuracy"] = replace(tests["accuracy"], p=mcnemar_p(*discordant(a, b)), floor=0.0)
    return tests


def discordant(a: Side, b: Side) -> tuple[int, int]:
    """Count the images that only one of two methods gets right."""
    only_a = only_b = 0
    for key_a, key_b in zip(a.keys, b.keys, strict=True):
        correct_a, correct_b = a.results.rows(key_a).correct, b.results.rows(key_b).correct
        only_a += int((correct_a & ~correct_b).sum())
        only_b += int((correct_b & ~correct_a).sum())
    return only_a, only_b


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
    floor = 2.0 / (len(values) + 1)
    return Difference(a.metric, a.estimate, b.estimate, interval.low, interval.high, p, floor)


def bootstrap_p(differences: Floats) -> float:
    """Compute the two-sided p-value 2·min(P(d ≤ 0), P(d ≥ 0)) of resampled differences, always above 0."""
    below, above = int((differences <= 0).sum()), int((differences >= 0).sum())
    return min(1.0, 2.0 * (min(below, above) + 1) / (len(differences) + 1))


def mcnemar_p(only_first: int, only_second: int) -> float:
    """Return the p-value of the exact two-sided McNemar test."""
    n = only_first + only_second
    return min(1.0, 2.0 * float(bdtr(min(only_first, only_second), n, 0.5)))
