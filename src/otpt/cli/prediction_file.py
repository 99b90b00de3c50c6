"""Append finished rows, and continue a stopped job where it was: ``otpt predict -o``.

Next to the output, ``NAME.job.json`` describes the job, and after each flush how much of the output is complete and
a digest of the names of its images; what a kill leaves behind that is cut off. CSV and JSON lines grow row by row. A
``.parquet`` file is collected in parts in ``NAME.parts`` and joined at the end; an output without a suffix is a folder
of such parts. Parts are named after the images that they hold, ``part-000000000000-000000000512.parquet``, and small
ones are merged; of two that overlap, the larger one counts. Folders and ``.parquet`` files may be on storage of fsspec
(``s3://…``).
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
import re
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any, TextIO, TypedDict

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

Row = dict[str, Any]
Part = tuple[int, int, str]
"""First image, end, and path of a part."""


class _State(TypedDict):
    """What ``NAME.job.json`` holds."""

    job: Mapping[str, Any]
    done: int
    failed: int
    size: int  # bytes of a text file
    columns: list[str] | None
    last: str
    digest: str  # of the names of the images


class PredictionFile:
    """Rows on disk or on remote storage, in the order of the images; a context manager. Call :meth:`resume` first.

    Args:
        path: ``.csv``, ``.jsonl`` or ``.parquet``; without a suffix, a folder of Parquet parts.
        job: what decides the rows, as plain JSON; a file of another job is refused with the difference.
        top: number of classes with their own columns, ``label_1``, ``probability_1`` …; None for none.
        key: the column that names the image.
        overwrite: start again.
        metadata: of Parquet files.

    Attributes:
        done: number of images that are written.
        failed: number of these that could not be read.
    """

    def __init__(
        self,
        path: str | Path,
        job: Mapping[str, Any],
        *,
        top: int | None = None,
        key: str = "image",
        overwrite: bool = False,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        self.path = check_output(path)
        self._top, self._key, self._metadata = top, key, metadata
        self._is_csv = self.path.lower().endswith(".csv")
        self._in_parts = not self.path.lower().endswith((".csv", ".jsonl"))
        self._fs, self._file = file_system(self.path)
        self._parts = self._file if _suffix(self.path) == "" else f"{self._file}.parts"
        self._job, self._job_file = json.loads(as_json(job)), f"{self._file}.job.json"
        self._lock = self._acquire()
        self._rows: list[Row] = []
        self._images = 0  # that are in these rows
        self._flushed = time.monotonic()
        self.done = self.failed = self._size = 0
        self._columns: list[str] | None = None
        self._last, self._digest = "", hashlib.blake2b(digest_size=16)
        self._expected = ""
        try:
            if overwrite:
                self._remove(self._file, self._parts, self._job_file)
            self._open()
        except OtptError:
            self.close()
            raise
        except Exception as error:  # each remote storage has errors of its own
            self.close()
            raise self._cannot_write(error) from None

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
        self._add_name(rows[0][self._key])
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
                with self._appending() as file:
                    file.writelines(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows)
            self.done += images
            self._write_state()
            if self._in_parts:
                self._merge_parts()
        except Exception as error:  # each remote storage has errors of its own
            raise self._cannot_write(error) from None

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

    def _open(self) -> None:
        """Continue the job that the output belongs to, or begin a new one."""
        if not self._fs.exists(self._job_file):
            if self._fs.isfile(self._file) or self._names(self._file):
                raise OtptError(
                    f"{self.path!r} exists and is not of a prediction job; choose another --out, or --overwrite."
                )
            self._write_state()
            return
        try:
            state: _State = json.loads(self._fs.cat_file(self._job_file))
            known = state["job"]
        except (ValueError, TypeError, KeyError):
            raise OtptError(f"The description of a job {self._job_file!r} is damaged; give --overwrite.") from None
        for name in dict.fromkeys([*self._job, *known]):
            if self._job.get(name) != known.get(name):
                raise OtptError(
                    f"{self.path!r} holds predictions of another job: {name} was {_short(known.get(name))}, now it is "
                    f"{_short(self._job.get(name))}; choose another --out, or --overwrite."
                )
        found, stored = self._found(state), state["done"] if self._in_parts else state["size"]
        if found == 0:
            return
        if found < stored:
            raise OtptError(f"{self.path!r} is shorter than when it was written; choose another --out, or --overwrite.")
        if self._in_parts:
            self._remove(*(path for first, _, path in self._part_files() if first >= stored))
        elif found > stored:
            os.truncate(self.path, stored)
        self.done, self.failed, self._size = state["done"], state["failed"], state["size"]
        self._columns, self._last, self._expected = state["columns"], state["last"], state["digest"]

    def _found(self, state: _State) -> int:
        """Bytes of a text file, or the number of images in parts."""
        if not self._in_parts:
            return os.path.getsize(self.path) if os.path.exists(self.path) else 0
        if self._parts != self._file and self._fs.isfile(self._file):
            self._remove(self._parts)  # a process may have ended between joining and this
            return state["done"]
        return max((end for _, end, _ in self._part_files()), default=0)

    def _write_state(self) -> None:
        state = _State(
            job=self._job,
            done=self.done,
            failed=self.failed,
            size=self._size,
            columns=self._columns,
            last=self._last,
            digest=self._digest.hexdigest(),
        )
        self._write(self._job_file, as_json(state))

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
        if self._parts != self._file and self.done and self._fs.isfile(self._file):
            self._fs.makedirs(self._parts, exist_ok=True)  # a finished file to which images are added
            self._fs.mv(self._file, f"{self._parts}/{_part_name(0, self.done)}")
        table = self._table(rows)
        self._columns = table.column_names
        self._write(f"{self._parts}/{_part_name(self.done, self.done + images)}", _parquet_bytes(table))

    def _merge_parts(self) -> None:
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
        """One file of several, a few batches at a time in memory."""
        import pyarrow as pa
        from pyarrow import dataset, parquet

        schemas = [each.physical_schema for each in dataset.dataset(list(parts), filesystem=self._fs).get_fragments()]
        joined = pa.unify_schemas(schemas, promote_options="permissive")
        names = [*(name for name in joined.names if name != "error"), "error"]
        schema = pa.schema([joined.field(name) for name in names], metadata=self._metadata)
        local = not is_remote(self.path)
        folder = os.path.dirname(os.path.abspath(path)) if local else None
        with tempfile.TemporaryDirectory(prefix=".joining-", dir=folder) as scratch:
            whole = os.path.join(scratch, "whole.parquet")
            with parquet.ParquetWriter(whole, schema) as writer:
                for batch in dataset.dataset(list(parts), schema=schema, filesystem=self._fs).to_batches():
                    writer.write_batch(batch.cast(schema))
            if local:
                os.replace(whole, path)
            else:
                self._fs.put_file(whole, path)

    # text

    @contextmanager
    def _appending(self) -> Iterator[TextIO]:
        """The end of the file; what is written is on the disk afterwards."""
        with open(self.path, "a", encoding="utf-8", errors="backslashreplace", newline="") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            self._size = os.fstat(file.fileno()).st_size

    def _append_csv(self, rows: Sequence[Row]) -> None:
        flat = [flat_row(row, self._top) for row in rows]
        begins = self._columns is None
        if self._columns is None:  # those of the first image that could be read
            self._columns = _columns_of([row for row in flat if not row.get("error")][:1] or flat, self._key)
        columns = self._columns
        with self._appending() as file:
            writer = csv.writer(file, lineterminator="\n")
            if begins:
                writer.writerow(map(_cell, columns))
            writer.writerows([_cell(row.get(name)) for name in columns] for row in flat)


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


def _cell(value: Any) -> Any:
    """A cell that no spreadsheet would compute."""
    return csv_cell(value) if isinstance(value, str) else value


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:77]}…"
