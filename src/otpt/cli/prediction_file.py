"""``otpt predict -o``: rows that are appended as they are made, and a job that continues where it was stopped.

Next to the output, ``NAME.job.json`` describes the job. CSV and JSON lines grow row by row. A ``.parquet`` file is
collected in parts in ``NAME.parts`` and joined at the end; an output without a suffix is a folder of such parts.
"""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from otpt.errors import OtptError, cannot_read
from otpt.files import as_json, csv_cell, read_json, write_atomically

_FLUSH_SECONDS = 3.0
_PART_ROWS = 50_000
_SUFFIXES = (".csv", ".jsonl", ".parquet", "")
_FIRST = ("image", "method", "label", "confidence")

Row = dict[str, Any]


class PredictionFile:
    """Predictions on disk, in the order of the images.

    Args:
        path: ``.csv``, ``.jsonl`` or ``.parquet``; without a suffix, a folder of Parquet parts.
        job: what decides the rows, as plain JSON; a file of another job is refused with the difference.
        methods: number of rows per image that could be read.
        top: number of classes with their own columns, ``label_1``, ``probability_1`` …; None for none.
        overwrite: start again.
    """

    def __init__(
        self, path: Path, job: Mapping[str, Any], *, methods: int, top: int | None, overwrite: bool = False
    ) -> None:
        check_suffix(path)
        self.path, self._top, self._methods = path, top, methods
        self._job_file = path.with_name(f"{path.name}.job.json")
        self._parts = path if path.suffix == "" else path.with_name(f"{path.name}.parts")
        self._rows: list[Row] = []
        self._flushed = time.monotonic()
        self._columns: list[str] | None = None
        if overwrite:
            self._remove()
        self._check(json.loads(as_json(job)))
        found = list(self._finished())
        self.done = [image for image, _ in found]
        """Images that are on disk already, in order."""
        self.failed = sum(failed for _, failed in found)
        """Number of these that could not be read."""

    def __call__(self, rows: Sequence[Row]) -> None:
        """Append the rows of one image."""
        self._rows += rows
        if time.monotonic() - self._flushed > _FLUSH_SECONDS or len(self._rows) >= _PART_ROWS:
            self.flush()

    def flush(self, *, last: bool = False) -> None:
        """Write what is waiting, and wait for the disk; the ``last`` time also what waits for the columns of a CSV."""
        rows, self._rows = self._rows, []
        self._flushed = time.monotonic()
        if not rows:
            return
        try:
            if self._in_parts:
                self._write_part(rows)
            elif self._is_csv:
                self._append_csv(rows, last)
            else:
                self._append("".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows))
        except OSError as error:
            raise OtptError(
                f"Cannot write {str(self.path)!r}: {error.strerror or error}; what is finished stays, and the same "
                "command continues."
            ) from None

    def finish(self) -> None:
        """Flush, and join the parts of a Parquet file: all images are done."""
        self.flush(last=True)
        if self._in_parts and self._parts != self.path:
            _join_parts(self._part_files(), self.path)
            shutil.rmtree(self._parts, ignore_errors=True)

    @property
    def _is_csv(self) -> bool:
        return self.path.suffix.lower() == ".csv"

    @property
    def _in_parts(self) -> bool:
        return self.path.suffix.lower() in ("", ".parquet")

    def _remove(self) -> None:
        self.path.unlink(missing_ok=True) if not self.path.is_dir() else shutil.rmtree(self.path)
        shutil.rmtree(self._parts, ignore_errors=True)
        self._job_file.unlink(missing_ok=True)

    def _check(self, job: Mapping[str, Any]) -> None:
        """Compare with the job that the output belongs to, or write the description of a new one."""
        if self._job_file.exists():
            known = read_json(self._job_file, "description of a prediction job")
            for name in dict.fromkeys([*job, *known]):
                if job.get(name) != known.get(name):
                    raise OtptError(
                        f"{str(self.path)!r} holds predictions of another job: {name} was {_short(known.get(name))}, "
                        f"now it is {_short(job.get(name))}; choose another --out, or --overwrite."
                    )
            return
        if self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
            raise OtptError(
                f"{str(self.path)!r} exists and is not of a prediction job; choose another --out, or --overwrite."
            )
        try:
            write_atomically(self._job_file, as_json(job))
        except OSError as error:
            raise cannot_read("folder of the predictions", self.path.parent, error) from None

    def _finished(self) -> Iterator[tuple[str, bool]]:
        """Images whose rows are complete, and whether they could not be read; a cut-off last image is removed."""
        if self._in_parts:
            from pyarrow import parquet  # type: ignore[import-untyped]

            parts = [self.path] if self.path.is_file() else self._part_files()
            for part in parts:
                rows = parquet.read_table(part, columns=["image", "error"]).to_pydict()
                yield from {name: error is not None for name, error in zip(*rows.values(), strict=True)}.items()
            return
        if not self.path.exists():
            return
        complete = 0
        current: tuple[str, int] | None = None
        with open(self.path, "rb") as file:
            if self._is_csv:
                head = file.readline()
                if not head.endswith(b"\n"):
                    head = b""
                else:
                    self._columns = next(csv.reader([head.decode("utf-8")]))
                complete = len(head)
            while self._columns is not None or not self._is_csv:
                row = self._read_row(file)
                if row is None:
                    break
                image = row["image"]
                count = 1 if current is None or current[0] != image else current[1] + 1
                current = (image, count)
                if row.get("error") or count == self._methods:
                    complete, current = file.tell(), None
                    yield image, bool(row.get("error"))
        if complete < self.path.stat().st_size:
            os.truncate(self.path, complete)

    def _read_row(self, file: IO[bytes]) -> Mapping[str, Any] | None:
        """The next complete row; None at the end, or where a kill cut a row off."""
        line = file.readline()
        while self._is_csv and line.endswith(b"\n") and line.count(b'"') % 2:  # a quoted cell with a line break
            more = file.readline()
            line += more
            if not more.endswith(b"\n"):
                return None
        if not line.endswith(b"\n"):
            return None
        text = line.decode("utf-8", "replace")
        if not self._is_csv:
            found: Mapping[str, Any] = json.loads(text)
            return found
        assert self._columns is not None
        cells = next(csv.reader([text]))
        return dict(zip(self._columns, cells, strict=False))

    def _append(self, text: str) -> None:
        with open(self.path, "ab") as file:
            file.write(text.encode("utf-8", "backslashreplace"))
            file.flush()
            os.fsync(file.fileno())

    def _append_csv(self, rows: Sequence[Row], last: bool) -> None:
        flat = [flat_row(row, self._top) for row in rows]
        if self._columns is None:  # those of the first image that could be read
            known = [row for row in flat if not row.get("error")][:1]
            if not known and not last:
                self._rows = list(rows)
                return
            self._columns = columns_of(known or flat)
            self._append(_csv_line(self._columns))
        columns = self._columns
        self._append("".join(_csv_line([row.get(name) for name in columns]) for row in flat))

    def _part_files(self) -> list[Path]:
        return sorted(self._parts.glob("part-*.parquet")) if self._parts.is_dir() else []

    def _write_part(self, rows: Sequence[Row]) -> None:
        self._parts.mkdir(parents=True, exist_ok=True)
        number = len(self._part_files())
        write_atomically(self._parts / f"part-{number:06}.parquet", parquet_bytes(rows, self._top))


def check_suffix(path: Path) -> None:
    """Refuse a file that is neither CSV, JSON lines nor Parquet."""
    if path.suffix.lower() not in _SUFFIXES:
        raise OtptError(f"Predictions cannot be written to {str(path)!r}; expected .csv, .jsonl, .parquet or a folder.")


def flat_row(row: Row, top: int | None) -> Row:
    """A row without lists: best classes, prediction set, flags and extras have their own columns."""
    ranked = list(enumerate(row.get("top", ()), start=1)) if top else []
    return {
        **{name: value for name, value in row.items() if name not in ("top", "flags", "extras", "set")},
        **{f"{name}_{rank}": each[name] for rank, each in ranked for name in ("label", "probability")},
        **({"set": " | ".join(row["set"])} if "set" in row else {}),
        "flags": " ".join(row.get("flags", ())),
        **row.get("extras", {}),
    }


def columns_of(rows: Sequence[Row]) -> list[str]:
    """Column names, ``error`` last."""
    names = dict.fromkeys(name for row in rows for name in row)
    return [*_FIRST, *(name for name in names if name not in (*_FIRST, "error")), "error"]


def parquet_bytes(rows: Sequence[Row], top: int | None) -> bytes:
    """Rows as a Parquet file."""
    import pyarrow as pa
    from pyarrow import parquet

    flat = [flat_row(row, top) for row in rows]
    arrays = {}
    for name in columns_of(flat):
        cells = [row.get(name) for row in flat]
        if name in ("image", "method", "label", "set", "flags", "error") or name.startswith("label_"):
            # names of files may hold any bytes
            cells = [None if cell is None else str(cell).encode("utf-8", "replace").decode() for cell in cells]
            arrays[name] = pa.array(cells, pa.string())
        else:
            arrays[name] = pa.array(cells)
    sink = pa.BufferOutputStream()
    parquet.write_table(pa.table(arrays), sink)
    return bytes(sink.getvalue().to_pybytes())


def _join_parts(parts: Sequence[Path], path: Path) -> None:
    """One file of the parts, a part at a time in memory."""
    import pyarrow as pa
    from pyarrow import parquet

    if not parts:
        return
    schema = pa.unify_schemas([parquet.read_schema(part) for part in parts], promote_options="permissive")
    last = [name for name in schema.names if name != "error"]
    schema = pa.schema([schema.field(name) for name in [*last, "error"]])
    temporary = path.with_name(f".{path.name}.joined")
    with parquet.ParquetWriter(temporary, schema) as writer:
        for part in parts:
            table = parquet.read_table(part)
            columns = [
                table.column(field.name).cast(field.type)
                if field.name in table.column_names
                else pa.nulls(len(table), field.type)
                for field in schema
            ]
            writer.write_table(pa.table(columns, schema=schema))
    os.replace(temporary, path)


def _csv_line(cells: Sequence[Any]) -> str:
    """One line of CSV; cells that a spreadsheet would compute are quoted."""
    line = io.StringIO()
    shown = ("" if cell is None else csv_cell(cell) if isinstance(cell, str) else cell for cell in cells)
    csv.writer(line, lineterminator="\n").writerow(shown)
    return line.getvalue()


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:77]}…"
