"""Tables of metrics on the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from otpt.cli.terminal import Column, print_columns

if TYPE_CHECKING:
    from otpt.report.tables import ScoreTable


def print_score_tables(tables: Sequence[ScoreTable], *, width: int) -> None:
    """On the terminal, or as lines of at most ``width`` characters; a table that is wider is continued below itself."""
    for table in tables:
        print_columns(_columns(table), width=width)
        print()


def _columns(table: ScoreTable) -> list[Column]:
    """Method, prompt where there are several, and the numbers, their intervals below them."""
    methods, prompts = [], []
    numbers: list[list[str]] = [[] for _ in table.columns]
    for row in table.rows:
        level = next((n.interval.level for n in row.numbers if n is not None and n.interval is not None), None)
        methods += [row.method] if level is None else [row.method, f"  {100 * level:g} %"]
        prompts += [row.prompt] if level is None else [row.prompt, ""]
        for cells, number in zip(numbers, row.numbers, strict=True):
            cells.append("–" if number is None else number.text)
            if level is not None:
                cells.append("–" if number is None else number.range)
    names = [Column(table.title, methods, is_name=True)]
    if table.several_prompts:
        names.append(Column("prompt", prompts, is_name=True))
    return names + [Column(title, cells) for title, cells in zip(table.columns, numbers, strict=True)]
