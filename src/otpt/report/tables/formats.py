"""Tables as text: for a terminal, as Markdown, CSV, LaTeX (booktabs) or JSON."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TypeVar

from otpt.errors import unknown
from otpt.report.tables.escaping import csv_text
from otpt.report.tables.grid import Grid, GridRow, grids_as_latex, grids_as_markdown, grids_as_terminal
from otpt.report.tables.layouts import METRIC_TITLES, method_title
from otpt.report.tables.table import NOTHING, Entry, Line, Table, shown

FORMATS = ("terminal", "markdown", "csv", "latex", "json")
"""Formats in which a table can be written."""

_T = TypeVar("_T")


def render(tables: Sequence[Table], form: str, *, colour: bool = False, width: int | None = None) -> str:
    """The tables in a format of :data:`FORMATS`; ``colour`` and ``width`` are those of a terminal."""
    return written(tables, form, grid=_grid, data=table_data, as_csv=_csv, colour=colour, width=width)


def written(
    tables: Sequence[_T],
    form: str,
    *,
    grid: Callable[[_T], Grid],
    data: Callable[[_T], Mapping[str, object]],
    as_csv: Callable[[Sequence[_T]], str],
    colour: bool,
    width: int | None,
) -> str:
    """Tables of any kind, by what each is as a grid of text and as plain data, and all of them as CSV."""
    if form not in FORMATS:
        raise unknown("format", form, FORMATS)
    if form == "csv":
        return as_csv(tables)
    if form == "json":
        return json.dumps([data(table) for table in tables], indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    grids = map(grid, tables)
    if form == "terminal":
        return grids_as_terminal(grids, colour=colour, width=width)
    return grids_as_markdown(grids) if form == "markdown" else grids_as_latex(grids)


def _csv(tables: Sequence[Table]) -> str:
    """The layout with unrounded numbers; ``kind`` says what a line holds, ``notes`` which columns are in progress."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    for position, table in enumerate(tables):
        if position:
            writer.writerow([])
        writer.writerow(["table", "method", "metric", "kind", *(csv_text(c.key) for c in table.columns), "notes"])
        for line in table.lines:
            partial = [csv_text(c.key) for c, e in zip(table.columns, line.entries, strict=True) if e.partial]
            notes = f"in progress: {'; '.join(partial)}" if partial else ""
            for kind in _kinds(table, line):
                values = [getattr(entry, kind) for entry in line.entries]
                numbers = ["" if value is None else repr(float(value)) for value in values]
                head = (csv_text(table.title), csv_text(line.method), line.metric, kind)
                writer.writerow([*head, *numbers, notes if kind == "value" else ""])
    return file.getvalue()


def table_data(table: Table) -> dict[str, object]:
    """A table as plain data: everything that is known; numbers are unrounded percentages."""
    lines = [
        {
            "method": line.method,
            "metric": line.metric,
            "entries": {
                column.key: {**asdict(entry), "difference": entry.difference}
                for column, entry in zip(table.columns, line.entries, strict=True)
            },
        }
        for line in table.lines
    ]
    return {
        "layout": table.layout,
        "title": table.title,
        "paper_table": table.paper,
        "level": table.level,
        "columns": [asdict(column) for column in table.columns],
        "lines": lines,
        "notes": list(table.notes),
    }


def _kinds(table: Table, line: Line) -> list[str]:
    kinds = ["value"]
    if any(entry.deviation is not None for entry in line.entries):
        kinds.append("deviation")
    if table.level is not None:
        kinds += ["low", "high"]
    if table.paper is not None:
        kinds += ["paper", "difference"]
    return kinds


def _grid(table: Table) -> Grid:
    columns = tuple(column.title for column in table.columns)
    return Grid(table.title, ("Method", "Metric"), columns, tuple(_rows(table)), table.notes)


def _rows(table: Table) -> Iterator[GridRow]:
    """The lines of text of a table: the method's title once, then its metrics, each with what stands below it."""
    before = None
    for line in table.lines:
        first = line.method != before
        method = method_title(line.method) if first else ""
        before = line.method
        best = tuple(entry.best for entry in line.entries)
        yield GridRow((method, METRIC_TITLES[line.metric]), tuple(map(_ours, line.entries)), best, first=first)
        below: list[tuple[str, Callable[[Entry], str]]] = []
        if table.level is not None:
            below.append((f"{100 * table.level:g} %", _range))
        if table.paper is not None and any(entry.paper is not None for entry in line.entries):
            below += [("paper", _paper), ("difference", difference)]
        for head, text in below:
            yield GridRow(("", f"– {head}"), tuple(map(text, line.entries)), (False,) * len(line.entries))


def _ours(entry: Entry) -> str:
    if entry.value is None:
        return NOTHING
    text = shown(entry.value) if entry.deviation is None else f"{shown(entry.value)} ± {shown(entry.deviation)}"
    return f"{text}…" if entry.partial else text


def _range(entry: Entry) -> str:
    return NOTHING if entry.low is None or entry.high is None else f"{shown(entry.low)}–{shown(entry.high)}"


def _paper(entry: Entry) -> str:
    text = NOTHING if entry.paper is None else shown(entry.paper)
    return f"{text} !" if entry.wrong else text


def difference(entry: Entry) -> str:
    """Ours minus theirs, with its sign."""
    if entry.difference is None:
        return NOTHING
    text = shown(entry.difference)
    return f"−{text[1:]}" if text.startswith("-") else f"+{text}"
