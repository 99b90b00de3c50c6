"""Tables as text: for a terminal, as Markdown, CSV, LaTeX (booktabs) or JSON."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass

from otpt.errors import unknown
from otpt.report.tables.escaping import csv_text, latex, markdown, plain
from otpt.report.tables.layouts import METRIC_TITLES, method_title
from otpt.report.tables.table import Entry, Line, Table, shown

NOTHING = "–"
_WIDE = 10_000


@dataclass(frozen=True)
class _Row:
    """One line of text: heads, cells, and which cells are the best."""

    method: str
    metric: str
    cells: tuple[str, ...]
    best: tuple[bool, ...]


def render(tables: Sequence[Table], form: str, *, colour: bool = False) -> str:
    """The tables in a format of :data:`FORMATS`; ``colour`` is of a terminal."""
    if form == "terminal":
        return as_terminal(tables, colour=colour)
    if form not in FORMATS:
        raise unknown("format", form, FORMATS)
    return _WRITERS[form](tables)


def as_terminal(tables: Sequence[Table], *, colour: bool = False) -> str:
    """Aligned columns, as wide as they need to be: a number is never cut; the best value of a column has a star."""
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    file = io.StringIO()
    console = Console(file=file, width=_WIDE, force_terminal=colour, no_color=not colour, markup=False, highlight=False)
    for table in tables:
        drawn = RichTable(box=None, pad_edge=False, header_style="bold", title=Text(plain_note(table.title)))
        drawn.title_justify, drawn.title_style = "left", "bold"
        for head in ("Method", "Metric"):
            drawn.add_column(head, no_wrap=True)
        for column in table.columns:
            drawn.add_column(Text(plain(column.title)), justify="right", no_wrap=True)
        for row in _rows(table):
            cells = (f"{cell}*" if best else f"{cell} " for cell, best in zip(row.cells, row.best, strict=True))
            texts = (Text(c, style="bold" if b else "") for c, b in zip(cells, row.best, strict=True))
            drawn.add_row(Text(plain(row.method)), Text(row.metric), *texts)
        console.print(drawn)
        for note in table.notes:
            console.print(Text(plain_note(note)))
        console.print()
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines()) + "\n"


def as_markdown(tables: Sequence[Table]) -> str:
    """Pipe tables; the best value of a column is bold."""
    parts = []
    for table in tables:
        heads = ["Method", "Metric", *(markdown(column.title) for column in table.columns)]
        lines = [
            f"**{markdown_note(table.title)}**",
            "",
            _pipes(heads),
            _pipes([":--", ":--", *["--:"] * len(table.columns)]),
        ]
        for row in _rows(table):
            cells = (f"**{cell}**" if best else cell for cell, best in zip(row.cells, row.best, strict=True))
            lines.append(_pipes([markdown(row.method), row.metric, *cells]))
        lines += [line for note in table.notes for line in ("", markdown_note(note))]
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def as_latex(tables: Sequence[Table]) -> str:
    r"""``table`` environments for the package booktabs; the best value of a column is bold."""
    parts = []
    for table in tables:
        heads = ["Method", "Metric", *(latex(column.title) for column in table.columns)]
        lines = [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{_latex_note(table.title)}}}",
            rf"\begin{{tabular}}{{ll{'r' * len(table.columns)}}}",
            r"\toprule",
            " & ".join(heads) + r" \\",
        ]
        for row in _rows(table):
            if row.method:
                lines.append(r"\midrule")
            cells = (rf"\textbf{{{latex(c)}}}" if b else latex(c) for c, b in zip(row.cells, row.best, strict=True))
            lines.append(" & ".join([latex(row.method), latex(row.metric), *cells]) + r" \\")
        lines += [r"\bottomrule", r"\end{tabular}"]
        lines += [rf"\par\footnotesize {_latex_note(note)}" for note in table.notes]
        parts.append("\n".join([*lines, r"\end{table}"]) + "\n")
    return "\n".join(parts)


def as_csv(tables: Sequence[Table]) -> str:
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


def as_json(tables: Sequence[Table]) -> str:
    """Everything that is known; numbers are unrounded percentages."""
    return json.dumps([table_data(table) for table in tables], indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def table_data(table: Table) -> dict[str, object]:
    """A table as plain data."""
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


def plain_note(note: str) -> str:
    """A note or title on one line: no word of it is longer than a name may be."""
    return " ".join(plain(word) for word in note.split())


def markdown_note(note: str) -> str:
    """A note as text of Markdown."""
    return " ".join(markdown(word) for word in note.split())


def _latex_note(note: str) -> str:
    return " ".join(latex(word) for word in note.split())


def _kinds(table: Table, line: Line) -> list[str]:
    kinds = ["value"]
    if any(entry.deviation is not None for entry in line.entries):
        kinds.append("deviation")
    if table.level is not None:
        kinds += ["low", "high"]
    if table.paper is not None:
        kinds += ["paper", "difference"]
    return kinds


def _rows(table: Table) -> Iterator[_Row]:
    """The lines of text of a table: the method's title once, then its metrics, each with what stands below it."""
    before = None
    for line in table.lines:
        method = "" if line.method == before else method_title(line.method)
        before = line.method
        metric = METRIC_TITLES[line.metric]
        yield _Row(method, metric, tuple(map(_ours, line.entries)), tuple(entry.best for entry in line.entries))
        below: list[tuple[str, Callable[[Entry], str]]] = []
        if table.level is not None:
            below.append((f"{100 * table.level:g} %", _range))
        if table.paper is not None and any(entry.paper is not None for entry in line.entries):
            below += [("paper", _paper), ("difference", _difference)]
        for head, text in below:
            yield _Row("", f"– {head}", tuple(map(text, line.entries)), (False,) * len(line.entries))


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


def _difference(entry: Entry) -> str:
    if entry.difference is None:
        return NOTHING
    text = shown(entry.difference)
    return f"−{text[1:]}" if text.startswith("-") else f"+{text}"


def _pipes(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


_WRITERS: dict[str, Callable[[Sequence[Table]], str]] = {
    "markdown": as_markdown,
    "csv": as_csv,
    "latex": as_latex,
    "json": as_json,
}
FORMATS = ("terminal", *_WRITERS)
