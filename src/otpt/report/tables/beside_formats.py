"""Ours beside a paper's numbers as text: for a terminal (80 columns), as Markdown, CSV, LaTeX or JSON."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from otpt.report.tables.beside import METRICS, Beside, marks
from otpt.report.tables.escaping import csv_text
from otpt.report.tables.formats import difference, written
from otpt.report.tables.grid import Grid, GridRow
from otpt.report.tables.layouts import METRIC_TITLES, dataset_title
from otpt.report.tables.table import AVERAGE, NOTHING, Entry, shown

WIDTH = 80


def render_beside(tables: Sequence[Beside], form: str, *, colour: bool = False, width: int | None = None) -> str:
    """The tables in a format of :data:`otpt.report.tables.formats.FORMATS`; 80 columns without a ``width``."""
    return written(tables, form, grid=_grid, data=beside_data, as_csv=_csv, colour=colour, width=width or WIDTH)


def beside_data(table: Beside) -> dict[str, object]:
    """A table as plain data; numbers are unrounded percentages."""
    rows = [
        {
            **{key: getattr(row, key) for key in ("dataset", "method", "theirs", "prompt", "measured")},
            **{metric: {**asdict(entry), "difference": entry.difference} for metric, entry in row.entries.items()},
        }
        for row in table.rows
    ]
    return {
        "paper": table.paper.name,
        "source": table.paper.source,
        "protocol": asdict(table.paper.protocol),
        "remarks": list(table.paper.remarks),
        "table": table.table.number,
        "backbone": table.table.backbone,
        "prompt": table.table.prompt,
        "rows": rows,
        "notes": list(table.notes),
    }


def _grid(table: Beside) -> Grid:
    heads = [head for metric in METRICS for head in (METRIC_TITLES[metric], "theirs", "diff.")]
    title = f"Beside {table.paper.title}, {table.table.backbone}: {table.table.number}"
    return Grid(title, ("Set", "Method"), tuple(heads), tuple(_rows(table)), table.notes)


def _rows(table: Beside) -> Iterator[GridRow]:
    signs, before = marks(table.table, table.rows), None
    for row in table.rows:
        first, before = row.dataset != before, row.dataset
        title = ("Avg" if row.dataset == AVERAGE else dataset_title(row.dataset)) if first else ""
        cells = tuple(cell for metric in METRICS for cell in _cells(row.entries[metric]))
        yield GridRow((title, row.theirs + signs.get(row.prompt, "")), cells, first=first)


def _cells(entry: Entry) -> tuple[str, str, str]:
    ours = NOTHING if entry.value is None else shown(entry.value) + "…" * entry.partial
    theirs = NOTHING if entry.paper is None else shown(entry.paper) + "!" * entry.wrong
    return ours, theirs, difference(entry)


def _csv(tables: Sequence[Beside]) -> str:
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    heads = ("paper", "table", "backbone", "dataset", "method", "theirs", "prompt", "metric")
    writer.writerow([*heads, "value", "deviation", "paper_value", "difference", "measured", "notes"])
    for table in tables:
        for row in table.rows:
            for metric, entry in row.entries.items():
                texts = (table.paper.name, str(table.table.number), table.table.backbone, row.dataset, row.method)
                values = (entry.value, entry.deviation, entry.paper, entry.difference)
                numbers = ("" if value is None else repr(float(value)) for value in values)
                notes = "in progress" if entry.partial else ""
                named = map(csv_text, (*texts, row.theirs, row.prompt))
                writer.writerow([*named, metric, *numbers, csv_text(row.measured), notes])
    return file.getvalue()
