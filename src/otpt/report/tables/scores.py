"""Plain tables of scores, without a paper's layout: methods down, metrics or data sets across, averages computed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from otpt.metrics import METRICS, Interval
from otpt.report.names import check_names
from otpt.report.tables.table import AVERAGE, NOTHING, cost
from otpt.runs import Score, averages

TITLES = {name: metric.heading for name, metric in METRICS.items() if metric.best and metric.needs != "probabilities"}
TOPICS = (
    ("accuracy", "top5_accuracy", "macro_f1", "brier", "nll"),
    ("ece", "debiased_ece", "adaptive_ece", "mce", "sce"),
    ("smooth_ece", "ks_error", "overconfidence", "top_label_brier"),
    ("aurc", "excess_aurc", "auroc", "fpr95", "selective_accuracy", "coverage_at_risk"),
)
"""The tables of a single data set, each narrow enough for a terminal: accuracy, calibration with bins and without,
selective prediction."""

ACROSS = ("accuracy", "ece", "debiased_ece", "sce")
"""Metrics that get a table of their own where there are several data sets."""

Intervals: TypeAlias = Callable[[str, str, Sequence[str]], Mapping[str, Interval]]
"""(method, prompt, data sets) → the bootstrap interval of each metric over them."""


@dataclass(frozen=True)
class Number:
    """A metric, averaged over data sets and seeds.

    Attributes:
        value: the mean.
        deviation: sample standard deviation over seeds; None with one.
        best: no other of its group is better.
        interval: over images, where it was asked for.
    """

    metric: str
    value: float
    deviation: float | None = None
    best: bool = False
    interval: Interval | None = None

    @property
    def mean(self) -> str:
        """The mean as it is shown."""
        return self._shown(self.value)

    @property
    def cost(self) -> str:
        """What ranks the number (:func:`~otpt.report.tables.table.cost`), as it is shown."""
        return self._shown(cost(self.metric, self.value))

    @property
    def text(self) -> str:
        """As it is shown, with its deviation."""
        return self.mean if self.deviation is None else f"{self.mean} ± {self._shown(self.deviation)}"

    @property
    def range(self) -> str:
        """The interval as it is shown."""
        if self.interval is None:
            return NOTHING
        return f"{self._shown(self.interval.low)} … {self._shown(self.interval.high)}"

    def _shown(self, value: float) -> str:
        return METRICS[self.metric].format(value)


@dataclass(frozen=True)
class ScoreRow:
    """A method with a prompt; a number for each column, None where there is none."""

    method: str
    prompt: str
    numbers: tuple[Number | None, ...]


@dataclass(frozen=True)
class ScoreTable:
    """Rows of numbers under ``columns``; ``title`` says what they are."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[ScoreRow, ...]

    @property
    def several_prompts(self) -> bool:
        """Whether the prompt tells rows apart."""
        return len({row.prompt for row in self.rows}) > 1


def score_tables(
    scores: Sequence[Score], *, metrics: Sequence[str] | None = None, intervals: Intervals | None = None
) -> list[ScoreTable]:
    """Of a single data set, the tables of :data:`TOPICS`; of several, one per metric with their average.

    Args:
        metrics: only these: in one table for a single data set.
        intervals: bootstrap intervals, for each number.
    """
    check_names("metric", metrics, TITLES)
    datasets = _datasets(scores)
    if len(datasets) > 1:
        return [metric_table(scores, metric, intervals=intervals) for metric in metrics or ACROSS]
    tables = []
    for topic in TOPICS if metrics is None else (metrics,):
        rows = []
        for (method, prompt), own in _by_row(scores).items():
            numbers = [number_of(own, metric, datasets, intervals=intervals) for metric in topic]
            rows.append(ScoreRow(method, prompt, tuple(numbers)))
        tables.append(ScoreTable(datasets[0], tuple(TITLES[metric] for metric in topic), tuple(rows)))
    return tables


def metric_table(
    scores: Sequence[Score],
    metric: str,
    *,
    datasets: Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
    intervals: Intervals | None = None,
) -> ScoreTable:
    """One metric: a column for each data set, then their average; all of the scores, or only some in this order."""
    shown = list(datasets or _datasets(scores))
    held = _by_row(scores)
    wanted = [key for method in methods for key in held if key[0] == method] if methods is not None else list(held)
    rows = []
    for key in wanted:
        groups = (*([name] for name in shown), shown)
        rows.append(ScoreRow(*key, tuple(number_of(held[key], metric, own, intervals=intervals) for own in groups)))
    return ScoreTable(TITLES[metric], (*shown, AVERAGE), tuple(rows))


def number_of(
    scores: Iterable[Score], metric: str, datasets: Sequence[str], *, intervals: Intervals | None = None
) -> Number | None:
    """A metric of one method averaged over ``datasets``; None if one of them has no value under one of the seeds."""
    given = [score for score in scores if score.dataset in datasets]
    own = [replace(score, prompt="") for score in given]
    if {score.dataset for score in own} != set(datasets):
        return None
    found = next(iter(averages(own)), None)
    if found is None or metric not in found.metrics:
        return None
    interval = None if intervals is None else intervals(given[0].method, given[0].prompt, datasets)[metric]
    deviation = None if found.deviation is None else found.deviation[metric]
    return Number(metric, found.metrics[metric], deviation, interval=interval)


def _datasets(scores: Sequence[Score]) -> list[str]:
    return list(dict.fromkeys(score.dataset for score in scores))


def _by_row(scores: Sequence[Score]) -> dict[tuple[str, str], list[Score]]:
    """(method, prompt) → its scores."""
    found: dict[tuple[str, str], list[Score]] = {}
    for score in scores:
        found.setdefault((score.method, score.prompt), []).append(score)
    return found
