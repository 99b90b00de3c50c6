"""A run: a folder with its configuration, its rows in shards, and its metrics.

    RUN/config.json                                              everything that decided the numbers
    RUN/rows/dtd/seed-0/o-tpt/a-photo-of-a-…/00000000-00000064.parquet …     rows, one per image
    RUN/metrics.json                                             metrics of the rows

``pd.read_parquet(RUN / "rows")`` reads all rows: such readers take the columns from the file that sorts first, so a
finished evaluation writes an empty one, ``+columns.parquet``, with the columns of all shards. A shard starts at a
multiple of the shard size, is written whole or not at all, and its rows depend on the configuration alone. A run may
therefore be stopped anywhere, continued by several processes and machines, and extended by methods, prompts, seeds,
data sets and images: existing rows do not change.
"""

from __future__ import annotations

import hashlib
import os
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TypedDict

import pandas as pd
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from filelock import FileLock, Timeout

from otpt.errors import OtptError, cannot_read
from otpt.files import is_there, remove_leftovers
from otpt.runs.config import (
    CONFIG,
    ColumnConfig,
    DatasetConfig,
    RunConfig,
    folder_name,
    merge_config,
    read_config,
    write_config,
)
from otpt.runs.shards import (
    COLUMNS,
    DamagedShard,
    LabelRows,
    Rows,
    Shard,
    read_shard,
    schema_of,
    write_shard,
    write_table,
)

ROWS = "rows"
LOCKS = "locks"
METRICS_FILE = "metrics.json"
_ALL_COLUMNS = "+columns.parquet"
_SHARD = re.compile(r"(\d{8,})-(\d{8,})\.parquet")
_PLAIN = re.compile(r"[a-z0-9][a-z0-9._+-]{0,60}")

Column = tuple[str, str]
"""(prompt, method)."""


class UnreadableRow(TypedDict):
    """Row of an image that could not be read, and why."""

    id: str
    index: int
    error: str


@dataclass(frozen=True)
class WorkItem:
    """Images ``start`` … ``stop`` − 1 of one data set under one seed, for columns that lack them.

    ``in_order`` for a stream: one column, all of its images in the stream's order.
    """

    dataset: str
    seed: int
    start: int
    stop: int
    columns: tuple[Column, ...]
    in_order: bool = False

    @property
    def images(self) -> int:
        """Number of images."""
        return self.stop - self.start

    @property
    def lock_name(self) -> str:
        """The same for all items that start a shard at the same place, or are the same stream."""
        facts = repr([self.dataset, self.seed, self.start, self.columns if self.in_order else ""])
        return hashlib.sha256(facts.encode()).hexdigest()[:20]


class Run:
    """A run folder. ``Run(folder)`` opens one; :meth:`create` makes it, or opens it to continue or extend it."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.config = read_config(self.folder)
        self._datasets = {dataset.name: dataset for dataset in self.config.datasets}
        root = self.folder.resolve()
        if any(not self.folder_of(*key).resolve().is_relative_to(root) for key in self.everything()):
            raise OtptError(f"A link in the run {str(folder)!r} leads out of it; replace it by the folder itself.")

    @classmethod
    def create(cls, folder: str | Path, config: RunConfig) -> Run:
        """Create the run in ``folder``, or extend it by ``config``; an error if its settings differ."""
        folder = Path(folder)
        _check_folder(folder)
        with locked(folder, "config"):
            stored = read_config(folder) if is_there(folder / CONFIG) else None
            merged = merge_config(stored, config, folder)
            if merged != stored:
                write_config(folder, merged)
        return cls(folder)

    def __repr__(self) -> str:
        done, total = self.progress()
        names = ", ".join(self._datasets)
        return f"Run({str(self.folder)!r}: {self.config.backbone.name} on {names}, {done}/{total} images)"

    def _repr_html_(self) -> str:
        keys = [(name, seed, method) for name, seed, (_, method) in self.everything()]
        table = pd.DataFrame(keys, columns=["dataset", "seed", "method"]).drop_duplicates()
        return f"<p>{escape(repr(self))}</p>{table.to_html(index=False)}"

    @property
    def datasets(self) -> list[DatasetConfig]:
        """The configuration of each data set."""
        return self.config.datasets

    @property
    def multi_label(self) -> bool:
        """Whether images have several labels."""
        return bool(self.config.numbers.get("multi_label"))

    def columns(self, dataset: str, seed: int | None = None) -> tuple[Column, ...]:
        """Return (prompt, method) of the rows of a data set, optionally of one seed."""
        columns = self._datasets[dataset].columns
        return tuple(column.key for column in columns if seed is None or seed in column.images)

    @property
    def seeds(self) -> list[int]:
        """All seeds."""
        return sorted({seed for dataset in self.datasets for seed in dataset.seeds})

    def everything(self, datasets: Sequence[DatasetConfig] | None = None) -> Iterator[tuple[str, int, Column]]:
        """Yield each data set, seed and column of the run, or of ``datasets``."""
        for dataset in self.config.datasets if datasets is None else datasets:
            for seed in dataset.seeds:
                for column in dataset.columns:
                    if seed in column.images:
                        yield dataset.name, seed, column.key

    # What is missing

    def items(
        self, datasets: Sequence[DatasetConfig] | None = None, *, only_missing: bool = False
    ) -> Iterator[WorkItem]:
        """Yield all work items of the run, or of ``datasets``."""
        size = self.config.shard_size
        for dataset in self.datasets if datasets is None else datasets:
            for seed in dataset.seeds:
                columns_of: dict[tuple[int, int], list[Column]] = {}  # by start and stop of the shard
                streams = []
                for column in dataset.columns:
                    count = column.images.get(seed, 0)
                    stops = self._stops(dataset.name, seed, column.key) if only_missing else {}
                    places = [(start, stop) for start, stop in _places(0, count, size) if stops.get(start, 0) < stop]
                    if column.order and places:
                        streams.append(WorkItem(dataset.name, seed, 0, count, (column.key,), in_order=True))
                    for place in () if column.order else places:
                        columns_of.setdefault(place, []).append(column.key)
                for (start, stop), columns in sorted(columns_of.items()):
                    yield WorkItem(dataset.name, seed, start, stop, tuple(columns))
                yield from streams

    def missing(self, datasets: Sequence[DatasetConfig] | None = None) -> list[WorkItem]:
        """Return the :meth:`items` that are not computed yet."""
        return list(self.items(datasets, only_missing=True))

    def progress(self, datasets: Sequence[DatasetConfig] | None = None) -> tuple[int, int]:
        """Return (finished images, all images), counted once per seed and pass."""
        missing = sum(item.images for item in self.missing(datasets))
        done = max(sum(item.images for item in self.items(datasets)) - missing, 0)
        return done, done + missing

    def lacks(self, item: WorkItem) -> bool:
        """Return whether rows of the item are missing."""
        places = _places(item.start, item.stop, self.config.shard_size)
        for column in item.columns:
            stops = self._stops(item.dataset, item.seed, column)
            if any(stops.get(start, 0) < stop for start, stop in places):
                return True
        return False

    # Locks

    def lock(self, item: WorkItem) -> FileLock | None:
        """Lock an item for this process; return None if it is finished or locked by another process.

        The operating system releases the lock when the process ends. Call :meth:`unlock` when the rows are written.
        """
        if not self.lacks(item):
            return None
        try:
            lock = _acquire(self.folder, item.lock_name, timeout=0)
        except Timeout:
            return None
        if self.lacks(item):
            return lock
        self.unlock(lock)
        return None

    def unlock(self, lock: FileLock) -> None:
        """Release a lock of :meth:`lock`."""
        with suppress(OSError):
            Path(lock.lock_file).unlink()
        lock.release()

    # Rows

    def write(self, shard: Shard) -> None:
        """Store a shard."""
        path = self.shard_path(shard.dataset, shard.seed, shard.column, shard.start, shard.stop)
        write_shard(path, shard, self._datasets[shard.dataset].classes)

    def shards(self, dataset: str, seed: int, column: Column, *, delete_damaged: bool = False) -> Iterator[Shard]:
        """Yield the existing shards of a column in order; corrupt ones are skipped or deleted with a warning."""
        for start, stop in self._stops(dataset, seed, column).items():
            path = self.shard_path(dataset, seed, column, start, stop)
            try:
                yield read_shard(path, dataset, seed, column, start, stop)
            except FileNotFoundError:  # replaced by another process meanwhile
                continue
            except OSError as error:
                raise cannot_read("shard", path, error) from None
            except DamagedShard as reason:
                if delete_damaged:
                    _delete(path)
                then = "it is recomputed" if delete_damaged else "the next evaluation of this run recomputes it"
                warnings.warn(f"The shard {str(path)!r} is damaged ({reason}); {then}.", stacklevel=2)

    def rows(self, dataset: str, seed: int, column: Column) -> Rows | None:
        """Return the readable images of a column so far as arrays, or None without shards."""
        shards = list(self.shards(dataset, seed, column))
        return Rows(shards) if shards else None

    def label_rows(self, dataset: str, seed: int, column: Column) -> LabelRows | None:
        """Return :meth:`rows` of a run with several labels per image."""
        shards = list(self.shards(dataset, seed, column))
        return LabelRows(shards) if shards else None

    def to_pandas(self) -> pd.DataFrame:
        """Return all per-image rows of the run so far; for columns see :mod:`otpt.runs.shards`."""
        tables = [shard.table for key in self.everything() for shard in self.shards(*key)]
        if not tables:
            return pa.table({}).to_pandas()
        return pa.concat_tables(tables, promote_options="default").to_pandas()

    def unreadable(
        self, datasets: Sequence[DatasetConfig] | None = None
    ) -> Iterator[tuple[str, int, Column, UnreadableRow]]:
        """Yield data set, seed, column and row of each unreadable image."""
        for key in self.everything(datasets):
            for shard in self.shards(*key):
                unreadable = shard.table.filter(shard.table["error"].is_valid())
                for row in unreadable.select(["id", "index", "error"]).to_pylist():
                    yield *key, row

    def remove(self, dataset: str, seed: int, column: Column, index: int) -> None:
        """Delete the shard of an image, or all shards of a stream, so that they are computed again."""
        stream = self.column(dataset, column).order is not None
        for start, stop in self._files(dataset, seed, column):
            if stream or start <= index < stop:
                _delete(self.shard_path(dataset, seed, column, start, stop))

    def remove_damaged(self) -> None:
        """Delete damaged shards, each with a warning, so that they are computed again."""
        for key in self.everything():
            for _ in self.shards(*key, delete_damaged=True):
                pass

    def tidy(self) -> None:
        """Delete leftovers of killed processes, and write the columns of all rows for readers of the whole folder.

        Leftovers are temporary files, and shards that a longer one replaces.
        """
        remove_leftovers(self.folder)
        columns = set(COLUMNS)
        for key in self.everything():
            stops = self._stops(*key)
            for start, stop in self._files(*key):
                path = self.shard_path(*key, start, stop)
                if stops.get(start) == stop:
                    columns |= _column_names(path)
                else:
                    with suppress(OSError):
                        path.unlink(missing_ok=True)
        path = self.folder / ROWS / _ALL_COLUMNS
        if _column_names(path) != columns:
            write_table(path, schema_of(columns).empty_table(), {})

    # Where things are

    def dataset(self, name: str) -> DatasetConfig:
        """Return the configuration of a data set."""
        return self._datasets[name]

    def column(self, dataset: str, column: Column) -> ColumnConfig:
        """Return the configuration of a column."""
        return next(config for config in self._datasets[dataset].columns if config.key == column)

    def folder_of(self, dataset: str, seed: int, column: Column) -> Path:
        """Return the folder of a column's shards."""
        prompt, method = column
        return self.folder / ROWS / _unique(dataset) / f"seed-{seed}" / _unique(method) / _unique(prompt)

    def shard_path(self, dataset: str, seed: int, column: Column, start: int, stop: int) -> Path:
        """Return the path of a shard, which need not exist."""
        return self.folder_of(dataset, seed, column) / f"{start:08d}-{stop:08d}.parquet"

    def shard_files(self) -> Iterator[Path]:
        """Yield the existing shard files of the run."""
        for key in self.everything():
            for place in self._stops(*key).items():
                yield self.shard_path(*key, *place)

    def _files(self, dataset: str, seed: int, column: Column) -> list[tuple[int, int]]:
        try:
            names = os.listdir(self.folder_of(dataset, seed, column))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise cannot_read("run", self.folder, error) from None
        matches = map(_SHARD.fullmatch, names)
        return [(int(match[1]), int(match[2])) for match in matches if match]

    def _stops(self, dataset: str, seed: int, column: Column) -> dict[int, int]:
        """Return the largest stop of the shards of a column by start, in order."""
        files = sorted(self._files(dataset, seed, column))
        return {start: stop for start, stop in files if start % self.config.shard_size == 0}


@contextmanager
def locked(folder: Path, name: str) -> Iterator[None]:
    """Wait for a lock of the run and hold it."""
    lock = _acquire(folder, name)
    try:
        yield
    finally:
        lock.release()


def _acquire(folder: Path, name: str, timeout: float = -1) -> FileLock:
    """Acquire a lock of the run; without file system locks, work may be repeated with equal rows."""
    path = folder / LOCKS / f"{name}.lock"
    lock = FileLock(path, thread_local=False)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(NotImplementedError):
            lock.acquire(timeout=timeout)
    except Timeout:
        raise
    except OSError as error:
        raise OtptError(f"Cannot write {str(path)!r}: {error.strerror or error}; choose another folder.") from None
    return lock


def _places(start: int, stop: int, size: int) -> list[tuple[int, int]]:
    """Return (start, stop) of the shards of images ``start`` … ``stop`` − 1."""
    return [(first, min(first + size, stop)) for first in range(start, stop, size)]


def _column_names(path: Path) -> set[str]:
    """Return the columns of a Parquet file, or none if it is missing or corrupt."""
    try:
        return set(pq.read_schema(path).names)
    except (OSError, pa.ArrowException):
        return set()


def _unique(name: str) -> str:
    """Return a unique file name for a data set, method or prompt on any file system."""
    if _PLAIN.fullmatch(name):
        return name
    return f"{folder_name(name)[:60].lower()}-{hashlib.sha256(name.encode()).hexdigest()[:6]}"


def _check_folder(folder: Path) -> None:
    try:
        names = {path.name for path in folder.iterdir()} if folder.exists() else set()
    except OSError as error:
        raise cannot_read("run folder", folder, error) from None
    if CONFIG not in names and any(name != LOCKS and not name.endswith(".tmp") for name in names):
        raise OtptError(f"The folder {str(folder)!r} holds other files and no run; choose an empty or a new folder.")


def _delete(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise OtptError(
            f"Cannot delete {str(path)!r}: {error.strerror or error}; make its folder writable, or copy the run."
        ) from None
