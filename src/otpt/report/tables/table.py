"""Tables in the paper's layouts: one line for each method and metric, data sets across, their average computed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from otpt.metrics import METRICS

AVERAGE = "average"
NOTHING = "–"
"""A cell without a number."""
PRINTED = "printed"
"""Key of the column with the averages that the paper prints."""


@dataclass(frozen=True)
class Column:
    """One data set, or the average. ``key`` is its name, ``title`` stands above it."""

    key: str
    title: str


@dataclass(frozen=True)
class Entry:
    """One number, in percent (SCE: 10⁻²), and what is known about it.

    Attributes:
        value: None if there is none.
        deviation: sample standard deviation over seeds, where there are several.
        low, high: ends of the bootstrap interval, where it was asked for.
        paper: what the paper has there.
        best: no other method is better in this column, as printed.
        partial: the run is still in progress.
        wrong: the paper's number is an average that its own row does not give.
    """

    value: float | None = None
    deviation: float | None = None
    low: float | None = None
    high: float | None = None
    paper: float | None = None
    best: bool = False
    partial: bool = False
    wrong: bool = False

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's."""
        return None if self.value is None or self.paper is None else self.value - self.paper


@dataclass(frozen=True)
class Line:
    """One metric of one method, an entry for each column."""

    method: str
    metric: str
    entries: tuple[Entry, ...]


@dataclass(frozen=True)
class Table:
    """A table, ready to be written in any format.

    Attributes:
        level: of the intervals, None without.
        paper: the number of the paper's table that is shown beside, None without.
        notes: what a reader must know.
    """

    layout: str
    title: str
    columns: tuple[Column, ...]
    lines: tuple[Line, ...]
    notes: tuple[str, ...] = ()
    level: float | None = None
    paper: int | str | None = None

    def entry(self, method: str, metric: str, column: str) -> Entry:
        """The entry of a method and metric in a column."""
        at = [each.key for each in self.columns].index(column)
        return next(line.entries[at] for line in self.lines if (line.method, line.metric) == (method, metric))


def mark_best(lines: Iterable[Line]) -> tuple[Line, ...]:
    """The lines, with the best entry of each column and metric marked; with one method there is none."""
    lines = list(lines)
    least: dict[tuple[str, int], str] = {}
    for metric in dict.fromkeys(line.metric for line in lines):
        own = [line for line in lines if line.metric == metric]
        for at in range(len(own[0].entries)):
            costs = [cost(metric, value) for line in own if (value := line.entries[at].value) is not None]
            if len(costs) > 1:
                least[metric, at] = shown(min(costs))
    marked = []
    for line in lines:
        entries = (
            replace(e, best=e.value is not None and shown(cost(line.metric, e.value)) == least.get((line.metric, at)))
            for at, e in enumerate(line.entries)
        )
        marked.append(replace(line, entries=tuple(entries)))
    return tuple(marked)


def cost(metric: str, value: float) -> float:
    """Return a number that is lower for better values; a deviation over seeds is best low."""
    return METRICS[metric].cost(value) if metric in METRICS else value


def shown(value: float) -> str:
    """A percentage as tables print it."""
    from otpt.metrics import percent

    return percent(value / 100.0)
