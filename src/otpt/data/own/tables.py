"""A CSV or Parquet table of images: columns ``path`` and ``label``, optionally ``id``.

Paths are relative to the table's own folder (or to the data root, where one is given and the file is there).
"""

from __future__ import annotations

import csv
import importlib
import io
import os
from pathlib import Path
from typing import Any, TypeAlias

from otpt.data.classes import ClassList, find_class_list
from otpt.data.dataset import Dataset, FilesBelow
from otpt.data.own.labels import origin_of, own_dataset, resolve_labels
from otpt.data.records import read_text
from otpt.errors import OtptError

TABLE_SUFFIXES = (".csv", ".tsv", ".parquet")
_NEEDED = ("path", "label")
_ROWS_PER_BYTE = 20
_Columns: TypeAlias = tuple[dict[str, list[str]], list[str]]
"""The columns that are used, by name in lower case; and the names of all that the table has."""


def table_dataset(file: Path, root: Path | None = None, classes: ClassList | None = None) -> Dataset:
    """The data set that a table lists."""
    columns, found = _parquet(file) if file.suffix.lower() == ".parquet" else _text(file)
    missing = [name for name in _NEEDED if name not in columns]
    if missing:
        lacks = f"column{'s' * (len(missing) > 1)} {' and '.join(map(repr, missing))}"
        raise OtptError(
            f"The table {str(file)!r} has no {lacks}; expected 'path' and 'label', "
            f"found {', '.join(map(repr, found)) or 'none'}. Rename the columns that hold them."
        )
    for name, values in columns.items():
        empty = next((row for row, value in enumerate(values) if not value), None)
        if empty is not None:
            raise OtptError(f"The table {str(file)!r} has no {name} in data row {empty + 1}.")
    paths = [path.replace("\\", "/") for path in columns["path"]]
    if not paths:
        raise OtptError(f"The table {str(file)!r} is empty; expected one row per image.")
    listed = classes if classes is not None else find_class_list(file.parent)
    listed, labels = resolve_labels(columns["label"], listed, f"The table {str(file)!r}")
    folder = file.parent
    if root is not None and not os.path.exists(folder / paths[0]):
        folder = Path(os.path.expanduser(root))
    ids = columns.get("id") or [_relative(path, folder) for path in paths]
    return own_dataset(file.stem, listed, ids, labels, FilesBelow(folder, tuple(paths)), origin=origin_of(file))


def _relative(path: str, folder: Path) -> str:
    """An id that is independent of where the data are stored, as far as the table allows."""
    given = Path(path)
    if given.is_absolute() and given.is_relative_to(folder.resolve()):
        return given.relative_to(folder.resolve()).as_posix()
    return given.as_posix()


def _text(file: Path) -> _Columns:
    try:
        text = read_text(file)
    except OtptError as error:
        raise OtptError(f"The table cannot be used: {error}.") from None
    head_line = text.partition("\n")[0]
    tabs = file.suffix.lower() == ".tsv" or ("\t" in head_line and "," not in head_line)  # open_clip's CSVs have tabs
    reader = csv.reader(io.StringIO(text), delimiter="\t" if tabs else ",")
    try:
        rows = [row for row in reader if row]
    except csv.Error as error:
        raise OtptError(f"The table {str(file)!r} is not a CSV: {error}.") from None
    if not rows:
        return {}, []
    head = [name.strip().lower() for name in rows[0]]
    for number, row in enumerate(rows[1:], start=1):
        if len(row) != len(head):
            raise OtptError(
                f"The table {str(file)!r} has {len(row)} fields in data row {number}; expected {len(head)}."
            )
    wanted = [(i, name) for i, name in enumerate(head) if name in (*_NEEDED, "id")]
    return {name: [row[i].strip() for row in rows[1:]] for i, name in wanted}, [name.strip() for name in rows[0]]


def _parquet(file: Path) -> _Columns:
    parquet: Any = importlib.import_module("pyarrow.parquet")
    try:
        rows = parquet.read_metadata(file).num_rows
        if rows > _ROWS_PER_BYTE * file.stat().st_size:  # one row repeated makes a small file a huge table
            raise ValueError(
                f"it says that it has {rows:,} rows, more than different paths could be in a file of its size"
            )
        names = parquet.read_schema(file).names
        wanted = [name for name in names if name.lower() in (*_NEEDED, "id")]
        table = parquet.read_table(file, columns=wanted)
        columns = {name.lower(): table.column(name).to_pylist() for name in wanted}
        texts = {name: ["" if value is None else str(value) for value in values] for name, values in columns.items()}
    except Exception as error:  # a damaged file can raise nearly anything inside pyarrow
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise OtptError(
            f"The table {str(file)!r} cannot be read as Parquet: {reason}; write it again, or give a CSV."
        ) from None
    return texts, list(names)
