"""Lines and tables on the terminal, and what the running command was called with."""

from __future__ import annotations

import shlex
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence

from otpt.escapes import json_text, one_line

words: list[str] = []
"""Words of the current command."""


class Stopped(KeyboardInterrupt):
    """Raised by SIGINT and SIGTERM; the message completes the line "otpt: stopped"."""


def command_line() -> str:
    """Return the current command in the syntax of a shell."""
    return shlex.join(["otpt", *words])


def show(line: str = "") -> None:
    """Print one line, in which names of files, classes or models may stand, at once."""
    print(one_line(line), flush=True)


def say(line: str) -> None:
    """Print one line on standard error."""
    print(f"otpt: {one_line(line)}", file=sys.stderr, flush=True)


def note(line: str) -> None:
    """Print a note on standard error."""
    say(f"note: {line}")


def terminal_width() -> int | None:
    """Return the width of the terminal, or None if the output is not a terminal."""
    from rich.console import Console

    console = Console()
    return console.width if console.is_terminal else None


def print_json(value: object, *, indent: int | None = 2) -> None:
    """Print a JSON value; with ``indent=None`` in one line, at once."""
    print(json_text(value, indent=indent), flush=indent is None)


def print_table(head: Sequence[str], rows: Iterable[Sequence[str]], *, names: int = 1, width: int = 10_000) -> None:
    """Print a table in the width of the terminal; elsewhere in ``width`` characters.

    Args:
        head: titles of the columns; empty ones show no header.
        rows: cells of each row, one line each.
        names: number of columns of text, which are aligned left and may be wrapped; the others hold numbers. −N means
            the first column and the last N.
        width: characters per line if the output is not a terminal.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False, markup=False, width=terminal_width() or width)
    table = Table(box=None, pad_edge=False, header_style="bold", show_header=any(head))
    for at, title in enumerate(head):
        numbers = at >= names if names >= 0 else 0 < at < len(head) + names
        table.add_column(
            Text(one_line(title)), justify="right" if numbers else "left", no_wrap=numbers, overflow="fold"
        )
    for row in rows:
        table.add_row(*(Text(one_line(str(cell))) for cell in row))
    with console.capture() as captured:
        console.print(table)
    print("\n".join(line.rstrip() for line in captured.get().splitlines()))


def plural(count: int, noun: str) -> str:
    """Return a number with its noun, such as "1 image" or "2 images"."""
    return f"{count} {noun}{'s' * (count != 1)}"


def help_width() -> int:
    """Return the columns of help pages."""
    return max(60, min(shutil.get_terminal_size().columns, 120))


def print_entry(name: str, text: str, indent: int) -> None:
    """Print a name and its description in two columns."""
    lines = textwrap.wrap(text, help_width() - indent) or [""]
    head = f"  {name}"
    if len(head) + 2 > indent:
        print(head)
    else:
        print(f"{head:<{indent}}{lines.pop(0)}".rstrip())
    for line in lines:
        print(f"{'':<{indent}}{line}")
