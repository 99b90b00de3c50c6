"""Two methods on the same images and views: how far apart they are, and whether it may be chance.

All seeds are used: metrics are averaged over seeds, images are resampled. Accuracy under a single seed has the exact
McNemar test. Both compare image by image, so what makes an image hard for all methods cancels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import pandas as pd

from otpt.errors import OtptError
from otpt.metrics import METRICS
from otpt.report.layouts import prompt_of
from otpt.report.results import FEW, LEVEL, ResultKey, Results, check_names
from otpt.report.statistics import RESAMPLES, Difference, difference, mcnemar_p, resample
from otpt.runs import Rows

ALL = "all data sets"
COMPARED = ("accuracy", "ece", "debiased_ece", "sce", "brier", "nll")


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
        found = asdict(self)
        found["differences"] = [
            {**asdict(each), "difference": each.difference, "better": self.better(metric)}
            for metric, each in self.differences.items()
        ]
        return {**found, "conclusion": self.conclusion}

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
        few = f"; with fewer than {FEW} images, most of an ECE may be bias" if self.images < FEW else ""
        partial = "; the run is still in progress" if self.partial else ""
        seeds = f"seeds {', '.join(map(str, self.seeds))}" if len(self.seeds) > 1 else f"seed {self.seeds[0]}"
        return f"{where}, {self.images} images, {seeds}: {words[0]}; {words[1]}{few}{partial}."


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
    pairs: dict[str, tuple[list[Rows], list[Rows]]] = {}
    seeds: dict[str, tuple[int, ...]] = {}
    partial = set()
    for dataset in datasets or results.datasets:
        prompts = [prompt_of(results, dataset, method, prompt) for method in (a, b)]
        of_a, of_b = (results.seeds_of(dataset, *each) for each in zip((a, b), prompts, strict=True))
        common = tuple(seed for seed in of_a if seed in of_b)
        if not common:
            continue
        keys = [[ResultKey(dataset, s, p, method) for s in common] for p, method in zip(prompts, (a, b), strict=True)]
        first, second = ([results.rows(key) for key in own] for own in keys)
        _check_same_images(dataset, a, b, [*first, *second])
        pairs[dataset], seeds[dataset] = (first, second), common
        if any(results.select(**key._asdict())["partial"].any() for own in keys for key in own):
            partial.add(dataset)
    if not pairs:
        raise OtptError(f"No data set of the runs has both {a!r} and {b!r} under one prompt and seed.")
    groups = [[dataset] for dataset in pairs] + ([list(pairs)] if len(pairs) > 1 else [])
    comparisons = []
    for group in groups:
        of_both = [
            resample(COMPARED, [pairs[name][k] for name in group], results.n_bins, results.side, resamples=resamples)
            for k in (0, 1)
        ]
        right = [(one.correct, other.correct) for name in group for one, other in zip(*pairs[name], strict=True)]
        only_a = sum(int((one & ~other).sum()) for one, other in right)
        only_b = sum(int((other & ~one).sum()) for one, other in right)
        used = tuple(dict.fromkeys(seed for name in group for seed in seeds[name]))
        exact = mcnemar_p(only_a, only_b) if len(used) == 1 else None
        differences = {
            metric: difference(
                of_both[0][metric], of_both[1][metric], level=level, p=exact if metric == "accuracy" else None
            )
            for metric in COMPARED
        }
        images = sum(len(pairs[name][0][0]) for name in group)
        name = group[0] if len(group) == 1 else ALL
        in_progress = bool(partial & set(group))
        comparisons.append(Comparison(name, a, b, used, images, only_a, only_b, in_progress, differences))
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
    datasets = list(datasets or results.datasets)
    found = {}
    for method in results.methods:
        try:
            places = [(name, prompt_of(results, name, method, prompt)) for name in datasets]
        except OtptError:  # several prompts
            continue
        values = [results.select(dataset=name, prompt=held, method=method)[metric] for name, held in places]
        if all(len(own) and own.notna().all() for own in values):
            found[method] = float(sum(own.mean() for own in values) / len(values))
    return dict(sorted(found.items(), key=lambda item: METRICS[metric].cost(item[1])))


def _check_same_images(dataset: str, a: str, b: str, rows: Sequence[Rows]) -> None:
    if any(each.ids != rows[0].ids for each in rows):
        counts = " and ".join(dict.fromkeys(str(len(each)) for each in rows))
        raise OtptError(
            f"{a!r} and {b!r} have not predicted the same images of {dataset!r} ({counts}), so they cannot be "
            "compared; finish both runs."
        )
