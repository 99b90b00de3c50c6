"""Predictions in a file: CSV, Parquet or lines of JSON, by its suffix."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from otpt.cli.predicting.inputs import Given
from otpt.cli.predicting.predictions import Answer, Writer, rows_of
from otpt.errors import OtptError
from otpt.files import write_atomically

SUFFIXES = (".csv", ".parquet", ".jsonl")
_FIRST = ("image", "method", "label", "confidence")


class PredictionFile(Writer):
    """Collects answers and writes them at the end, whole or not at all.

    Args:
        path: its suffix says the format.
        top: classes that get columns of their own, ``label_1``, ``probability_1`` …; None for none.
        say: is told in the end where the file is.
    """

    def __init__(self, path: Path, top: int | None, say: Callable[[str], None]) -> None:
        if path.suffix.lower() not in SUFFIXES:
            raise OtptError(
                f"The predictions cannot be written to {str(path)!r}; expected a name that ends in {_or(SUFFIXES)}."
            )
        self._path, self._top, self._say = path, top, say
        self._rows: list[dict[str, Any]] = []

    def __call__(self, image: Given, answer: Answer) -> None:
        self._rows += rows_of(image, answer, self._top or 1)

    def close(self) -> None:
        """Write what was answered, and say where it is; nothing without an answer."""
        if not self._rows:
            return
        suffix = self._path.suffix.lower()
        if suffix == ".jsonl":
            lines = "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in self._rows)
            data = lines.encode("utf-8", "backslashreplace")  # of a file's name that is not text: \udcff is valid JSON
        else:
            columns, rows = flat(self._rows, self._top)
            data = _csv(columns, rows) if suffix == ".csv" else _parquet(columns, rows)
        write_atomically(self._path, data)
        images = len({row["image"] for row in self._rows})
        self._say(f"Predictions of {images} image{'s' * (images > 1)} are in {str(self._path)!r}.")


def flat(rows: Sequence[dict[str, Any]], top: int | None) -> tuple[list[str], list[dict[str, Any]]]:
    """Names of columns, and rows without lists: the best classes, flags and extras in columns of their own."""
    found = []
    for row in rows:
        ranked = list(enumerate(row.get("top", ()), start=1)) if top else []
        found.append(
            {
                **{key: value for key, value in row.items() if key not in ("top", "flags", "extras", "set")},
                **{f"{key}_{rank}": each[key] for rank, each in ranked for key in ("label", "probability")},
                **({"set": " | ".join(row["set"])} if "set" in row else {}),
                "flags": " ".join(row.get("flags", ())),
                **row.get("extras", {}),
            }
        )
    names = dict.fromkeys(name for row in found for name in row)
    return [*_FIRST, *(name for name in names if name not in (*_FIRST, "error")), "error"], found


def _csv(columns: Sequence[str], rows: Sequence[dict[str, Any]]) -> bytes:
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow(["" if (cell := row.get(name)) is None else cell for name in columns])
    return file.getvalue().encode("utf-8", "replace")


def _parquet(columns: Sequence[str], rows: Sequence[dict[str, Any]]) -> bytes:
    import pyarrow as pa  # type: ignore[import-untyped]
    from pyarrow import parquet

    ranked = (name for name in columns if name.startswith("label_"))
    texts = {"image", "method", "label", "set", "flags", "error", *ranked}
    arrays = {}
    for name in columns:
        cells = [row.get(name) for row in rows]
        arrays[name] = pa.array(map(_text, cells), pa.string()) if name in texts else pa.array(cells)
    sink = pa.BufferOutputStream()
    parquet.write_table(pa.table(arrays), sink)
    return sink.getvalue().to_pybytes()


def _text(cell: str | None) -> str | None:
    """Without what cannot be encoded in UTF-8: names of files may hold any bytes."""
    return None if cell is None else cell.encode("utf-8", "replace").decode()


def _or(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"
