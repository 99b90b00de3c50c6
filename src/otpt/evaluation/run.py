"""A run: a folder with its configuration, its rows in parts, and its metrics.

    RUN/config.json                              everything that decided the numbers
    RUN/dtd/seed-0/part-00000.parquet …          one row a picture, prompt and method
    RUN/dtd/metrics-seed-0.json                  of this data set and seed
    RUN/metrics.json                             of all, with averages

A part is a fixed range of pictures. It is written whole or not at all, and its bytes depend on the configuration alone:
so a run may be stopped anywhere, continued by anybody, and worked on by several processes.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from otpt.errors import OtptError
from otpt.evaluation.differences import differences
from otpt.evaluation.files import as_json, read_json, remove_leftovers, write_atomically
from otpt.evaluation.format import FORMAT
from otpt.evaluation.parts import CorruptPartError, Part, decode_part, encode_part
from otpt.evaluation.starts import column_names

CLAIMS = "claims.lock"
CONFIG = "config.json"
METRICS = "metrics.json"


@dataclass(frozen=True)
class WorkItem:
    """Pictures ``start`` … ``stop`` − 1 of one data set under one seed.

    Attributes:
        number: position among all items of the run.
        dataset: position of the data set in the configuration.
        part: position among the parts of its data set and seed.
    """

    number: int
    dataset: int
    seed: int
    part: int
    start: int
    stop: int


class Run:
    """A run folder. ``Run(folder)`` opens one; :meth:`create` makes it, or opens it to go on."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.config: dict[str, Any] = read_json(self.folder / CONFIG, "run configuration")
        if not isinstance(self.config, dict) or self.config.get("format") != FORMAT:
            raise OtptError(f"The run {str(folder)!r} has another format than this version of otpt reads ({FORMAT}).")
        self.items: tuple[WorkItem, ...] = tuple(_items(self.config))
        self._fingerprint = hashlib.sha256(json.dumps(_comparable(self.config), sort_keys=True).encode()).hexdigest()

    @classmethod
    def create(cls, folder: str | Path, config: dict[str, Any]) -> Run:
        """The run of ``config`` in ``folder``, new or to be continued; never one of another configuration."""
        folder = Path(folder)
        try:
            # not counting what another process is just about to make of the same folder
            others = folder.is_dir() and any(path.suffix != ".tmp" for path in folder.iterdir())
        except OSError as error:
            raise OtptError(f"Cannot read the folder {str(folder)!r}: {error.strerror or error}.") from None
        if folder.exists() and not folder.is_dir():
            raise OtptError(f"Cannot make a run in {str(folder)!r}: it is a file; expected a folder.")
        if others and not (folder / CONFIG).exists():
            raise OtptError(
                f"The folder {str(folder)!r} holds other files and no run ({CONFIG}); choose an empty or a new folder."
            )
        if not (folder / CONFIG).exists():
            write_atomically(folder / CONFIG, as_json(config), exclusive=True)
        run = cls(folder)
        different = differences(run.config, json.loads(as_json(config)))
        if different:
            shown = "; ".join(different[:5]) + (f"; and {len(different) - 5} more" if len(different) > 5 else "")
            raise OtptError(
                f"The run in {str(folder)!r} was made with another configuration: {shown}. "
                "Choose another folder, or the same settings to go on with it."
            )
        remove_leftovers(folder)
        return run

    @property
    def datasets(self) -> list[dict[str, Any]]:
        """The configuration of each data set."""
        return list(self.config["datasets"])

    def columns(self, dataset: int) -> tuple[tuple[str, str], ...]:
        """(prompt, method) of the rows of a picture, in their order."""
        prompts = [str(prompt["name"]) for prompt in self.datasets[dataset]["prompts"]]
        methods = [(str(method["name"]), str(method.get("start", "words"))) for method in self.config["methods"]]
        return column_names(prompts, methods)

    def folder_of(self, dataset: int, seed: int) -> Path:
        """Where the parts of a data set and seed lie."""
        return self.folder / str(self.datasets[dataset]["folder"]) / f"seed-{seed}"

    def metrics_path(self, dataset: int, seed: int) -> Path:
        """The metrics of a data set and seed; beside the folder of its parts, which readers of Parquet take whole."""
        return self.folder / str(self.datasets[dataset]["folder"]) / f"metrics-seed-{seed}.json"

    def path(self, item: WorkItem) -> Path:
        """The file of a part."""
        return self.folder_of(item.dataset, item.seed) / f"part-{item.part:05d}.parquet"

    def has(self, item: WorkItem) -> bool:
        """Whether the part is there; whether it is sound is known when it is read."""
        return self.path(item).exists()

    def missing(self, items: Sequence[WorkItem] | None = None) -> list[WorkItem]:
        """Parts that are still to be done."""
        return [item for item in (self.items if items is None else items) if not self.has(item)]

    def write(self, item: WorkItem, part: Part) -> None:
        """Store a finished part."""
        write_atomically(self.path(item), encode_part(part, owner=self._owner(item)))

    def read(self, item: WorkItem) -> Part | None:
        """A finished part, None if it is not there; a damaged one is set aside as ``_*.corrupt`` and then missing.

        Damage is warned of, by whoever finds it.
        """
        path = self.path(item)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise OtptError(f"Cannot read {str(path)!r}: {error.strerror or error}.") from None
        rows = (item.stop - item.start) * len(self.columns(item.dataset))
        try:
            return decode_part(data, owner=self._owner(item), rows=rows)
        except CorruptPartError as reason:
            self._set_aside(path, reason)
            return None

    def unreadable(self) -> Iterator[tuple[WorkItem, str, str]]:
        """(part, id, reason) of each picture that could not be read, once a seed; all parts are read for it."""
        for item in self.items:
            part = self.read(item)
            if part is not None and part.table["error"].null_count < part.table.num_rows:
                columns = len(self.columns(item.dataset))
                rows = part.table.select(["id", "error"]).to_pylist()[::columns]
                yield from ((item, row["id"], row["error"]) for row in rows if row["error"] is not None)

    def remove(self, items: Iterable[WorkItem]) -> None:
        """Delete parts, so that they are missing."""
        for item in items:
            try:
                self.path(item).unlink(missing_ok=True)
            except OSError as error:
                raise OtptError(f"Cannot delete {str(self.path(item))!r}: {error.strerror or error}.") from None

    def _set_aside(self, path: Path, reason: CorruptPartError) -> None:
        aside = path.with_name(f"_{path.name}.corrupt")
        try:
            path.replace(aside)
        except FileNotFoundError:  # another process was first
            return
        except OSError as error:
            raise OtptError(
                f"The part {str(path)!r} is damaged ({reason}) and cannot be set aside: {error.strerror or error}; "
                "make its folder writable, or copy the run."
            ) from None
        warnings.warn(
            f"The part {str(path)!r} was damaged ({reason}); it was set aside as {aside.name!r} and is missing now.",
            stacklevel=3,
        )

    def _owner(self, item: WorkItem) -> str:
        return f"{self._fingerprint} {item.number}"


def _items(config: dict[str, Any]) -> Iterator[WorkItem]:
    number, size = 0, config["part_size"]
    for position, dataset in enumerate(config["datasets"]):
        for seed in config["seeds"]:
            for part, start in enumerate(range(0, dataset["pictures"], size)):
                yield WorkItem(number, position, seed, part, start, min(start + size, dataset["pictures"]))
                number += 1


def _comparable(config: dict[str, Any]) -> dict[str, Any]:
    backbone = {key: value for key, value in config["backbone"].items() if key != "name"}
    return {**config, "backbone": backbone}
