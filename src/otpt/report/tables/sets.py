"""Prediction sets and abstention of a run as lines of text: coverage and risk with their binomial intervals."""

from __future__ import annotations

from collections.abc import Sequence

from otpt.metrics import percent
from otpt.report.tables.table import NOTHING
from otpt.runs import Score

COLUMNS = ("method", "data set", "seed", "coverage %", "95 %", "set size", "answered %", "risk %", "95 %")


def set_rows(scores: Sequence[Score]) -> list[tuple[str, ...]]:
    """A row under :data:`COLUMNS` for each score that has sets or abstains."""
    found: list[tuple[str, ...]] = []
    for score in scores:
        own = score.sets
        if own is None:
            continue
        size = NOTHING if own.set_size is None else f"{own.set_size:.2f}"
        numbers = (_percent(own.coverage), _range(own.coverage_interval), size)
        risk = (_percent(own.answered), _percent(own.risk), _range(own.risk_interval))
        found.append((score.method, score.dataset, str(score.seed), *numbers, *risk))
    return found


def _percent(value: float | None) -> str:
    return NOTHING if value is None else percent(value)


def _range(interval: tuple[float, float] | None) -> str:
    return NOTHING if interval is None else " … ".join(map(percent, interval))
