"""Small evaluations that the campaign disturbs: a tiny model, a handful of images, few views; a tenth of a second each.

Their model, images and stream method are those of the tests (``tests/oracles``), whose folder is on the path.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.context import ForkContext
from pathlib import Path
from typing import Any

import torch

torch.set_num_threads(1)  # before the first fork: a forked copy has no other threads

from oracles.runs.evaluation_bench import (  # type: ignore[import-not-found]  # noqa: E402
    backbone_on,
    dataset,
    files,
    settings,
    write_images,
)
from oracles.runs.growing_bench import STREAM  # type: ignore[import-not-found]  # noqa: E402

from otpt.data import Dataset  # noqa: E402
from otpt.evaluation import Job, ProcessEngine, run_job  # noqa: E402
from otpt.features import FeatureCache  # noqa: E402
from otpt.features.cache import DEFAULT_SIZE  # noqa: E402
from otpt.views import ViewRecipe  # noqa: E402

FILES = 4
"""Images on disk, for scenarios with a cache, which remembers what files looked like."""


@dataclass(frozen=True)
class Where:
    """Where a case works: its run, its cache, and the images that all cases read."""

    run: Path
    cache: Path
    images: Path

    @classmethod
    def under(cls, folder: Path, images: Path) -> Where:
        """In a folder of the case's own."""
        return cls(folder / "run", folder / "cache", images)

    def found(self) -> dict[str, bytes]:
        """Every file of the run and of the cache, but temporary ones of the cache, which its next writer removes."""
        cached = {f"cache/{name}": data for name, data in files(self.cache).items() if not name.endswith(".tmp")}
        return {**{f"run/{name}": data for name, data in files(self.run).items()}, **cached}


@dataclass(frozen=True, eq=False)
class Step:
    """One command: settings that differ from the bench's, and how many images."""

    methods: Sequence[str]
    images: int
    changes: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True, eq=False)
class Scenario:
    """Commands one after another on one run folder."""

    name: str
    steps: Sequence[Step]
    views: int = 2
    shard_size: int = 2
    cached: bool = False

    def run(self, where: Where, workers: int = 0, cache_bytes: int = DEFAULT_SIZE) -> None:
        """All of its commands, in this process or in so many workers of it."""
        for step in self.steps:
            run_job(self.job(step, where, cache_bytes), forked_workers(workers) if workers else None)

    def job(self, step: Step, where: Where, cache_bytes: int = DEFAULT_SIZE) -> Job:
        """A command as the engines take it."""
        chosen = {"methods": step.methods, "recipe": ViewRecipe(n_views=self.views), "shard_size": self.shard_size}
        make = partial(on_disk, where.images) if self.cached else partial(dataset, FILES + 2)
        kept = FeatureCache(where.cache, max_bytes=cache_bytes) if self.cached else None
        own = settings(**{**chosen, "limit": step.images, **dict(step.changes)})
        return Job(backbone_on, [make], own, where.run, kept, device="cpu", threads=1)


PLAIN = Scenario("plain", [Step(["zero-shot", "zero"], 4)])
CACHED = Scenario("cached", [Step(["zero-shot", "o-tpt"], 3)], views=8, shard_size=3, cached=True)
GROWING = Scenario(
    "growing",
    [
        Step(["zero-shot"], 3),
        Step(["zero-shot", "zero"], 4, (("seeds", (0, 1)),)),
        Step([STREAM], 3),
    ],
)
STREAMING = Scenario("stream", [Step(["zero-shot", STREAM], 5)])
SCENARIOS = (PLAIN, CACHED, GROWING, STREAMING)


def on_disk(folder: Path) -> Dataset:
    """The images that :func:`prepare` wrote."""
    made: Dataset = dataset(images=sorted(folder.glob("*.png")))
    return made


def prepare(folder: Path) -> Path:
    """Write the images; load and warm up what every forked copy then has."""
    images = folder / "images"
    write_images(images, FILES)
    backbone_on("cpu")
    for scenario in SCENARIOS:
        scenario.run(Where.under(folder / "warm-up" / scenario.name, images))
    return images


def forked_workers(workers: int) -> ProcessEngine:
    """The engine of several processes, which here are forked; in a process that ends after the case."""
    multiprocessing.get_context = lambda _: ForkContext()  # type: ignore[assignment]
    return ProcessEngine(workers)
