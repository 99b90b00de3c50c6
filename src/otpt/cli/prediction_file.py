"""Output of ``otpt predict -o`` and ``otpt embed``: rows are appended, and a stopped job continues where it was.

Next to the output, ``NAME.job.json`` describes the job and, after each flush, how much of the output is complete and a
digest of the images' names; on resuming, anything beyond is cut off. CSV and JSON lines grow row by row. A ``.parquet``
file is collected in parts in ``NAME.parts`` and joined at the end; an output without a suffix is a folder of such
parts. A part is named after the range of its images, ``part-000000000000-000000000512.parquet``; the last one is
replaced by a longer one until it is full. Folders and ``.parquet`` files may be on storage of fsspec (``s3://…``).
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import re
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from types import TracebackType

import pyarrow as pa  # type: ignore[import-untyped]
from filelock import FileLock, Timeout
from pyarrow import dataset, parquet

from otpt.data.sources import file_system, is_remote
from otpt.errors import OtptError
from otpt.files import Json, as_json, csv_cell, write_atomically

_FLUSH_SECONDS, _REMOTE_SECONDS = 3.0, 15.0
_PART_ROWS = 10_000
_FIRST = ("image", "method", "label", "confidence")
_TEXTS = ("image", "id", "method", "label", "set", "labels_above", "back_off", "flags", "error")
_NESTED = ("top", "flags", "extras", "set", "labels_above", "groups", "back_off")

Row = Mapping[str, object]
"""Columns of one image, or of one image and method; nested values are flattened in tables."""


class PredictionFile:
    """Rows on disk or on remote storage, in the order of the images; a context manager. Call :meth:`resume` first.

    Args:
        path: ``.csv``, ``.jsonl`` or ``.parquet``; without a suffix, a folder of Parquet parts.
        job: everything that decides the rows, as plain JSON; a file of another job is refused with the difference.
        top: number of classes with their own columns, ``label_1``, ``probability_1`` …; None for none.
        key: the column that names the image.
        overwrite: start again.
        metadata: of Parquet files.

    Attributes:
        done: number of images that are written.
        failed: number of unreadable images among them.
    """

    def __init__(
        self,
        path: str | Path,
        job: Mapping[str, Json],
        *,
        top: int | None = None,
        key: str = "image",
        overwrite: bool = False,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        self.path = check_output(path)
        self._top, self._key, self._metadata = top, key, metadata
        self._suffix = _suffix(self.path)
        self._in_parts = self._suffix in (".parquet", "")
        self._fs, self._file = file_system(self.path)
        self._parts = f"{self._file}.parts" if self._suffix else self._file
        self._job, self._job_file = json.loads(as_json(job)), f"{self._file}.job.json"
        self._rows: list[Row] = []  # not yet written
        self._images = 0  # in these rows
        self._flushed = time.monotonic()
        self.done = self.failed = self._size = 0
        self._columns: list[str] | None = None
        self._last, self._digest, self._expected = "", hashlib.blake2b(digest_size=16), ""
        self._tables: list[pa.Table] = []  # of the last part
        self._first = 0  # image of the last part
        self._lock = None if is_remote(self.path) else self._acquire()
        try:
            with self._writing():
                if overwrite:
                    self._remove(self._file, self._parts, self._job_file)
                self._open()
        except OtptError:
            self.close()
            raise

    def __enter__(self) -> PredictionFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Finish; after an error or a signal, only flush."""
        try:
            if kind is None:
                self.finish()
            else:
                self.flush(last=True)
        finally:
            self.close()

    def resume(self, images: Iterator[str]) -> int:
        """Skip the images that are written already, and return their number; ``OtptError`` if they are others."""
        last = self._last
        for image in islice(images, self.done):
            self._add_name(image)
        if self.done and self._digest.hexdigest() != self._expected:
            raise OtptError(
                f"{self.path!r} holds predictions of {self.done} other images, up to {last!r}; choose another --out, "
                "or --overwrite."
            )
        return self.done

    def _add_name(self, image: str) -> None:
        self._last = image
        self._digest.update(image.encode("utf-8", "surrogateescape") + b"\0")

    def __call__(self, rows: Sequence[Row]) -> None:
        """Append the rows of one image."""
        self._rows += rows
        self._images += 1
        self._add_name(str(rows[0][self._key]))
        self.failed += bool(rows[0].get("error"))
        seconds = _REMOTE_SECONDS if is_remote(self.path) else _FLUSH_SECONDS
        if time.monotonic() - self._flushed > seconds or len(self._rows) >= _PART_ROWS:
            self.flush()

    def flush(self, *, last: bool = False) -> None:
        """Write the waiting rows; as long as no image could be read, so that columns are unknown, only if ``last``."""
        self._flushed = time.monotonic()
        readable = self._columns is not None or any(not row.get("error") for row in self._rows)
        if not self._rows or not (readable or last or len(self._rows) >= _PART_ROWS):
            return
        rows, images, self._rows, self._images = self._rows, self._images, [], 0
        with self._writing():
            if self._in_parts:
                self._write_part(rows, images)
            else:
                self._append(rows)
                self.done += images
                self._write_state()

    def finish(self) -> None:
        """Flush, and join the parts of a Parquet file: all images are done."""
        self.flush(last=True)
        if self._suffix == ".parquet" and (parts := self._part_files()):
            with self._writing():
                self._join([path for *_, path in parts])
                self._remove(self._parts)

    def close(self) -> None:
        """Release the lock."""
        if self._lock is not None:
            with suppress(OSError):
                os.unlink(self._lock.lock_file)
            self._lock.release()

    def _acquire(self) -> FileLock:
        """Lock a local output: two processes would write rows twice. Remote storage has no locks."""
        folder, name = os.path.split(os.path.abspath(self.path))
        lock = FileLock(os.path.join(folder, f".{name}.lock"))
        with self._writing():
            os.makedirs(folder, exist_ok=True)
            try:
                lock.acquire(timeout=0)
            except Timeout:
                raise OtptError(f"Another process writes {self.path!r}; wait, or choose another --out.") from None
        return lock

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OtptError:
            raise
        except Exception as error:  # each remote storage has its own errors
            reason = " ".join(str(getattr(error, "strerror", None) or error or type(error).__name__).split())
            raise OtptError(
                f"Cannot write {self.path!r}: {reason}; finished rows stay, and the same command continues."
            ) from None

    def _remove(self, *paths: str) -> None:
        for path in paths:
            with suppress(FileNotFoundError):
                self._fs.rm(path, recursive=True)

    def _open(self) -> None:
        """Continue the job of the output, or begin a new one."""
        if not self._fs.exists(self._job_file):
            if self._fs.isfile(self._file) or self._names(self._file):
                raise OtptError(
                    f"{self.path!r} exists and is not of a prediction job; choose another --out, or --overwrite."
                )
            self._write_state()
            return
        try:
            state = json.loads(self._fs.cat_file(self._job_file))
            job, done, size = state["job"], state["done"], state["size"]
        except (ValueError, TypeError, KeyError):
            raise OtptError(f"The description of a job {self._job_file!r} is damaged; give --overwrite.") from None
        self._check_job(job)
        if not self._in_parts:
            stored = os.path.getsize(self.path) if os.path.exists(self.path) else 0
            expected = size
        elif self._suffix and self._fs.isfile(self._file):
            self._remove(self._parts)  # left by a kill after joining
            stored = expected = done
        else:
            stored = max((end for _, end, _ in self._part_files(done)), default=0)
            expected = done
        if stored == 0:
            return
        if stored < expected:
            raise OtptError(f"{self.path!r} is shorter than when it was written; choose another --out, or --overwrite.")
        if not self._in_parts:
            os.truncate(self.path, size)
        self.done, self.failed, self._size, self._first = done, state["failed"], size, done
        self._columns, self._last, self._expected = state["columns"], state["last"], state["digest"]

    def _check_job(self, stored: Mapping[str, Json]) -> None:
        """Raise if the output is of another job."""
        for name in dict.fromkeys([*self._job, *stored]):
            if self._job.get(name) != stored.get(name):
                raise OtptError(
                    f"{self.path!r} holds predictions of another job: {name} was {_short(stored.get(name))}, now it is "
                    f"{_short(self._job.get(name))}; choose another --out, or --overwrite."
                )

    def _write_state(self) -> None:
        state = {
            "job": self._job,
            "done": self.done,
            "failed": self.failed,
            "size": self._size,
            "columns": self._columns,
            "last": self._last,
            "digest": self._digest.hexdigest(),
        }
        self._write(self._job_file, as_json(state))

    def _write(self, path: str, data: bytes) -> None:
        if is_remote(self.path):
            self._fs.pipe_file(path, data)
        else:
            write_atomically(Path(path), data)

    def _names(self, folder: str) -> list[str]:
        return [str(name) for name in self._fs.ls(folder, detail=False)] if self._fs.isdir(folder) else []

    # parts

    def _part_name(self, first: int, end: int) -> str:
        return f"{self._parts}/part-{first:012}-{end:012}.parquet"

    def _part_files(self, done: int | None = None) -> list[tuple[int, int, str]]:
        """Return (first, end, path) of the parts in order, up to ``done``; remove what a kill left behind."""
        longest: dict[int, tuple[int, int, str]] = {}
        for path in sorted(self._names(self._parts)):
            if match := re.fullmatch(r"part-(\d+)-(\d+)\.parquet", os.path.basename(path)):
                part = int(match[1]), int(match[2]), path
                if part[1] > (self.done if done is None else done):
                    self._remove(path)
                else:
                    if part[0] in longest:
                        self._remove(longest[part[0]][2])
                    longest[part[0]] = part
        return list(longest.values())

    def _write_part(self, rows: Sequence[Row], images: int) -> None:
        """Replace the last part by a longer one, or begin a new part."""
        if self._suffix and self.done and self._fs.isfile(self._file):
            self._fs.makedirs(self._parts, exist_ok=True)  # a finished file to which images are added
            self._fs.mv(self._file, self._part_name(0, self.done))
        tables = [*self._tables, self._table(rows)]
        table = pa.concat_tables(tables, promote_options="permissive")
        self._columns = _error_last(table.column_names)
        before, self.done = self._part_name(self._first, self.done), self.done + images
        sink = pa.BufferOutputStream()
        parquet.write_table(table.select(self._columns), sink)
        self._write(self._part_name(self._first, self.done), sink.getvalue().to_pybytes())
        self._write_state()
        if self._tables:
            self._remove(before)
        self._tables = tables
        if table.num_rows >= _PART_ROWS:
            self._tables, self._first = [], self.done

    def _table(self, rows: Sequence[Row]) -> pa.Table:
        flat = [flat_row(row, self._top) for row in rows]
        arrays = {}
        for name in _error_last([*(self._columns or ()), *_columns_of(flat, self._key)]):
            cells = [row.get(name) for row in flat]
            if name in _TEXTS or name.startswith("label_"):
                cells = [None if cell is None else str(cell).encode("utf-8", "replace").decode() for cell in cells]
                arrays[name] = pa.array(cells, pa.string())
            else:
                arrays[name] = pa.array(cells)
        return pa.table(arrays).replace_schema_metadata(self._metadata)

    def _join(self, parts: Sequence[str]) -> None:
        """Join parts into one file, a few batches at a time in memory."""
        fragments = dataset.dataset(parts, filesystem=self._fs).get_fragments()
        schemas = [fragment.physical_schema for fragment in fragments]
        joined = pa.unify_schemas(schemas, promote_options="permissive")
        schema = pa.schema([joined.field(name) for name in _error_last(joined.names)], metadata=self._metadata)
        folder = None if is_remote(self.path) else os.path.dirname(os.path.abspath(self.path))
        with tempfile.TemporaryDirectory(prefix=".joining-", dir=folder) as scratch:
            whole = os.path.join(scratch, "whole.parquet")
            with parquet.ParquetWriter(whole, schema) as writer:
                for batch in dataset.dataset(parts, schema=schema, filesystem=self._fs).to_batches():
                    writer.write_batch(batch.cast(schema))
            if folder is None:
                self._fs.put_file(whole, self._file)
            else:
                os.replace(whole, self._file)

    # text

    def _append(self, rows: Sequence[Row]) -> None:
        """Append lines, and wait until they are on the disk."""
        text = io.StringIO()
        if self._suffix == ".jsonl":
            text.writelines(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows)
        else:
            flat = [flat_row(row, self._top) for row in rows]
            writer = csv.writer(text, lineterminator="\n")
            if self._columns is None:  # taken from the first readable image
                self._columns = _columns_of([row for row in flat if not row.get("error")][:1] or flat, self._key)
                writer.writerow(map(_cell, self._columns))
            writer.writerows([_cell(row.get(name)) for name in self._columns] for row in flat)
        with open(self.path, "ab") as file:
            file.write(text.getvalue().encode("utf-8", "backslashreplace"))
            file.flush()
            os.fsync(file.fileno())
            self._size = file.tell()


def check_output(path: str | Path) -> str:
    """Refuse a file that is neither CSV, JSON lines nor Parquet, and remote text files, which cannot grow."""
    output = str(path).rstrip("/") or "/"
    if _suffix(output) not in (".csv", ".jsonl", ".parquet", ""):
        raise OtptError(f"Predictions cannot be written to {output!r}; expected .csv, .jsonl, .parquet or a folder.")
    if is_remote(output) and _suffix(output) in (".csv", ".jsonl"):
        raise OtptError(f"{output!r} cannot grow on remote storage; expected .parquet, or a folder of Parquet parts.")
    return output


def flat_row(row: Row, top: int | None) -> dict[str, object]:
    """Flatten a row: best classes, prediction set, flags and extras have their own columns."""
    flat = {name: value for name, value in row.items() if name not in _NESTED}
    if "flags" not in row:
        return flat
    if top:
        for rank, best in enumerate(_items(row.get("top")), start=1):
            flat |= {f"{name}_{rank}": value for name, value in _mapping(best).items()}
    for name in ("set", "labels_above"):
        if name in row:
            flat[name] = " | ".join(map(str, _items(row[name])))
    flat |= {f"group {name}": value for name, value in _mapping(row.get("groups")).items()}
    answer = _mapping(row.get("back_off"))
    if answer:
        flat["back_off"] = answer["name"]
        flat["back_off_confidence"] = answer["confidence"]
    flat["flags"] = " ".join(map(str, _items(row["flags"])))
    return {**flat, **_mapping(row.get("extras"))}


def _items(value: object) -> Sequence[object]:
    return value if isinstance(value, (list, tuple)) else ()


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def _columns_of(rows: Iterable[Row], key: str) -> list[str]:
    first = _FIRST if key == "image" else (key,)
    return _error_last([*first, *(name for row in rows for name in row)])


def _error_last(names: Iterable[str]) -> list[str]:
    """Return each name once, and ``error`` at the end."""
    return [*(name for name in dict.fromkeys(names) if name != "error"), "error"]


def _suffix(path: str) -> str:
    return os.path.splitext(path)[1].lower()


def _cell(value: object) -> object:
    """Escape a text that a spreadsheet would compute."""
    return csv_cell(value) if isinstance(value, str) else value


def _short(value: Json) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:77]}…"
