"""How columns of text fit a width: names are wrapped, columns are continued below, digits are never cut."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len, chop_cells

_GAP = 2
_NARROWEST = 12
"""Characters that a column of names keeps, whatever the numbers need."""


@dataclass(frozen=True)
class Column:
    """A column of text. Names may be wrapped; cells of numbers stand on one line each, at the right.

    Attributes:
        styles: of each cell, by rich's names; empty for none.
    """

    title: str
    cells: Sequence[str]
    is_name: bool = False
    styles: Sequence[str] = ()

    @property
    def width(self) -> int:
        """What it needs on one line."""
        return max(map(_cells, (self.title, *self.cells)), default=0)


def fit(columns: Sequence[Column], width: int | None) -> list[tuple[list[int], list[int]]]:
    """Positions of the columns that stand beside each other, and their widths; several groups if one is too wide."""
    if width is None:
        return [(list(range(len(columns))), [column.width for column in columns])]
    names = [at for at, column in enumerate(columns) if column.is_name]
    numbers = [at for at, column in enumerate(columns) if not column.is_name]
    floor = sum(min(columns[at].width, _NARROWEST) + _GAP for at in names)
    parts: list[list[int]] = [[]]
    used = floor
    for at in numbers:
        own = columns[at].width + _GAP
        if parts[-1] and used + own - _GAP > width:
            parts.append([])
            used = floor
        parts[-1].append(at)
        used += own
    found = []
    for part in parts:
        shown = sorted([*names, *part])
        left = width - sum(columns[at].width + _GAP for at in part) - _GAP * (len(names) - 1)
        room = _shared([columns[at].width for at in names], max(left, 1))
        widths = {**dict(zip(names, room, strict=True)), **{at: columns[at].width for at in part}}
        found.append((shown, [widths[at] for at in shown]))
    return found


def wrapped(text: str, width: int) -> str:
    """The text in lines of at most ``width`` terminal cells, broken after spaces, ``+``, ``/``, ``,`` and ``-`` first.

    >>> wrapped("tpt+agreement+e-cots", 14)
    'tpt+agreement+\\ne-cots'
    """
    if "\n" in text or _cells(text) <= width:
        return text
    lines, line = [], ""
    for piece in re.findall(r"[^\s+/,\]\[-]*[\s+/,\]\[-]?", text):
        if line and _cells((line + piece).rstrip()) > width:
            lines.append(line.rstrip())
            line = ""
        line += piece
        if _cells(body := line.rstrip()) > width:  # a piece without a place to break
            *whole, last = chop_cells(body, width)
            lines += whole
            line = last + line[len(body) :]
    return "\n".join([*lines, line.rstrip()] if line.strip() else lines)


def _shared(wanted: Sequence[int], room: int) -> list[int]:
    """Widths of columns of names in a given room: those that need little get all of it, the others equal parts."""
    widths = [0] * len(wanted)
    left, open_ = room, sorted(range(len(wanted)), key=lambda at: wanted[at])
    for position, at in enumerate(open_):
        widths[at] = max(1, min(wanted[at], left // (len(open_) - position)))
        left -= widths[at]
    return widths


def _cells(text: str) -> int:
    """Cells that a text takes on a terminal: some characters take two."""
    return max((cell_len(line) for line in text.split("\n")), default=0)
