"""Append finished rows, and continue a stopped job where it was: ``otpt predict -o``.

Next to the output, ``NAME.job.json`` describes the job. CSV and JSON lines grow row by row. A ``.parquet`` file is
collected in parts in ``NAME.parts`` and joined at the end; an output without a suffix is a folder of such parts. Parts
are named after the images that they hold, ``part-000000000000-000000000512.parquet``, and small ones are merged; of two
that overlap, the larger one counts. Folders and ``.parquet`` files may be on storage of fsspec (``s3://…``).
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from filelock import FileLock, Timeout

from otpt.data.sources import file_system, is_remote
from otpt.errors import OtptError
from otpt.files import as_json, csv_cell, write_atomically

_FLUSH_SECONDS, _REMOTE_SECONDS = 3.0, 15.0
_PART_ROWS = 50_000
_MERGED = 20
"""Number of small parts that are merged into one."""
_SUFFIXES = (".csv", ".jsonl", ".parquet", "")
_FIRST = ("image", "method", "label", "confidence")
_TEXTS = ("image", "id", "method", "label", "set", "flags", "error")

_DECODER = json.JSONDecoder()

Row = dict[str, Any]
Part = tuple[int, int, str]
"""First image, end, and path of a part."""


class PredictionFile:
    """Rows on disk or on remote storage, in the order of the images. Call :meth:`resume` first.

    Args:
        path: ``.csv``, ``.jsonl`` or ``.parquet``; without a suffix, a folder of Parquet parts.
        job: what decides the rows, as plain JSON; a file of another job is refused with the difference.
        methods: number of rows per image that could be read.
        top: number of classes with their own columns, ``label_1``, ``probability_1`` …; None for none.
        key: the column that names the image.
        overwrite: start again.
        metadata: of Parquet files.
    """

    def __init__(
        self,
        path: str | Path,
        job: Mapping[str, Any],
        *,
        methods: int = 1,
        top: int | None = None,
        key: str = "image",
        overwrite: bool = False,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        self.path = check_output(path)
        self._methods, self._top, self._key, self._metadata = methods, top, key, metadata
        self._is_csv = self.path.lower().endswith(".csv")
        self._in_parts = not self.path.lower().endswith((".csv", ".jsonl"))
        self._fs, self._file = file_system(self.path)
        self._parts = self._file if _suffix(self.path) == "" else f"{self._file}.parts"
        self._lock = self._acquire()
        self._rows: list[Row] = []
        self._images = 0  # that are in these rows
        self._flushed = time.monotonic()
        self._columns: list[str] | None = None
        self.done = 0
        """Number of images that are written."""
        self.failed = 0
        """Number of these that could not be read."""
        if overwrite:
            self._remove(self._file, self._parts, f"{self._file}.job.json")
        self._check(json.loads(as_json(job)))

    def __enter__(self) -> PredictionFile:
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        """Finish; after an error or a signal, write what is waiting."""
        try:
            if kind is None:
                self.finish()
            else:
                self.flush(last=True)
        finally:
            self.close()

    def resume(self, images: Iterator[str]) -> int:
        """Take the images that are written already from the iterator, and return their number.

        Raises:
            OtptError: if the file holds other images.
        """
        for stored, failed in self._finished():
            asked = next(images, None)
            if asked is None or stored != self._stored_form(asked):
                raise OtptError(
                    f"{self.path!r} holds predictions of other images ({stored!r} where {asked or 'no image'!r} is "
                    "asked for); choose another --out, or --overwrite."
                )
            self.done += 1
            self.failed += failed
        return self.done

    def _stored_form(self, name: str) -> str:
        """The name of an image when it is read back; names of files may hold any bytes."""
        if self._is_csv:
            return csv_cell(name).encode("utf-8", "backslashreplace").decode()
        return _valid_text(name) if self._in_parts else name

    def __call__(self, rows: Sequence[Row]) -> None:
        """Append the rows of one image."""
        self._rows += rows
        self._images += 1
        self.failed += bool(rows[0].get("error"))
        seconds = _REMOTE_SECONDS if is_remote(self.path) else _FLUSH_SECONDS
        if time.monotonic() - self._flushed > seconds or len(self._rows) >= _PART_ROWS:
            self.flush()

    def flush(self, *, last: bool = False) -> None:
        """Write what is waiting; the ``last`` time also if no image could be read, so that the columns are unknown."""
        self._flushed = time.monotonic()
        readable = self._columns is not None or any(not row.get("error") for row in self._rows)
        if not self._rows or not (readable or last or len(self._rows) >= _PART_ROWS):
            return
        rows, images, self._rows, self._images = self._rows, self._images, [], 0
        try:
            if self._in_parts:
                self._write_part(rows, images)
            elif self._is_csv:
                self._append_csv(rows)
            else:
                self._append("".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows))
        except OtptError:
            raise
        except Exception as error:  # each remote storage has errors of its own
            raise self._cannot_write(error) from None
        self.done += images

    def finish(self) -> None:
        """Flush, and join the parts of a Parquet file: all images are done."""
        self.flush(last=True)
        if self._in_parts and self._parts != self._file and (parts := self._part_files()):
            try:
                self._join([path for *_, path in parts], self._file)
            except OSError as error:
                raise self._cannot_write(error) from None
            self._remove(self._parts)

    def close(self) -> None:
        """Let other processes write the file."""
        if self._lock is not None:
            with suppress(OSError):
                os.unlink(self._lock.lock_file)
            self._lock.release()

    def _acquire(self) -> FileLock | None:
        """Two processes on one file would write rows twice; remote storage has no locks."""
        if is_remote(self.path):
            return None
        folder = os.path.dirname(os.path.abspath(self.path))
        lock = FileLock(os.path.join(folder, f".{os.path.basename(os.path.abspath(self.path))}.lock"))
        try:
            os.makedirs(folder, exist_ok=True)
            lock.acquire(timeout=0)
        except Timeout:
            raise OtptError(f"Another process writes {self.path!r}; wait for it, or choose another --out.") from None
        except OSError as error:
            raise self._cannot_write(error) from None
        return lock

    def _cannot_write(self, error: Exception) -> OtptError:
        reason = " ".join(str(getattr(error, "strerror", None) or error or type(error).__name__).split())
        return OtptError(
            f"Cannot write {self.path!r}: {reason}; what is finished stays, and the same command continues."
        )

    def _remove(self, *paths: str) -> None:
        for path in paths:
            with suppress(FileNotFoundError):
                self._fs.rm(path, recursive=True)

    def _check(self, job: Mapping[str, Any]) -> None:
        """Compare with the job that the output belongs to, or write the description of a new one."""
        file = f"{self._file}.job.json"
        try:
            if self._fs.exists(file):
                known = json.loads(self._fs.cat_file(file))
                for name in dict.fromkeys([*job, *known]):
                    if job.get(name) != known.get(name):
                        raise OtptError(
                            f"{self.path!r} holds predictions of another job: {name} was {_short(known.get(name))}, "
                            f"now it is {_short(job.get(name))}; choose another --out, or --overwrite."
                        )
            elif self._fs.isfile(self._file) or self._names(self._file):
                raise OtptError(
                    f"{self.path!r} exists and is not of a prediction job; choose another --out, or --overwrite."
                )
            else:
                self._write(file, as_json(job))
        except OtptError:
            raise
        except ValueError:
            raise OtptError(f"The description of a job {file!r} is damaged; give --overwrite.") from None
        except Exception as error:  # each remote storage has errors of its own
            raise self._cannot_write(error) from None

    def _write(self, path: str, data: bytes) -> None:
        """Write a whole file or none."""
        if is_remote(self.path):
            self._fs.pipe_file(path, data)
        else:
            write_atomically(Path(path), data)

    def _names(self, folder: str) -> list[str]:
        try:
            return [str(each) for each in self._fs.ls(folder, detail=False)] if self._fs.isdir(folder) else []
        except FileNotFoundError:
            return []

    # parts

    def _part_files(self) -> list[Part]:
        """The parts, one after the other; what another part contains is left over from a merge and is removed."""
        found = []
        for path in self._names(self._parts):
            if match := re.fullmatch(r"part-(\d+)-(\d+)\.parquet", os.path.basename(path)):
                found.append((int(match[1]), int(match[2]), path))
        chain: list[Part] = []
        for first, end, path in sorted(found, key=lambda part: (part[0], -part[1])):
            if first == (chain[-1][1] if chain else 0):
                chain.append((first, end, path))
            else:
                self._remove(path)
        return chain

    def _write_part(self, rows: Sequence[Row], images: int) -> None:
        if self._parts != self._file and self.done and not self._part_files() and self._fs.isfile(self._file):
            self._fs.makedirs(self._parts, exist_ok=True)  # a finished file to which images are added
            self._fs.mv(self._file, f"{self._parts}/{_part_name(0, self.done)}")
        table = self._table(rows)
        self._columns = table.column_names
        self._write(f"{self._parts}/{_part_name(self.done, self.done + images)}", _parquet_bytes(table))
        small: list[Part] = []
        for part in reversed(self._part_files()):
            if part[1] - part[0] >= _PART_ROWS:
                break
            small.insert(0, part)
        if len(small) > _MERGED:
            paths = [path for *_, path in small]
            self._join(paths, f"{self._parts}/{_part_name(small[0][0], small[-1][1])}")
            self._remove(*paths)

    def _table(self, rows: Sequence[Row]) -> Any:
        """The rows as a table of Arrow."""
        import pyarrow as pa  # type: ignore[import-untyped]

        flat = [flat_row(row, self._top) for row in rows]
        names = dict.fromkeys([*(self._columns or ()), *_columns_of(flat, self._key)])
        arrays = {}
        for name in [*(name for name in names if name != "error"), "error"]:
            cells = [row.get(name) for row in flat]
            if name in _TEXTS or name.startswith("label_"):
                cells = [None if cell is None else _valid_text(str(cell)) for cell in cells]
                arrays[name] = pa.array(cells, pa.string())
            else:
                arrays[name] = pa.array(cells)
        return pa.table(arrays).replace_schema_metadata(self._metadata)

    def _join(self, parts: Sequence[str], path: str) -> None:
        """One file of several, a part at a time in memory."""
        import pyarrow as pa
        from pyarrow import parquet

        schemas = []
        for part in parts:
            with self._fs.open(part, "rb") as file:
                schemas.append(parquet.read_schema(file))
        joined = pa.unify_schemas(schemas, promote_options="permissive")
        names = [name for name in joined.names if name != "error"]
        schema = pa.schema([joined.field(name) for name in [*names, "error"]], metadata=self._metadata)
        local = not is_remote(self.path)
        folder = os.path.dirname(os.path.abspath(path)) if local else None
        with tempfile.TemporaryDirectory(prefix=".joining-", dir=folder) as scratch:
            whole = os.path.join(scratch, "whole.parquet")
            with parquet.ParquetWriter(whole, schema) as writer:
                for part in parts:
                    with self._fs.open(part, "rb") as file:
                        for batch in parquet.ParquetFile(file).iter_batches():
                            columns = [
                                batch.column(field.name).cast(field.type)
                                if field.name in batch.schema.names
                                else pa.nulls(len(batch), field.type)
                                for field in schema
                            ]
                            writer.write_batch(pa.record_batch(columns, schema=schema))
            if local:
                os.replace(whole, path)
            else:
                self._fs.put_file(whole, path)

    # what is written already

    def _finished(self) -> Iterator[tuple[str, bool]]:
        """Images whose rows are complete, and whether they could not be read; a cut-off last image is removed."""
        if self._in_parts:
            yield from self._finished_parts()
        elif os.path.exists(self.path):
            yield from self._finished_text()

    def _finished_parts(self) -> Iterator[tuple[str, bool]]:
        from pyarrow import parquet

        paths = [path for *_, path in self._part_files()]
        if self._parts != self._file and self._fs.isfile(self._file):
            self._remove(self._parts)  # the process ended between joining and this
            paths = [self._file]
        left = 0  # rows of the same image that follow
        for path in paths:
            with self._fs.open(path, "rb") as file:
                part = parquet.ParquetFile(file)
                self._columns = self._columns or part.schema_arrow.names
                for batch in part.iter_batches(columns=[self._key, "error"]):
                    for image, error in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                        if left:
                            left -= 1
                        else:
                            left = 0 if error is not None else self._methods - 1
                            yield image, error is not None

    def _finished_text(self) -> Iterator[tuple[str, bool]]:
        complete = rows = 0
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
                rows += 1
                if row.get("error") or rows == self._methods:
                    complete, rows = file.tell(), 0
                    yield row[self._key], bool(row.get("error"))
        if complete < os.path.getsize(self.path):
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
        if self._is_csv and b'"' not in line:  # in a third of the time
            name, _, rest = line.decode("utf-8", "replace").partition(",")
            return {self._key: name, "error": rest[:-1].rpartition(",")[2]}
        text = line.decode("utf-8", "replace")
        if not self._is_csv:
            start = f'{{"{self._key}": '
            if text.startswith(start) and '"error": ' not in text:
                return {self._key: _DECODER.raw_decode(text, len(start))[0]}
            found: Mapping[str, Any] = json.loads(text)
            return found
        assert self._columns is not None
        return dict(zip(self._columns, next(csv.reader([text])), strict=False))

    # text

    def _append(self, text: str) -> None:
        with open(self.path, "ab") as file:
            file.write(text.encode("utf-8", "backslashreplace"))
            file.flush()
            os.fsync(file.fileno())

    def _append_csv(self, rows: Sequence[Row]) -> None:
        flat = [flat_row(row, self._top) for row in rows]
        if self._columns is None:  # those of the first image that could be read
            self._columns = _columns_of([row for row in flat if not row.get("error")][:1] or flat, self._key)
            self._append(_csv_line(self._columns))
        columns = self._columns
        self._append("".join(_csv_line([row.get(name) for name in columns]) for row in flat))


def check_output(path: str | Path) -> str:
    """Refuse a file that is neither CSV, JSON lines nor Parquet, and remote text files, which cannot grow."""
    found = str(path).rstrip("/") or "/"
    if _suffix(found) not in _SUFFIXES:
        raise OtptError(f"Predictions cannot be written to {found!r}; expected .csv, .jsonl, .parquet or a folder.")
    if is_remote(found) and _suffix(found) in (".csv", ".jsonl"):
        raise OtptError(f"{found!r} cannot grow on remote storage; expected .parquet, or a folder of Parquet parts.")
    return found


def flat_row(row: Row, top: int | None) -> Row:
    """A row without lists: best classes, prediction set, flags and extras have their own columns."""
    if "flags" not in row:
        return row
    ranked = list(enumerate(row.get("top", ()), start=1)) if top else []
    return {
        **{name: value for name, value in row.items() if name not in ("top", "flags", "extras", "set")},
        **{f"{name}_{rank}": each[name] for rank, each in ranked for name in ("label", "probability")},
        **({"set": " | ".join(row["set"])} if "set" in row else {}),
        "flags": " ".join(row["flags"]),
        **row.get("extras", {}),
    }


def _columns_of(rows: Iterable[Row], key: str) -> list[str]:
    """Column names, ``error`` last."""
    first = _FIRST if key == "image" else (key,)
    names = dict.fromkeys(name for row in rows for name in row)
    return [*first, *(name for name in names if name not in (*first, "error")), "error"]


def _parquet_bytes(table: Any) -> bytes:
    import pyarrow as pa
    from pyarrow import parquet

    sink = pa.BufferOutputStream()
    parquet.write_table(table, sink)
    return bytes(sink.getvalue().to_pybytes())


def _valid_text(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def _part_name(first: int, end: int) -> str:
    return f"part-{first:012}-{end:012}.parquet"


def _suffix(path: str) -> str:
    return os.path.splitext(path)[1].lower()


def _csv_line(cells: Sequence[Any]) -> str:
    """One line of CSV; cells that a spreadsheet would compute are quoted."""
    line = io.StringIO()
    shown = ("" if cell is None else csv_cell(cell) if isinstance(cell, str) else cell for cell in cells)
    csv.writer(line, lineterminator="\n").writerow(shown)
    return line.getvalue()


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:77]}…"
