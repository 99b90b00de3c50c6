"""Grids of text for a terminal, as Markdown or LaTeX: tables of all kinds are written through them."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from textwrap import wrap

from otpt.report.tables.escaping import latex, markdown, plain
from otpt.report.tables.fitting import Column, fit, wrapped

_WIDE = 10_000


@dataclass(frozen=True)
class GridRow:
    """One line: names at the left, cells, which of them are the best of their columns (empty where that is not asked),
    and whether it is the first of its group."""

    names: tuple[str, ...]
    cells: tuple[str, ...]
    best: tuple[bool, ...] = ()
    first: bool = False


@dataclass(frozen=True)
class Grid:
    """Rows under heads; ``names`` stand above the names at the left, ``columns`` above the cells."""

    title: str
    names: tuple[str, ...]
    columns: tuple[str, ...]
    rows: tuple[GridRow, ...]
    notes: tuple[str, ...] = ()


def grids_as_terminal(grids: Iterable[Grid], *, colour: bool = False, width: int | None = None) -> str:
    """Aligned columns, the best value of a column with a star.

    With a ``width``, title, notes and names are wrapped, and columns that do not fit are continued below; no number is
    ever cut.
    """
    from rich.console import Console, JustifyMethod
    from rich.table import Table as RichTable
    from rich.text import Text

    file = io.StringIO()
    console = Console(file=file, width=_WIDE, force_terminal=colour, no_color=not colour, markup=False, highlight=False)
    for grid in grids:
        title = Text(_wrapped(_note(grid.title, plain), width))
        columns = _columns(grid)
        for number, (shown, widths) in enumerate(fit(columns, width)):
            drawn = RichTable(box=None, pad_edge=False, header_style="bold", title=None if number else title)
            drawn.title_justify, drawn.title_style = "left", "bold"
            chosen = [(columns[at], wide) for at, wide in zip(shown, widths, strict=True)]
            for column, wide in chosen:
                side: JustifyMethod = "left" if column.is_name else "right"
                drawn.add_column(Text(wrapped(column.title, wide)), justify=side, no_wrap=True)
            for at in range(len(grid.rows)):
                drawn.add_row(*(Text(wrapped(c.cells[at], wide), style=c.styles[at]) for c, wide in chosen))
            if number:
                console.print()
            console.print(drawn)
        for note in grid.notes:
            console.print(Text(_wrapped(_note(note, plain), width)))
        console.print()
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines()) + "\n"


def _columns(grid: Grid) -> list[Column]:
    """Names at the left, then the cells, the best of them with a star."""
    plainly = [""] * len(grid.rows)
    names = [
        Column(title, [plain(row.names[at]) for row in grid.rows], is_name=True, styles=plainly)
        for at, title in enumerate(grid.names)
    ]
    cells = [
        Column(
            plain(title),
            [row.cells[at] + ("*" if row.best[at] else " ") if row.best else row.cells[at] for row in grid.rows],
            styles=["bold" if _bold(row)[at] else "" for row in grid.rows],
        )
        for at, title in enumerate(grid.columns)
    ]
    return names + cells


def grids_as_markdown(grids: Iterable[Grid]) -> str:
    """Pipe tables; the best value of a column is bold."""
    parts = []
    for grid in grids:
        lines = [
            f"**{_note(grid.title, markdown)}**",
            "",
            _pipes([*grid.names, *map(markdown, grid.columns)]),
            _pipes([*[":--"] * len(grid.names), *["--:"] * len(grid.columns)]),
        ]
        for row in grid.rows:
            cells = (f"**{cell}**" if best else cell for cell, best in zip(row.cells, _bold(row), strict=True))
            lines.append(_pipes([*map(markdown, row.names), *cells]))
        lines += [line for note in grid.notes for line in ("", _note(note, markdown))]
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def grids_as_latex(grids: Iterable[Grid]) -> str:
    r"""``table`` environments for the package booktabs; the best value of a column is bold."""
    parts = []
    for grid in grids:
        lines = [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{_note(grid.title, latex)}}}",
            rf"\begin{{tabular}}{{{'l' * len(grid.names)}{'r' * len(grid.columns)}}}",
            r"\toprule",
            " & ".join([*grid.names, *map(latex, grid.columns)]) + r" \\",
        ]
        for row in grid.rows:
            if row.first:
                lines.append(r"\midrule")
            cells = (rf"\textbf{{{latex(c)}}}" if b else latex(c) for c, b in zip(row.cells, _bold(row), strict=True))
            lines.append(" & ".join([*map(latex, row.names), *cells]) + r" \\")
        lines += [r"\bottomrule", r"\end{tabular}"]
        lines += [rf"\par\footnotesize {_note(note, latex)}" for note in grid.notes]
        parts.append("\n".join([*lines, r"\end{table}"]) + "\n")
    return "\n".join(parts)


def _note(note: str, escape: Callable[[str], str]) -> str:
    """A note or title on one line: no word of it is longer than a name may be."""
    return " ".join(map(escape, note.split()))


def _bold(row: GridRow) -> tuple[bool, ...]:
    return row.best or (False,) * len(row.cells)


def _wrapped(text: str, width: int | None) -> str:
    return text if width is None else "\n".join(wrap(text, width))


def _pipes(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
