"""Two methods on the same images and views: how far apart they are, and whether it may be chance.

Accuracy: exact McNemar test. ECE, debiased ECE, SCE, Brier score and NLL: paired bootstrap. Both compare image by
image, so what makes an image hard for all methods cancels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from otpt.errors import OtptError
from otpt.metrics.bootstrap import centred, centred_interval
from otpt.report.defaults import FEW, LEVEL, RESAMPLES
from otpt.report.names import check_names
from otpt.report.prompts import prompt_of
from otpt.report.results import ResultKey, Results
from otpt.report.statistics import all_resampled, bootstrap_p, mcnemar_p
from otpt.report.tables.table import cost
from otpt.runs import Rows

ALL = "all data sets"
COMPARED = ("accuracy", "ece", "debiased_ece", "sce", "brier", "nll")
ALPHA = 0.05
"""A difference with a smaller p is called one; others may be chance."""


@dataclass(frozen=True)
class Difference:
    """One metric of two methods on one data set, or averaged over all. Fractions, not percent.

    Attributes:
        difference: a − b, with its bootstrap interval.
        p: of "no difference": McNemar's for accuracy, the bootstrap's for the others.
        better: the method with the better value if p < 0.05; None if it may be chance.
    """

    metric: str
    a: float
    b: float
    difference: float
    low: float
    high: float
    p: float
    better: str | None


@dataclass(frozen=True)
class Comparison:
    """Two methods on one data set, or over all: ``dataset`` is then "all data sets".

    Attributes:
        only_a, only_b: images that only one of them gets right.
        partial: a run is still in progress.
    """

    dataset: str
    images: int
    only_a: int
    only_b: int
    partial: bool
    differences: tuple[Difference, ...]

    def of(self, metric: str) -> Difference:
        """The difference in a metric."""
        return next(each for each in self.differences if each.metric == metric)

    def as_dict(self) -> dict[str, object]:
        """Plain data."""
        return asdict(self)


def compare_methods(
    results: Results,
    a: str,
    b: str,
    *,
    datasets: Sequence[str] | None = None,
    seed: int | None = None,
    prompt: str | None = None,
    resamples: int = RESAMPLES,
    level: float = LEVEL,
) -> list[Comparison]:
    """Method ``a`` against ``b`` on each data set that has both, and over all of them if there are several.

    One seed is compared, the first by default: images seen under several seeds are not independent.
    """
    check_names("method", (a, b), results.methods)
    if a == b:
        raise OtptError(f"Method {a!r} was given twice; expected two methods to compare.")
    check_names("data set", datasets, results.datasets)
    seed = results.seeds[0] if seed is None else seed
    check_names("seed", [str(seed)], [str(each) for each in results.seeds])
    found: dict[str, tuple[Rows, Rows]] = {}
    partial = set()
    for dataset in datasets or results.datasets:
        keys = [ResultKey(dataset, seed, prompt_of(results, dataset, method, prompt), method) for method in (a, b)]
        if any(results.score(key) is None for key in keys):
            continue
        found[dataset] = _same_images(*(results.rows(key) for key in keys), dataset=dataset, a=a, b=b)
        if any(results.is_partial(key) for key in keys):
            partial.add(dataset)
    if not found:
        raise OtptError(f"No data set of the runs has both {a!r} and {b!r} under one prompt and seed {seed}.")
    groups = [[dataset] for dataset in found] + ([list(found)] if len(found) > 1 else [])
    comparisons = []
    for group in groups:
        pairs = [found[dataset] for dataset in group]
        only_a = sum(int((first.correct & ~second.correct).sum()) for first, second in pairs)
        only_b = sum(int((second.correct & ~first.correct).sum()) for first, second in pairs)
        of_both = [
            all_resampled(COMPARED, [[pair[k]] for pair in pairs], results.bins, results.side, resamples=resamples)
            for k in (0, 1)
        ]
        differences = []
        for metric in COMPARED:
            (of_a, values_a), (of_b, values_b) = (each[metric] for each in of_both)
            values = values_a - values_b
            interval = centred_interval(of_a - of_b, values, level)
            p = mcnemar_p(only_a, only_b) if metric == "accuracy" else bootstrap_p(centred(of_a - of_b, values))
            better = None
            if p < ALPHA and cost(metric, of_a) != cost(metric, of_b):
                better = a if cost(metric, of_a) < cost(metric, of_b) else b
            differences.append(Difference(metric, of_a, of_b, of_a - of_b, interval.low, interval.high, p, better))
        images = sum(len(first) for first, _ in pairs)
        name = group[0] if len(group) == 1 else ALL
        comparisons.append(Comparison(name, images, only_a, only_b, bool(partial & set(group)), tuple(differences)))
    return comparisons


def conclusion(comparison: Comparison, a: str, b: str) -> str:
    """What the numbers say, in words."""
    where = "Over all data sets" if comparison.dataset == ALL else f"On {comparison.dataset}"
    accuracy, ece = comparison.of("accuracy"), comparison.of("ece")
    words = []
    for each, better, worse in ((accuracy, "more accurate", "accuracy"), (ece, "better calibrated", "ECE")):
        if each.better is None:
            words.append(f"the difference in {worse} may be chance (p = {each.p:.3g})")
        else:
            other = b if each.better == a else a
            words.append(
                f"{each.better} is {better} than {other} by {100 * abs(each.difference):.2f} points (p = {each.p:.3g})"
            )
    partial = "; the run is still in progress" if comparison.partial else ""
    few = f"; with fewer than {FEW} images, most of an ECE may be bias" if comparison.images < FEW else ""
    return f"{where}, {comparison.images} images: {words[0]}; {words[1]}{few}{partial}."


def _same_images(first: Rows, second: Rows, *, dataset: str, a: str, b: str) -> tuple[Rows, Rows]:
    if first.ids != second.ids:
        raise OtptError(
            f"{a!r} and {b!r} have not predicted the same images of {dataset!r} ({len(first)} and {len(second)}), so "
            "they cannot be compared; finish both runs."
        )
    if not len(first):
        raise OtptError(f"No image of {dataset!r} could be read, so there is nothing to compare.")
    return first, second
