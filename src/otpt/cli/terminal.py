"""Tables on the terminal, whatever its width: names are wrapped, columns are continued below, digits are never cut."""

from __future__ import annotations

from collections.abc import Sequence

from otpt.cli.fitting import Column, fit, wrapped

__all__ = ["Column", "print_columns", "terminal_width"]

_WIDE = 10_000


def terminal_width() -> int | None:
    """Columns of the terminal; None if the output is no terminal, so that lines may be as long as they are."""
    from rich.console import Console

    console = Console()
    return console.width if console.is_terminal else None


def print_columns(columns: Sequence[Column], *, width: int | None = None) -> None:
    """Draw a table in the terminal's width; elsewhere in ``width`` characters, or as wide as it is."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    width = terminal_width() or width
    console = Console(highlight=False, markup=False, width=_WIDE)
    for number, (shown, widths) in enumerate(fit(columns, width)):
        table = Table(box=None, pad_edge=False, header_style="bold")
        chosen = [(columns[at], wide) for at, wide in zip(shown, widths, strict=True)]
        for column, wide in chosen:
            side = "left" if column.is_name else "right"
            table.add_column(Text(wrapped(column.title, wide)), justify=side, no_wrap=True)  # type: ignore[arg-type]
        for row in range(len(columns[0].cells)):
            cells = (
                Text(wrapped(column.cells[row], wide), style=column.styles[row] if column.styles else "")
                for column, wide in chosen
            )
            table.add_row(*cells)
        if number:
            console.print()
        console.print(table)
