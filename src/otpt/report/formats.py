"""Tables as text for a terminal, Markdown, CSV, LaTeX (booktabs) or JSON. Names are escaped for each format."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from textwrap import fill
from typing import ClassVar, TypedDict

import pandas as pd

from otpt.errors import unknown
from otpt.escapes import csv_cell, latex, markdown, one_line, plain
from otpt.files import Json
from otpt.metrics import METRICS
from otpt.report.selection import DEVIATION

FORMATS = ("text", "markdown", "csv", "latex", "json")
TIE = "≈"
"""Mark of values that may differ from the best by chance."""
NOTHING = "–"
"""Text of an empty cell."""
KEYS = ("dataset", "method", "prompt", "metric")
NUMBERS = ("value", "deviation", "low", "high")
FLAGS = ("best", "tie", "partial")


class Cell(TypedDict):
    """One number of a table: a row of :attr:`Table.cells`."""

    dataset: str
    method: str
    prompt: str
    metric: str
    value: float
    deviation: float
    low: float
    high: float
    best: bool
    tie: bool
    partial: bool


CellText = Callable[[Cell], str]
"""Function that formats a cell."""


@dataclass(frozen=True)
class Table:
    """Table of cells.

    A subclass may show further numbers of its cells: it extends :attr:`numbers` and :attr:`flags`, and overrides
    :meth:`lines`, :attr:`subcolumns` or :meth:`label`.

    Attributes:
        name: name of the layout.
        title: line above the table.
        cells: a row per number with the keys :data:`KEYS`, the :attr:`numbers`, nan for none, in percent or the
            metric's own unit, and the :attr:`flags`: ``best`` of its column, ``tie`` if it may differ from the best by
            chance, ``partial`` while a run is in progress.
        rows: keys that identify a line.
        columns: key whose values are the columns.
        notes: sentences below the table.
        level: confidence level of the intervals, which are lines below the numbers; None omits them.
        stacked: whether the first name is a line of its own above its group; else it is a column.
    """

    numbers: ClassVar[tuple[str, ...]] = NUMBERS
    """Columns of the cells that hold numbers, in the order of CSV and JSON."""
    flags: ClassVar[tuple[str, ...]] = FLAGS
    """Columns of the cells that hold booleans."""

    name: str
    title: str
    cells: pd.DataFrame
    rows: tuple[str, ...] = ("method", "metric")
    columns: str = "dataset"
    notes: tuple[str, ...] = ()
    level: float | None = None
    stacked: bool = False

    def cell(self, **keys: str) -> pd.Series:
        """Return the cell with these keys: ``table.cell(method="o-tpt", metric="ece", dataset="dtd")``."""
        cells = self.cells
        for name, value in keys.items():
            cells = cells[cells[name] == value]
        return cells.iloc[0]

    def legend(self, best: str = "bold") -> list[str]:
        """Explain the marks that occur in the table.

        Args:
            best: how the best value is marked.
        """
        cells = self.cells
        marks = {
            f"{best}: best": cells["best"].astype(bool),
            f"{TIE}: may differ from it by chance (tests on the same images, p ≥ 0.05)": cells["tie"].astype(bool),
            "±: standard deviation over seeds": cells["deviation"].notna(),
        }
        words = [words for words, is_marked in marks.items() if is_marked.any()]
        sentences = [f"{'; '.join(words)}."] if words else []
        below_zero = cells["best"].astype(bool) & (cells["metric"] == "debiased_ece") & (cells["value"] < 0)
        if below_zero.any():
            sentences.append("A debiased ECE below 0 counts as 0, so several can be best.")
        return sentences

    def to_text(self, width: int | None = None) -> str:
        """Format as aligned columns, wrapped to the width; a star marks the best value."""
        has_marks = self.cells[["best", "tie"]].any(axis=None)
        strings = self._strings(plain, "{}*", f"{{}}{TIE}", "{} " if has_marks else "{}")
        return render_strings(strings, self._names, "text", self.title, [*self.legend("*"), *self.notes], width=width)

    def to_markdown(self) -> str:
        """Format as a Markdown pipe table with the best value in bold."""
        strings = self._strings(markdown, "**{}**", f"{{}} {TIE}")
        return _markdown_table(strings, self._names, self.title, [*self.legend(), *self.notes])

    def to_latex(self) -> str:
        """Format as a LaTeX ``table`` with booktabs and the best value in bold."""
        strings = self._strings(latex, r"\textbf{{{}}}", r"{} $\approx$", group=r"\midrule ")
        return _latex_table(strings, self._names, self.title, [*self.legend(), *self.notes])

    def to_csv(self) -> str:
        """Format as CSV with unrounded numbers.

        ``kind`` is one of :attr:`numbers`, or "best" or "tie" with 1 for values that have the mark and 0 for others.
        """
        lines = []
        for key, group in self.cells.groupby(list(self.rows), sort=False):
            names = dict(zip(self.rows, map(csv_cell, key), strict=True))
            partial = group.loc[group["partial"].astype(bool), self.columns]
            for kind in self.numbers:
                if kind == "value" or group[kind].notna().any():
                    numbers = dict(zip(map(csv_cell, group[self.columns]), group[kind], strict=True))
                    note = f"in progress: {'; '.join(partial)}" if len(partial) and kind == "value" else ""
                    lines.append({"table": csv_cell(self.title), **names, "kind": kind, **numbers, "notes": note})
            for flag in ("best", "tie"):
                if self.cells[flag].any():
                    marks = dict(zip(map(csv_cell, group[self.columns]), group[flag].astype(float), strict=True))
                    lines.append({"table": csv_cell(self.title), **names, "kind": flag, **marks, "notes": ""})
        heads = ["table", *self.rows, "kind", *map(csv_cell, dict.fromkeys(self.cells[self.columns])), "notes"]
        return str(pd.DataFrame(lines, columns=heads).to_csv(index=False, lineterminator="\n"))

    def to_dict(self) -> dict[str, Json]:
        """Return all cells as plain data, with None for nan."""
        cells = self.cells[[*KEYS, *self.numbers, *self.flags]].astype(object)
        return {
            "layout": self.name,
            "title": self.title,
            "level": self.level,
            "cells": cells.where(cells.notna(), None).to_dict("records"),
            "legend": self.legend("best"),
            "notes": list(self.notes),
        }

    def to_json(self) -> str:
        """Return :meth:`to_dict` as JSON."""
        return _json(self.to_dict())

    def _repr_html_(self) -> str:
        table = self._strings(plain, "{}*", f"{{}} {TIE}").to_html(index=False)
        return table + "".join(f"<p>{escape(sentence)}</p>" for sentence in self.legend("*"))

    @property
    def _names(self) -> int:
        return len(self.rows) - self.stacked

    def _groups(self) -> Iterator[tuple[tuple[str, ...], dict[str, Cell]]]:
        """Yield the keys of each line and its cells by column."""
        for key, group in self.cells.groupby(list(self.rows), sort=False):
            yield key, dict(zip(group[self.columns], group.to_dict("records"), strict=True))

    def _strings(
        self, escaped: Callable[[str], str], best: str, tie: str, other: str = "{}", *, group: str = ""
    ) -> pd.DataFrame:
        """Return the table as strings, given patterns for best values, ties and others; ``group`` precedes a group."""
        columns = list(dict.fromkeys(self.cells[self.columns]))
        heads = [{"dataset": "Set"}.get(key, key.capitalize()) for key in self.rows[self.stacked :]]
        heads = ["", *heads[1:]] if self.stacked else heads
        for column in columns:
            heads += [escaped(self.label(self.columns, column)), *self.subcolumns]
        lines: list[list[str]] = []
        before = None
        for key, cells in self._groups():
            names = [escaped(self.label(name, value)) for name, value in zip(self.rows, key, strict=True)]
            is_new, before = key[0] != before, key[0]
            if self.stacked:
                if is_new:
                    lines.append([group * bool(lines) + names[0]] + [""] * (len(heads) - 1))
                names = ["  " + names[1], *names[2:]]
            elif len(names) > 1:
                names[0] = group * bool(lines) + names[0] if is_new else ""
            for head, kinds in self.lines(cells):
                texts = []
                for column in columns:
                    cell = cells.get(column)
                    pattern = other
                    if cell is not None and not head:
                        pattern = best if cell["best"] else tie if cell["tie"] else other
                    texts += [pattern.format(NOTHING if cell is None else escaped(kind(cell))) for kind in kinds]
                lines.append([*([*[""] * (len(names) - 1), escaped(head)] if head else names), *texts])
        return pd.DataFrame(lines, columns=pd.Index(heads))

    @property
    def subcolumns(self) -> tuple[str, ...]:
        """Heads of the columns that follow each column; :meth:`lines` has a function for each."""
        return ()

    def lines(self, cells: Mapping[str, Cell]) -> Iterator[tuple[str, tuple[CellText, ...]]]:
        """Yield the lines of one row.

        Args:
            cells: cells of the row by column.

        Yields:
            The head of a line, "" for the first one, and the functions that format a cell, one for the column and one
            for each of its :attr:`subcolumns`.
        """
        yield "", (number_text,)
        if self.level is not None:
            yield f"– {100 * self.level:g} %", (_range,)

    def label(self, key: str, value: str) -> str:
        """Return how the value of a key is shown: the heading of a metric, other names unchanged."""
        return METRICS[value].heading if key == "metric" and value in METRICS else value


def render(tables: Sequence[Table], form: str, *, width: int | None = None) -> str:
    """Render tables in a format of :data:`FORMATS`; ``width`` is the terminal width."""
    if form not in FORMATS:
        raise unknown("format", form, FORMATS)
    if form == "json":
        return _json([table.to_dict() for table in tables])
    if form == "text":
        return "\n".join(table.to_text(width) for table in tables) + "\n"
    write = {"markdown": Table.to_markdown, "csv": Table.to_csv, "latex": Table.to_latex}[form]
    return "\n".join(write(table) for table in tables)


def render_strings(
    strings: pd.DataFrame,
    names: int,
    form: str,
    title: str = "",
    notes: Sequence[str] = (),
    *,
    width: int | None = None,
) -> str:
    """Render a table of unescaped strings as text, Markdown or LaTeX.

    Args:
        strings: cells, without special characters of the format.
        names: number of columns of names, which are aligned left.
        form: "text", "markdown" or "latex".
        title: line above the table.
        notes: sentences below it.
        width: width of the terminal.
    """
    if form == "text":
        text = text_table(strings, names, width)
        lines = [title, text, *notes]
        return "\n".join(line if line is text else _wrapped(line, width) for line in lines if line) + "\n"
    escaped, write = {"markdown": (markdown, _markdown_table), "latex": (latex, _latex_table)}[form]
    columns = pd.Index([escaped(str(head)) for head in strings.columns])
    return write(strings.astype(str).map(escaped).set_axis(columns, axis=1), names, title, notes)


def _markdown_table(escaped: pd.DataFrame, names: int, title: str, notes: Sequence[str]) -> str:
    """Return a Markdown table of escaped strings; title and notes are escaped here."""
    sides = ["left"] * names + ["right"] * (escaped.shape[1] - names)
    table = escaped.to_markdown(index=False, disable_numparse=True, colalign=sides)
    title, *sentences = (markdown(line, len(line)) for line in (title, *notes))
    return "\n\n".join([*([f"**{title}**"] if title else []), table, *sentences]) + "\n"


def _latex_table(escaped: pd.DataFrame, names: int, title: str, notes: Sequence[str]) -> str:
    """Return a LaTeX table of escaped strings; title and notes are escaped here."""
    sides = "l" * names + "r" * (escaped.shape[1] - names)
    tabular = escaped.to_latex(index=False, escape=False, column_format=sides).rstrip()
    title, *sentences = (" ".join(map(latex, line.split())) for line in (title, *notes))
    lines = [r"% needs \usepackage{booktabs}", r"\begin{table}", r"\centering", rf"\caption{{{title}}}", tabular]
    return "\n".join([*lines, *(rf"\par\footnotesize {note}" for note in sentences), r"\end{table}"]) + "\n"


def text_table(strings: pd.DataFrame, names: int, width: int | None = None) -> str:
    """Align strings in columns; the first ``names`` columns are repeated when others wrap."""
    columns = []
    for at, head in enumerate(strings.columns):
        cells = [one_line(str(cell)) for cell in (head, *strings.iloc[:, at])]
        size = max(map(len, cells))
        columns.append([cell.ljust(size) if at < names else cell.rjust(size) for cell in cells])
    left = columns[:names]
    parts: list[list[list[str]]] = [[]]
    for column in columns[names:]:
        used = sum(len(neighbour[0]) + 2 for neighbour in [*left, *parts[-1]])
        if parts[-1] and width is not None and used + len(column[0]) > width:
            parts.append([])
        parts[-1].append(column)
    blocks = []
    for part in parts:
        lines = ["  ".join(line).rstrip() for line in zip(*left, *part, strict=True)]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def shown(metric: str, value: float) -> str:
    """Format a number of a cell."""
    base = METRICS.get(metric.removesuffix(DEVIATION))
    if base is None:
        return f"{value:.2f}"
    return base.format(value / 100.0 if base.unit == "%" else value)


def number_text(cell: Cell) -> str:
    """Format the number of a cell with its deviation over seeds."""
    if pd.isna(cell["value"]):
        return NOTHING
    text = shown(cell["metric"], cell["value"])
    if pd.notna(cell["deviation"]):
        text += f" ± {shown(cell['metric'], cell['deviation'])}"
    return f"{text}…" if cell["partial"] else text


def _range(cell: Cell) -> str:
    if pd.isna(cell["low"]):
        return NOTHING
    return f"{shown(cell['metric'], cell['low'])}–{shown(cell['metric'], cell['high'])}"


def _json(data: Json) -> str:
    return json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _wrapped(note: str, width: int | None) -> str:
    text = " ".join(map(plain, note.split()))
    return text if width is None else fill(text, width)
