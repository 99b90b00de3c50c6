"""Writers of rows: CSV and JSON lines that grow, and Parquet in parts.

A ``.parquet`` file is collected in parts in ``NAME.parts`` and joined at the end; an output without a suffix is a
folder of such parts. A part is named after the range of its images, ``part-000000000000-000000000512.parquet``; the
last one is replaced by a longer one until it is full.
"""

from __future__ import annotations

import csv
import io
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa  # type: ignore[import-untyped]
from pyarrow import dataset, parquet

from otpt.arguments import checked
from otpt.bulk.rows import Row, columns_of, error_last, flat_row
from otpt.bulk.storage import Storage
from otpt.data.sources import is_remote
from otpt.errors import OtptError
from otpt.escapes import csv_cell, json_text

PART_ROWS = 10_000
"""Rows of a full part, and rows in memory at most."""
_TEXTS = ("image", "id", "method", "label", "set", "labels_above", "back_off", "flags", "error")


_PART_FILE = re.compile(r"part-\d+-\d+\.parquet|\.part-\d+-\d+\.parquet\..*\.tmp")
"""Names of parts, and of those that a kill left half written."""


class RowFormat(NamedTuple):
    """How rows become columns.

    Attributes:
        key: column that names the image.
        top: number of best classes with their own columns; None for none.
        metadata: of Parquet files.
    """

    key: str = "image"
    top: int | None = None
    metadata: Mapping[str, str] | None = None


class Writer(ABC):
    """Rows of an output in their order.

    Args:
        storage: where the output is.
        row_format: how rows become columns.

    Attributes:
        columns: columns of a table; None before the first rows.
        size: bytes of a text file that are complete.
    """

    def __init__(self, storage: Storage, row_format: RowFormat) -> None:
        self._storage = storage
        self._format = row_format
        self.columns: list[str] | None = None
        self.size = 0

    def remove(self) -> None:
        """Remove the output, also an unfinished one; never a folder with files of others.

        Raises:
            OtptError: if a folder stands in its place.
        """
        if self._storage.fs.isdir(self._storage.file):
            raise OtptError(f"{self._storage.path!r} is a folder; choose another output.")
        self._storage.remove(self._storage.file)

    @abstractmethod
    def restore(self, done: int, size: int, columns: list[str] | None) -> bool:
        """Continue after ``done`` images, and cut off what a kill left behind.

        Returns:
            False if the output is gone, so that all rows are written again.

        Raises:
            OtptError: if the output is shorter than when it was written.
        """

    @abstractmethod
    def append(self, rows: Sequence[Row], done: int, images: int) -> None:
        """Write the rows of ``images`` images that follow ``done`` others; the state is recorded afterwards."""

    @abstractmethod
    def settle(self) -> None:
        """Remove what the last rows replaced, after the state was recorded."""

    @abstractmethod
    def finish(self) -> None:
        """Complete the output: all images are done."""

    def _too_short(self) -> OtptError:
        return OtptError(
            f"{self._storage.path!r} is shorter than when it was written; choose another output, or start it again "
            "(--overwrite, overwrite=True)."
        )


class TextWriter(Writer):
    """Local text file that grows by lines."""

    def restore(self, done: int, size: int, columns: list[str] | None) -> bool:
        """See :meth:`Writer.restore`."""
        path = self._storage.path
        stored = os.path.getsize(path) if os.path.exists(path) else 0
        if stored == 0:
            return False
        if stored < size:
            raise self._too_short()
        os.truncate(path, size)
        self.columns = columns
        self.size = size
        return True

    def append(self, rows: Sequence[Row], done: int, images: int) -> None:
        """See :meth:`Writer.append`."""
        text = self._text(rows).encode("utf-8", "backslashreplace")
        self.size = self._storage.append(self._storage.path, text)

    def settle(self) -> None:
        """See :meth:`Writer.settle`; nothing was replaced."""

    def finish(self) -> None:
        """See :meth:`Writer.finish`; the file is complete after each flush."""

    @abstractmethod
    def _text(self, rows: Sequence[Row]) -> str:
        """Return rows as lines."""


class JsonLinesWriter(TextWriter):
    """One JSON object per row."""

    def _text(self, rows: Sequence[Row]) -> str:
        return "".join(f"{json_text(row)}\n" for row in rows)


class CsvWriter(TextWriter):
    """Table whose columns are those of the first readable image, over all methods."""

    def _text(self, rows: Sequence[Row]) -> str:
        flat = [flat_row(row, self._format.top) for row in rows]
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        if self.columns is None:
            self.columns = columns_of(_rows_of_first_image(flat, self._format.key), self._format.key)
            writer.writerow(map(_cell, self.columns))
        writer.writerows([_cell(row.get(name)) for name in self.columns] for row in flat)
        return text.getvalue()


class Part(NamedTuple):
    """Part of the images from ``first`` to before ``end``."""

    first: int
    end: int
    path: str


class ParquetWriter(Writer):
    """Parts in a folder; with a suffix, they are joined to one file at the end."""

    def __init__(self, storage: Storage, row_format: RowFormat) -> None:
        super().__init__(storage, row_format)
        self._joined = bool(_suffix(storage.path))
        self._folder = f"{storage.file}.parts" if self._joined else storage.file
        self._tables: list[pa.Table] = []  # of the last part
        self._first = 0  # image of the last part
        self._done = 0
        self._replaced: str | None = None

    def remove(self) -> None:
        """See :meth:`Writer.remove`."""
        for path in self._storage.names(self._folder):
            if _PART_FILE.fullmatch(os.path.basename(path)) is None:
                raise OtptError(
                    f"The folder {self._folder!r} holds {os.path.basename(path)!r}, which is not of a prediction job; "
                    "choose another output."
                )
        if self._joined:
            super().remove()
        self._remove_parts()

    def restore(self, done: int, size: int, columns: list[str] | None) -> bool:
        """See :meth:`Writer.restore`."""
        if self._joined and self._storage.fs.isfile(self._storage.file):
            self._remove_parts()  # left by a kill after joining
            stored = done
        else:
            stored = max((part.end for part in self._parts(done)), default=0)
        if stored == 0:
            return False
        if stored < done:
            raise self._too_short()
        self.columns = columns
        self._first = self._done = done
        return True

    def append(self, rows: Sequence[Row], done: int, images: int) -> None:
        """Replace the last part by a longer one, or begin a new part."""
        if self._joined and done and self._storage.fs.isfile(self._storage.file):
            self._storage.move(self._storage.file, self._part_path(0, done))  # images are added to a finished file
        tables = [*self._tables, self._table(rows)]
        table = pa.concat_tables(tables, promote_options="permissive")
        self.columns = error_last(table.column_names)
        sink = pa.BufferOutputStream()
        parquet.write_table(table.select(self.columns), sink)
        self._replaced = self._part_path(self._first, done) if self._tables else None
        self._done = done + images
        self._storage.write(self._part_path(self._first, self._done), sink.getvalue().to_pybytes())
        self._tables = tables
        if table.num_rows >= PART_ROWS:
            self._tables = []
            self._first = self._done

    def settle(self) -> None:
        """See :meth:`Writer.settle`."""
        if self._replaced is not None:
            self._storage.remove(self._replaced)
            self._replaced = None

    def finish(self) -> None:
        """Join the parts of a file, a few batches at a time in memory."""
        parts = [part.path for part in self._parts(self._done)] if self._joined else []
        if not parts:
            return
        fs = self._storage.fs
        schemas = [fragment.physical_schema for fragment in dataset.dataset(parts, filesystem=fs).get_fragments()]
        unified = pa.unify_schemas(schemas, promote_options="permissive")
        fields = [unified.field(name) for name in error_last(unified.names)]
        schema = pa.schema(fields, metadata=self._format.metadata)
        with self._storage.scratch() as scratch:
            whole = os.path.join(scratch, "whole.parquet")
            with parquet.ParquetWriter(whole, schema) as writer:
                for batch in dataset.dataset(parts, schema=schema, filesystem=fs).to_batches():
                    writer.write_batch(batch.cast(schema))
            self._storage.publish(whole, self._storage.file)
        self._remove_parts()

    def _remove_parts(self) -> None:
        """Remove the parts, and their folder if nothing else is in it."""
        names = self._storage.names(self._folder)
        self._storage.remove(*(path for path in names if _PART_FILE.fullmatch(os.path.basename(path))))
        self._storage.remove_empty(self._folder)

    def _table(self, rows: Sequence[Row]) -> pa.Table:
        flat = [flat_row(row, self._format.top) for row in rows]
        arrays = {}
        for name in error_last([*(self.columns or ()), *columns_of(flat, self._format.key)]):
            cells = [row.get(name) for row in flat]
            if name in _TEXTS or name.startswith("label_"):
                texts = [None if cell is None else str(cell).encode("utf-8", "replace").decode() for cell in cells]
                arrays[name] = pa.array(texts, pa.string())
            else:
                arrays[name] = pa.array(cells)
        return pa.table(arrays).replace_schema_metadata(self._format.metadata)

    def _part_path(self, first: int, end: int) -> str:
        return f"{self._folder}/part-{first:012}-{end:012}.parquet"

    def _parts(self, done: int) -> list[Part]:
        """Return the parts in order, up to ``done``; remove what a kill left behind."""
        longest: dict[int, Part] = {}
        for path in self._storage.names(self._folder):
            match = re.fullmatch(r"part-(\d+)-(\d+)\.parquet", os.path.basename(path))
            if match is None:
                continue
            part = Part(int(match[1]), int(match[2]), path)
            if part.end > done:
                self._storage.remove(path)
                continue
            if part.first in longest:
                self._storage.remove(longest[part.first].path)
            longest[part.first] = part
        return list(longest.values())


@checked
def check_output(path: str | Path) -> str:
    """Refuse a file that is neither CSV, JSON lines nor Parquet, and remote text files, which cannot grow."""
    text = str(path).rstrip("/") or "/"
    if _suffix(text) not in _WRITERS:
        raise OtptError(f"Predictions cannot be written to {text!r}; expected .csv, .jsonl, .parquet or a folder.")
    if is_remote(text) and issubclass(_WRITERS[_suffix(text)], TextWriter):
        raise OtptError(f"{text!r} cannot grow on remote storage; expected .parquet, or a folder of Parquet parts.")
    return text


def writer_of(storage: Storage, row_format: RowFormat) -> Writer:
    """Return the writer for the suffix of an output."""
    return _WRITERS[_suffix(storage.path)](storage, row_format)


_WRITERS: dict[str, type[TextWriter | ParquetWriter]] = {
    ".csv": CsvWriter,
    ".jsonl": JsonLinesWriter,
    ".parquet": ParquetWriter,
    "": ParquetWriter,
}


def _suffix(path: str) -> str:
    return os.path.splitext(path)[1].lower()


def _rows_of_first_image(rows: Sequence[Row], key: str) -> Sequence[Row]:
    """Return the rows of the first image that could be read, one per method; all rows if none could."""
    readable = [row for row in rows if not row.get("error")]
    return [row for row in readable if row[key] == readable[0][key]] or rows


def _cell(value: object) -> object:
    """Escape a text that a spreadsheet would compute."""
    return csv_cell(value) if isinstance(value, str) else value
