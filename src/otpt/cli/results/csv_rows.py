"""Rows of numbers as CSV: one file over many runs."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

_ENDS = ("low", "high")


def csv_bytes(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Rows under the names of all their values; intervals in two columns each."""
    flat = []
    for row in rows:
        ranges = row.get("intervals", {})
        plain = {name: value for name, value in row.items() if name != "intervals"}
        ends = {f"{name}_{end}": pair[at] for name, pair in ranges.items() if pair for at, end in enumerate(_ENDS)}
        flat.append({**plain, **ends})
    names = list(dict.fromkeys(name for row in flat for name in row))
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(names)
    for row in flat:
        cells = (row.get(name) for name in names)
        writer.writerow(_cell(each) if isinstance(each, str) else "" if each is None else each for each in cells)
    return file.getvalue().encode("utf-8", "replace")


def _cell(text: str) -> str:
    """As it is, since paths may be long; but nothing that a spreadsheet would compute."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text
