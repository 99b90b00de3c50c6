"""A small evaluation for tests: a tiny CLIP, a handful of images, few views."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from oracles.data.images import image
from oracles.models.tiny import tiny_backbone

from otpt.backbones import Backbone
from otpt.data import Dataset
from otpt.evaluation import Evaluation, evaluate
from otpt.images import ImageSource
from otpt.methods import Batch, Output, Predictor
from otpt.runs import Run
from otpt.views import ViewRecipe

NAMES = ("cat", "dog", "red panda", "sea", "2012 BMW M3 coupe", "pug")
METHODS = ("zero-shot", "tpt", "o-tpt", "tpt+sals")
RECIPE = ViewRecipe(n_views=12)
COUNT = 4
"""Images where nothing depends on how many."""
LONG_AGO = 1_700_000_000


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """For the folders of tests that import it."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@cache
def backbone() -> Backbone:
    return tiny_backbone("vit")


def backbone_on(device: str) -> Backbone:
    """For worker processes, which are sent a name."""
    return backbone()


def write_images(folder: Path, count: int) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{i:03d}.png" for i in range(count)]
    for i, path in enumerate(paths):
        image(i).save(path)
        os.utime(path, (LONG_AGO, LONG_AGO))
    return paths


def dataset(count: int = 10, name: str = "tiny", images: list[Any] | None = None) -> Dataset:
    """Images in memory, or those given (paths, bytes, images)."""
    sources: list[ImageSource] = images if images is not None else [image(i) for i in range(count)]
    return Dataset(
        name,
        NAMES,
        ids=[f"p/{i}" for i in range(len(sources))],
        labels=[i % len(NAMES) for i in range(len(sources))],
        images=sources.__getitem__,
    )


def small_dataset() -> Dataset:
    """For worker processes."""
    return dataset(9)


def settings(**changes: Any) -> Evaluation:
    return Evaluation(**{"methods": METHODS, "views": RECIPE, "shard_size": 4, **changes})


def files(folder: Path, *, suffix: str = "") -> dict[str, Any]:
    """What a run holds: its rows by key; without ``suffix`` also metrics and configuration."""
    if suffix not in ("", ".parquet"):
        return {path.name: path.read_bytes() for path in sorted(folder.rglob(f"*{suffix}"))}
    run = Run(folder)
    found: dict[str, Any] = {}
    for dataset, seed, (prompt, method) in run.everything():
        tables = [shard.table.to_pylist() for shard in run.shards(dataset, seed, (prompt, method))]
        stored = [sorted((name, value) for name, value in row.items() if value is not None)
                  for table in tables for row in table]  # fmt: skip
        found[f"{dataset}/{seed}/{method}/{prompt}"] = repr(stored)
    if not suffix:
        found["metrics"] = sorted(map(repr, json.loads((folder / "metrics.json").read_text())["scores"]))
        found["config"] = run.config.model_copy(update={"commands": []})
    return found


def shard(run: Path, method: str, first: int, stop: int, *, name: str = "tiny", seed: int = 0) -> Path:
    """Where the rows of images ``first`` … ``stop`` − 1 are."""
    return Run(run).shard_path(name, seed, ("a photo of a", method), first, stop)


def rows(run: Path, *, name: str = "tiny", seed: int = 0) -> list[dict[str, Any]]:
    """The rows of all methods, image by image as :func:`dataset` has them; ``index`` says where they were evaluated."""
    opened = Run(run)
    found = [
        row
        for column in opened.columns(name, seed)
        for each in opened.shards(name, seed, column)
        for row in each.table.to_pylist()
    ]
    return sorted(found, key=image_number)


def image_number(row: dict[str, Any]) -> int:
    """Which image of :func:`dataset` a row is of."""
    return int(row["id"].removeprefix("p/"))


def confidences(
    folder: Path, given: Evaluation, name: str = "tiny", *, count: int = COUNT
) -> dict[tuple[str, str], list[float]]:
    """The confidence of each image by (prompt, method), evaluated as given."""
    run = evaluate(dataset(count, name), backbone(), given, out=folder).run
    found = {}
    for column in run.columns(name):
        shown = [row for shard in run.shards(name, 0, column) for row in shard.table.to_pylist()]
        found[column] = [row["confidence"] for row in sorted(shown, key=image_number)]
    return found


@contextmanager
def computed(work: Callable[[], Any] | None = None) -> Iterator[list[int]]:
    """Notes how many images each call of the predictor computes; ``work`` is done before each of them."""
    counts: list[int] = []
    real = Predictor.__call__

    def counted(self: Predictor, batch: Batch) -> list[list[Output]]:
        counts.append(len(batch.images))
        if work is not None:
            work()
        return real(self, batch)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Predictor, "__call__", counted)
        yield counts
