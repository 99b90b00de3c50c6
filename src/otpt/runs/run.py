"""A run: a folder with its configuration, its rows in shards, and its metrics. It grows.

    RUN/config.json                                      everything that decided the numbers
    RUN/dtd/seed-0/o-tpt/00000000-00000064.parquet …     rows of one method (and prompt), one per image
    RUN/dtd/metrics-seed-0.json                          of this data set and seed
    RUN/metrics.json                                     of all, with averages

A column is a method under a prompt, on one data set. A shard holds the rows of one column, one seed and a range of
images that begins at a multiple of the shard size; it is written whole or not at all, and its bytes depend on the
configuration alone. So a run may be stopped anywhere, continued by anybody, worked on by several processes, and take
further methods, prompts, seeds, data sets and images: what is there stays as it is.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from otpt.errors import OtptError, cannot_read
from otpt.files import DISK, Disk, is_there, remove_leftovers, write_atomically
from otpt.runs.checking import check_asked, check_config, check_rows
from otpt.runs.growing import CONFIG, LOCKS, METRICS, begun, grown
from otpt.runs.locks import Locks
from otpt.runs.sealing import read_sealed, sealed
from otpt.runs.shards import CorruptShardError, Shard, decode_shard, encode_shard, joined

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["CONFIG", "LOCKS", "METRICS", "SCORING", "Column", "Run", "Unreadable", "WorkItem"]

_GROWING, SCORING = 0, 1
"""Locks of the configuration and of the metrics, each changed by one process at a time."""
_FIRST_ITEM = 2
_SEEN_WITHIN = 90.0  # seconds
_POLL_SECONDS = 0.05
_SHARD = re.compile(r"(\d{8,})-(\d{8,})\.parquet")

Column = tuple[str, str]
"""(prompt, method)."""


@dataclass(frozen=True)
class Unreadable:
    """A row of an image that could not be read, and why."""

    dataset: str
    seed: int
    column: Column
    index: int
    id: str
    reason: str


@dataclass(frozen=True)
class WorkItem:
    """Images ``start`` … ``stop`` − 1 of one data set under one seed, for columns that lack them.

    Attributes:
        first: where their shards begin: a multiple of the shard size, ``start`` unless the run has grown.
        in_order: a stream: one column, all of its images in the stream's order.
    """

    dataset: str
    seed: int
    first: int
    start: int
    stop: int
    columns: tuple[Column, ...]
    in_order: bool = False

    @property
    def images(self) -> int:
        """How many."""
        return self.stop - self.start

    @property
    def lock(self) -> int:
        """The number of its lock: the same for all who would write the same shards."""
        facts = [self.dataset, self.seed, self.first, self.columns if self.in_order else ""]
        return _FIRST_ITEM + int.from_bytes(hashlib.sha256(json.dumps(facts).encode()).digest()[:7], "big")


class Run:
    """A run folder. ``Run(folder)`` opens one; :meth:`create` makes it, or opens it to continue or to grow."""

    def __init__(self, folder: str | Path, *, files: Disk = DISK) -> None:
        self.folder = Path(folder)
        self.files = files
        self._digests: dict[tuple[str, Column], str] = {}
        self.config: dict[str, Any] = read_sealed(self.folder / CONFIG, str(folder))
        check_config(self.config, self.folder)
        self._datasets: dict[str, dict[str, Any]] = {str(each["name"]): each for each in self.config["datasets"]}

    @classmethod
    def create(cls, folder: str | Path, config: dict[str, Any]) -> Run:
        """The run in ``folder``, new or grown by what ``config`` asks for; never with other settings."""
        folder = Path(folder)
        _check_folder(folder)
        given = json.loads(json.dumps(config, allow_nan=False))
        check_asked(begun(given), folder)
        if not is_there(folder / CONFIG):
            with Locks(folder / LOCKS) as locks:  # of two that begin at once, where there are no hard links
                locks.wait_for(_GROWING)
                if not is_there(folder / CONFIG) and not write_atomically(
                    folder / CONFIG, sealed(begun(given)), exclusive=True
                ):
                    _wait_until_seen(folder / CONFIG)
        run = cls(folder)
        wanted = grown(run.config, given, str(folder))
        if wanted != run.config:
            with Locks(folder / LOCKS) as locks:
                locks.wait_for(_GROWING)
                wanted = grown(cls(folder).config, given, str(folder))
                write_atomically(folder / CONFIG, sealed(wanted))
            run = cls(folder)
        run.tidy()
        return run

    def tidy(self) -> None:
        """Delete what killed processes left: temporary files, and shards of which a longer one is there."""
        remove_leftovers(self.folder)
        for dataset, seed, column in self.everything():
            names = self._names(dataset, seed, column)
            for first, stop in set(names) - set(_longest(names).items()):
                self.files.remove(self.shard_path(dataset, seed, column, first, stop))

    @property
    def datasets(self) -> list[dict[str, Any]]:
        """The configuration of each data set."""
        return list(self._datasets.values())

    @property
    def seeds(self) -> list[int]:
        """All seeds."""
        return sorted({seed for dataset in self._datasets for seed in self.seeds_of(dataset)})

    def columns(self, dataset: str, seed: int | None = None) -> tuple[Column, ...]:
        """(prompt, method) of the rows of a data set; of one seed, if given."""
        return tuple(
            _key(each) for each in self._datasets[dataset]["columns"] if seed is None or str(seed) in each["images"]
        )

    def seeds_of(self, dataset: str) -> list[int]:
        """The seeds of a data set."""
        return sorted({int(seed) for each in self._datasets[dataset]["columns"] for seed in each["images"]})

    def items(self, datasets: Sequence[Mapping[str, Any]] | None = None) -> list[WorkItem]:
        """Everything that the run consists of; or what of it is asked for, as in its configuration."""
        return list(self._items(datasets, only_missing=False))

    def missing(self, datasets: Sequence[Mapping[str, Any]] | None = None) -> list[WorkItem]:
        """What of that is still to be computed."""
        return list(self._items(datasets, only_missing=True))

    def progress(self, datasets: Sequence[Mapping[str, Any]] | None = None) -> tuple[int, int]:
        """(images that are done, all images), each counted once per seed and pass."""
        missing = sum(item.images for item in self.missing(datasets))
        # Columns that lack different images of a range need a pass each.
        done = max(sum(item.images for item in self.items(datasets)) - missing, 0)
        return done, done + missing

    def lacks(self, item: WorkItem) -> bool:
        """Whether a shard of the item is not there yet; asked often, so without listing folders."""
        if item.in_order:
            return any(self._present(item.dataset, item.seed, column) < item.stop for column in item.columns)
        # Of the item's own length, or of the full one if another process asked for more images meanwhile.
        stops = {item.stop, item.first + int(self.config["numbers"]["shard_size"])}
        return not all(
            any(self.files.exists(self.shard_path(item.dataset, item.seed, column, item.first, stop)) for stop in stops)
            for column in item.columns
        )

    def write(self, shard: Shard) -> None:
        """Store a shard, joined to what is there of its range."""
        before = shard.start
        if before > shard.first:
            earlier = self.read(shard.dataset, shard.seed, shard.column, shard.first, before)
            if earlier is None:  # damaged, or joined by another process: whoever asks next finds what is missing
                return
            shard = joined(earlier, shard)
        path = self.shard_path(shard.dataset, shard.seed, shard.column, shard.first, shard.stop)
        self.files.write(path, encode_shard(shard, owner=self._owner(shard.dataset, shard.seed, shard.column, path)))
        if before > shard.first:
            self.files.remove(self.shard_path(shard.dataset, shard.seed, shard.column, shard.first, before))

    def read(self, dataset: str, seed: int, column: Column, first: int, stop: int) -> Shard | None:
        """A shard, None if it is not there; a damaged one is quarantined as ``_*.corrupt`` and then missing.

        Damage is warned of, by whoever finds it.
        """
        path = self.shard_path(dataset, seed, column, first, stop)
        try:
            data = self.files.read(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise OtptError(f"Cannot read {str(path)!r}: {error.strerror or error}.") from None
        try:
            table, sums = decode_shard(data, owner=self._owner(dataset, seed, column, path), rows=stop - first)
            check_rows(table, sums, len(self._datasets[dataset]["classes"]))
        except CorruptShardError as reason:
            _quarantine(path, reason)
            return None
        return Shard(dataset, seed, column, first, first, stop, table, sums)

    def shards(
        self, dataset: str, seed: int, column: Column, *, start: int = 0, stop: int | None = None
    ) -> Iterator[Shard]:
        """The shards of a column that are there, in order; of images ``start`` … ``stop`` − 1 only, if given."""
        for first, end in sorted(self._shards(dataset, seed, column).items()):
            if end <= start or (stop is not None and first >= stop):
                continue
            shard = self.read(dataset, seed, column, first, end)
            if shard is not None:
                yield shard

    def to_pandas(self) -> pd.DataFrame:
        """Per-image rows of everything that the run holds so far.

        Columns: ``dataset``, ``variant``, ``seed``, then those of :mod:`otpt.runs.shards`. Images that could not be read
        have an ``error`` and no prediction.
        """
        import pandas as pd

        tables = []
        for dataset, seed, column in self.everything():
            for shard in self.shards(dataset, seed, column):
                table = shard.table.to_pandas()
                table.insert(0, "seed", seed)
                table.insert(0, "variant", "")
                table.insert(0, "dataset", dataset)
                tables.append(table)
        return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()

    def unreadable(self) -> Iterator[Unreadable]:
        """The rows of images that could not be read; all shards are read for it."""
        for dataset, seed, column in self.everything():
            for shard in self.shards(dataset, seed, column):
                if shard.table["error"].null_count == shard.table.num_rows:
                    continue
                for row in shard.table.select(["index", "id", "error"]).to_pylist():
                    if row["error"] is not None:
                        yield Unreadable(dataset, seed, column, row["index"], row["id"], row["error"])

    def remove(self, dataset: str, seed: int, column: Column, index: int) -> None:
        """Delete the shard that holds an image, so that it is missing; of a stream all, since they depend on it."""
        in_order = bool(self._column(dataset, column).get("order"))
        for first, stop in self._names(dataset, seed, column):
            if in_order or first <= index < stop:
                path = self.shard_path(dataset, seed, column, first, stop)
                try:
                    path.unlink(missing_ok=True)
                except OSError as error:
                    raise OtptError(
                        f"Cannot delete {str(path)!r}: {error.strerror or error}; make its folder writable, or copy "
                        "the run."
                    ) from None

    def folder_of(self, dataset: str, seed: int, column: Column | None = None) -> Path:
        """Where the shards of a data set and seed, or of one of its columns, lie."""
        folder = self.folder / str(self._datasets[dataset]["folder"]) / f"seed-{seed}"
        return folder if column is None else folder / str(self._column(dataset, column)["folder"])

    def metrics_path(self, dataset: str, seed: int) -> Path:
        """The metrics of a data set and seed; beside the folder of its rows, which readers of Parquet take whole."""
        return self.folder / str(self._datasets[dataset]["folder"]) / f"metrics-seed-{seed}.json"

    def _items(self, datasets: Sequence[Mapping[str, Any]] | None, *, only_missing: bool) -> Iterator[WorkItem]:
        size = int(self.config["numbers"]["shard_size"])
        for dataset in self.datasets if datasets is None else datasets:
            name = str(dataset["name"])
            in_order = [column for column in dataset["columns"] if column.get("order")]
            by_image = [column for column in dataset["columns"] if not column.get("order")]
            for seed in dict.fromkeys(int(seed) for column in dataset["columns"] for seed in column["images"]):
                yield from self._by_image(name, seed, by_image, size, only_missing)
                for column in in_order:
                    count = int(column["images"].get(str(seed), 0))
                    if count and not (only_missing and self._present(name, seed, _key(column)) >= count):
                        yield WorkItem(name, seed, 0, 0, count, (_key(column),), in_order=True)

    def _by_image(
        self, dataset: str, seed: int, columns: Sequence[Mapping[str, Any]], size: int, only_missing: bool
    ) -> Iterator[WorkItem]:
        """Range by range; columns that lack the same images of a range share an item."""
        counts = {_key(column): int(column["images"].get(str(seed), 0)) for column in columns}
        there = {key: self._shards(dataset, seed, key) if only_missing else {} for key in counts}
        for first in range(0, max(counts.values(), default=0), size):
            lacking: dict[tuple[int, int], list[Column]] = {}
            for key, count in counts.items():
                stop, done = min(first + size, count), there[key].get(first, first)
                if done < stop:
                    lacking.setdefault((done, stop), []).append(key)
            for (start, stop), own in lacking.items():
                yield WorkItem(dataset, seed, first, start, stop, tuple(own))

    def _shards(self, dataset: str, seed: int, column: Column) -> dict[int, int]:
        """first → stop of the shards that are there; of two that begin alike, the longer one."""
        return _longest(self._names(dataset, seed, column))

    def _names(self, dataset: str, seed: int, column: Column) -> list[tuple[int, int]]:
        """(first, stop) of the files of a column."""
        try:
            names = self.files.names(self.folder_of(dataset, seed, column))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise cannot_read("run", self.folder, error) from None
        found = (_SHARD.fullmatch(name) for name in names)
        return [(int(match[1]), int(match[2])) for match in found if match and int(match[1]) < int(match[2])]

    def _present(self, dataset: str, seed: int, column: Column) -> int:
        """How many images of a stream are there from its beginning without a gap."""
        shards, reached = self._shards(dataset, seed, column), 0
        while reached in shards:
            reached = shards[reached]
        return reached

    def shard_path(self, dataset: str, seed: int, column: Column, first: int, stop: int) -> Path:
        """The file of a shard, whether it is there or not."""
        return self.folder_of(dataset, seed, column) / f"{first:08d}-{stop:08d}.parquet"

    def _owner(self, dataset: str, seed: int, column: Column, path: Path) -> str:
        """Which shard of which configuration a file is: its bytes are good for nothing else."""
        if (dataset, column) not in self._digests:  # the same for all shards of a column, of which there are many
            self._digests[dataset, column] = self._digest(dataset, column)
        return f"{self._digests[dataset, column]} {seed} {path.name}"

    def _digest(self, dataset: str, column: Column) -> str:
        entry, own = self._datasets[dataset], self._column(dataset, column)
        facts = {
            **{key: self.config[key] for key in ("format", "versions", "numbers")},
            "backbone": {key: value for key, value in self.config["backbone"].items() if key != "name"},
            "dataset": {key: value for key, value in entry.items() if key not in ("columns", "folder", "source")},
            "column": {key: value for key, value in own.items() if key not in ("images", "folder")},
            "method": self.config["methods"][column[1]],
        }
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()

    def everything(self) -> Iterator[tuple[str, int, Column]]:
        """Each data set, seed and column."""
        for dataset in self._datasets:
            for seed in self.seeds_of(dataset):
                for column in self.columns(dataset, seed):
                    yield dataset, seed, column

    def _column(self, dataset: str, column: Column) -> dict[str, Any]:
        return next(each for each in self._datasets[dataset]["columns"] if _key(each) == column)


def _key(column: Mapping[str, Any]) -> Column:
    return str(column["prompt"]["name"]), str(column["method"])


def _longest(names: Sequence[tuple[int, int]]) -> dict[int, int]:
    """first → the largest stop."""
    return dict(sorted(names))


def _wait_until_seen(path: Path) -> None:
    """A file that another machine has made: network file systems may hide it from this one for a while."""
    until = time.monotonic() + _SEEN_WITHIN
    while not is_there(path) and time.monotonic() < until:
        time.sleep(_POLL_SECONDS)


def _check_folder(folder: Path) -> None:
    try:
        # not counting what another process is just about to make of the same folder
        others = folder.is_dir() and any(path.suffix != ".tmp" and path.name != LOCKS for path in folder.iterdir())
        is_file = folder.exists() and not folder.is_dir()
    except OSError as error:
        raise cannot_read("folder", folder, error) from None
    if is_file:
        raise OtptError(f"Cannot make a run in {str(folder)!r}: it is a file; expected a folder.")
    if others and not is_there(folder / CONFIG):
        raise OtptError(
            f"The folder {str(folder)!r} holds other files and no run ({CONFIG}); choose an empty or a new folder."
        )


def _quarantine(path: Path, reason: CorruptShardError) -> None:
    aside = path.with_name(f"_{path.name}.corrupt")
    try:
        path.replace(aside)
    except FileNotFoundError:  # another process was first
        return
    except OSError as error:
        raise OtptError(
            f"The shard {str(path)!r} is damaged ({reason}) and cannot be moved aside: {error.strerror or error}; make "
            "its folder writable, or copy the run."
        ) from None
    warnings.warn(
        f"The shard {str(path)!r} was damaged ({reason}); it was quarantined as {aside.name!r} and will be recomputed.",
        stacklevel=4,
    )
