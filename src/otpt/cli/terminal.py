"""Lines and tables on the terminal."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import otpt

words: list[str] = []
"""The words of the current command."""


def command_line() -> str:
    """Return the current command in the syntax of a shell."""
    return shlex.join(["otpt", *words])


def say(line: str) -> None:
    """Print one line on standard error."""
    print(f"otpt: {line}", file=sys.stderr, flush=True)


def note(line: str) -> None:
    """Print a note on standard error."""
    say(f"note: {line}")


def make_progress() -> otpt.evaluation.Progress:
    """Return a progress bar on a terminal, or lines of a log."""
    return otpt.evaluation.Progress(log=say)


def terminal_width() -> int | None:
    """Return the width of the terminal, or None if the output is not a terminal."""
    from rich.console import Console

    console = Console()
    return console.width if console.is_terminal else None


def print_json(value: Any) -> None:
    """Print an indented JSON value."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def print_table(head: Sequence[str], rows: Iterable[Sequence[str]], *, names: int = 1, width: int = 10_000) -> None:
    """Print a table in the width of the terminal; elsewhere in ``width`` characters.

    Args:
        names: number of columns of text, which are aligned left and may be wrapped; the others hold numbers. −N means
            the first column and the last N.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False, markup=False, width=terminal_width() or width)
    table = Table(box=None, pad_edge=False, header_style="bold", show_header=any(head))
    for at, title in enumerate(head):
        numbers = at >= names if names >= 0 else 0 < at < len(head) + names
        table.add_column(Text(title), justify="right" if numbers else "left", no_wrap=numbers, overflow="fold")
    for row in rows:
        table.add_row(*(Text(str(cell)) for cell in row))
    with console.capture() as captured:
        console.print(table)
    print("\n".join(line.rstrip() for line in captured.get().splitlines()))


def plural(count: int, noun: str) -> str:
    """Return a number with its noun, such as "1 image" or "2 images"."""
    return f"{count} {noun}{'s' * (count != 1)}"
