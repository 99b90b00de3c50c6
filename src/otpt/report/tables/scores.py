"""Plain tables of scores, without a paper's layout: methods down, metrics or data sets across, averages computed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from otpt.metrics import percent
from otpt.runs import Score, averages

TITLES = {
    "accuracy": "accuracy %",
    "top5_accuracy": "top-5 %",
    "ece": "ECE %",
    "adaptive_ece": "adaptive ECE %",
    "mce": "MCE %",
    "sce": "SCE %",
    "overconfidence": "over-confidence %",
    "brier": "Brier",
    "nll": "NLL",
}
ACROSS = ("accuracy", "ece", "sce")
"""Metrics that get a table of their own where there are several data sets."""

AVERAGE = "average"
NOTHING = "–"
_OWN_UNIT = {"brier", "nll"}


@dataclass(frozen=True)
class Number:
    """A metric, averaged over data sets and seeds.

    Attributes:
        value: the mean.
        deviation: sample standard deviation over seeds; None with one.
        best: no other of its group is better.
    """

    metric: str
    value: float
    deviation: float | None = None
    best: bool = False

    @property
    def mean(self) -> str:
        """The mean as it is shown."""
        return self._shown(self.value)

    @property
    def text(self) -> str:
        """As it is shown, with its deviation."""
        return self.mean if self.deviation is None else f"{self.mean} ± {self._shown(self.deviation)}"

    def _shown(self, value: float) -> str:
        return f"{value:.4f}" if self.metric in _OWN_UNIT else percent(value)


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


def score_tables(scores: Sequence[Score]) -> list[ScoreTable]:
    """One table of all metrics for a single data set; for several, one per metric with their average."""
    datasets = _datasets(scores)
    if len(datasets) > 1:
        return [metric_table(scores, metric) for metric in ACROSS]
    rows = [
        ScoreRow(method, prompt, tuple(number_of(own, metric, datasets) for metric in TITLES))
        for (method, prompt), own in _by_row(scores).items()
    ]
    return [ScoreTable(datasets[0], tuple(TITLES.values()), tuple(rows))]


def metric_table(
    scores: Sequence[Score], metric: str, *, datasets: Sequence[str] | None = None, methods: Sequence[str] | None = None
) -> ScoreTable:
    """One metric: a column for each data set, then their average; all of the scores, or only some in this order."""
    shown = list(datasets or _datasets(scores))
    held = _by_row(scores)
    wanted = [key for method in methods for key in held if key[0] == method] if methods is not None else list(held)
    rows = [
        ScoreRow(*key, tuple(number_of(held[key], metric, own) for own in (*([name] for name in shown), shown)))
        for key in wanted
    ]
    return ScoreTable(TITLES[metric], (*shown, AVERAGE), tuple(rows))


def number_of(scores: Iterable[Score], metric: str, datasets: Sequence[str]) -> Number | None:
    """A metric of one method averaged over ``datasets``; None if one of them has no value under one of the seeds."""
    own = [replace(score, prompt="") for score in scores if score.dataset in datasets]
    if {score.dataset for score in own} != set(datasets):
        return None
    found = next(iter(averages(own)), None)
    if found is None:
        return None
    return Number(metric, found.metrics[metric], None if found.deviation is None else found.deviation[metric])


def _datasets(scores: Sequence[Score]) -> list[str]:
    return list(dict.fromkeys(score.dataset for score in scores))


def _by_row(scores: Sequence[Score]) -> dict[tuple[str, str], list[Score]]:
    """(method, prompt) → its scores."""
    found: dict[tuple[str, str], list[Score]] = {}
    for score in scores:
        found.setdefault((score.method, score.prompt), []).append(score)
    return found
