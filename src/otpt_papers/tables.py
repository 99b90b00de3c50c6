"""Tables with a paper's numbers next to those of the runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from otpt.files import Json
from otpt.report import Table
from otpt.report.formats import FLAGS, NOTHING, NUMBERS, Cell, CellText, number_text, shown
from otpt.report.tables import EMPTY
from otpt_papers.titles import dataset_title, method_title, metric_title

NO_NUMBERS: Mapping[str, float | bool] = {"paper": np.nan, "difference": np.nan, "wrong": False}
"""What the paper adds to a cell, for a cell that it has no number of."""
NOTHING_AT_ALL: Mapping[str, float | bool] = {**EMPTY, **NO_NUMBERS}
"""Numbers and flags of a cell with neither a number of the runs nor of the paper."""

_TITLES: Mapping[str, Callable[[str], str]] = {
    "dataset": dataset_title,
    "method": method_title,
    "prompt": str,
    "metric": metric_title,
}


@dataclass(frozen=True)
class PaperTable(Table):
    """Table in a layout of a paper, with its titles of methods and data sets.

    The cells have two more numbers, ``paper`` and ``difference``, and the flag ``wrong`` for a printed average that
    its row contradicts.

    Attributes:
        paper: the paper's table whose numbers are shown; None without.
        across: whether the paper's number and the difference are columns of their own; else they are lines below.
    """

    numbers: ClassVar[tuple[str, ...]] = (*NUMBERS, "paper", "difference")
    flags: ClassVar[tuple[str, ...]] = (*FLAGS, "wrong")

    paper: str | None = None
    across: bool = False

    @property
    def subcolumns(self) -> tuple[str, ...]:
        """Heads of the paper's columns."""
        return ("theirs", "diff.") if self.across else ()

    def lines(self, cells: Mapping[str, Cell]) -> Iterator[tuple[str, tuple[CellText, ...]]]:
        """Yield the lines of one row, with those of the paper."""
        if self.across:
            yield "", (number_text, _paper_text, _difference_text)
            return
        yield from super().lines(cells)
        if self.paper is not None and not all(math.isnan(_number(cell, "paper")) for cell in cells.values()):
            yield "– paper", (_paper_text,)
            yield "– difference", (_difference_text,)

    def label(self, key: str, value: str) -> str:
        """Return the paper's title of a name."""
        return _TITLES[key](value)

    def to_dict(self) -> dict[str, Json]:
        """Return all cells as plain data, with None for nan."""
        facts = super().to_dict()
        head: dict[str, Json] = {"layout": facts.pop("layout"), "title": facts.pop("title")}
        return {**head, "paper_table": self.paper, **facts}


def _number(cell: Cell, name: str) -> float:
    """Return one of the paper's numbers of a cell, or nan."""
    value = cell.get(name)
    return value if isinstance(value, float) else math.nan


def _paper_text(cell: Cell) -> str:
    number = _number(cell, "paper")
    if math.isnan(number):
        return NOTHING
    return f"{shown(cell['metric'], number)}{' !' if cell.get('wrong') else ''}"


def _difference_text(cell: Cell) -> str:
    number = _number(cell, "difference")
    if math.isnan(number):
        return NOTHING
    text = shown(cell["metric"], number)
    return f"−{text[1:]}" if text.startswith("-") else f"+{text}"
