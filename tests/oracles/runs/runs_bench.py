"""Runs without a model: made-up configurations, and rows that depend on nothing but their place."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from otpt.runs import (
    ColumnConfig,
    DatasetConfig,
    ModelConfig,
    Run,
    RunConfig,
    Scoring,
    ShardRows,
    WorkItem,
    write_metrics,
)

CLASSES = ["cat", "dog", "red panda", "sea", "pug", "tree", "boat"]
PROMPT = "a photo of a"


@dataclass(frozen=True)
class MadeUp:
    """What a method might have said of an image."""

    probabilities: npt.NDArray[np.float64]
    flags: tuple[str, ...] = ()
    extras: Mapping[str, float] = field(default_factory=dict)

    @property
    def index(self) -> int:
        return int(self.probabilities.argmax())

    @property
    def confidence(self) -> float:
        return float(self.probabilities.max())


def config(
    methods: Sequence[str] = ("tpt", "o-tpt"),
    *,
    images: int = 10,
    seeds: Sequence[int] = (0,),
    datasets: Sequence[str] = ("tiny",),
    prompts: Sequence[str] = (PROMPT,),
    shard_size: int = 4,
    weight: float = 18.0,
    views: str = "64 views",
    stream: Sequence[str] = (),
    **changes: Any,
) -> RunConfig:
    """What a command asks of a run; methods in ``stream`` carry state."""

    def column(prompt: str, method: str) -> ColumnConfig:
        order = f"{images} images, permuted by the seed" if method in stream else None
        counts = dict.fromkeys(seeds, images)
        return ColumnConfig(method=method, prompt={"name": prompt}, views=views, images=counts, order=order)

    given: dict[str, Any] = {
        "versions": {"otpt": "0"},
        "backbone": ModelConfig(name="tiny", fingerprint="abc"),
        "shard_size": shard_size,
        "numbers": {},
        "scoring": Scoring(),
        "methods": {method: {"objectives": {"orthogonality": weight}} for method in methods},
        "datasets": [
            DatasetConfig(
                name=name,
                fingerprint=f"of {name}",
                classes=CLASSES,
                columns=[column(prompt, method) for prompt in prompts for method in methods],
            )
            for name in datasets
        ],
    }
    return RunConfig(**given | changes)


def output(dataset: str, seed: int, column: tuple[str, str], index: int) -> MadeUp | None:
    """The same for the same place; None for an image that cannot be read, the same for all methods."""
    number = hashlib.sha256(f"{dataset}/{seed}/{column}/{index}".encode()).digest()
    rng = np.random.default_rng(list(number))
    p = rng.dirichlet(np.full(len(CLASSES), 0.3))
    if hashlib.sha256(f"{dataset}/{index}".encode()).digest()[0] < 60:
        return None
    extras = {"mean_cosine": float(rng.random())} | ({"radius": float(p.max())} if column[1] == "radius" else {})
    return MadeUp(p, flags=("init-kept",) if p.max() > 0.99 else (), extras=extras)


def write_item(run: Run, item: WorkItem, columns: Sequence[tuple[str, str]] | None = None) -> None:
    """Write the shards of an item, or of some of its columns, as a process does that is killed between them."""
    size = run.config.shard_size
    step = size if item.in_order else item.stop
    for column in item.columns if columns is None else columns:
        for start in range(item.start, item.stop, step):
            rows = ShardRows(item.dataset, item.seed, column, len(CLASSES))
            for index in range(start, min(start + step, item.stop)):
                found = output(item.dataset, item.seed, column, index)
                place = (index, f"p/{index}", index % len(CLASSES))
                if found is None:
                    rows.add_unreadable(*place, "no image")
                else:
                    rows.add(*place, found)
            run.write(rows.shard(start))


def fill(folder: Path, given: RunConfig) -> Run:
    """What an evaluation does, but for the computing."""
    run = Run.create(folder, given)
    for item in run.missing(given.datasets):
        write_item(run, item)
    assert not run.missing(given.datasets)
    run = Run(folder)
    run.tidy()
    write_metrics(run)
    return run
