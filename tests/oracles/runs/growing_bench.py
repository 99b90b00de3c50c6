"""A run that grows step by step, and the same run made at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from oracles.runs.evaluation_bench import backbone, dataset, settings
from torch import Tensor

import otpt
from otpt.data import Dataset
from otpt.evaluation import evaluate
from otpt.views import ViewRecipe

METHODS = ["zero-shot", "o-tpt", "tpt"]
STREAM = "running-mean"
IMAGES = 7


@otpt.adaptation
def running_mean(logits: Tensor, state: dict[str, Any]) -> Tensor:
    """Logits minus half their mean over the stream so far."""
    state["count"] = state.get("count", 0) + 1
    state["sum"] = state.get("sum", torch.zeros_like(logits[0])) + logits[0]
    return logits - 0.5 * state["sum"] / state["count"]


def first() -> Dataset:
    return dataset(IMAGES)


def second() -> Dataset:
    return dataset(3, name="other")


def step(folder: Path, datasets: list[Dataset], methods: list[str], **changes: Any) -> None:
    chosen = {"views": ViewRecipe(n_views=4), "shard_size": 4, "methods": methods, **changes}
    evaluate(datasets, backbone(), settings(**chosen), out=folder)


def grow(folder: Path) -> None:
    """Two methods; one more; a seed; images that end in the middle of shards; a data set; a stream."""
    step(folder, [first()], METHODS[:2], limit=5)
    step(folder, [first()], METHODS[2:], limit=5)
    step(folder, [first()], METHODS, limit=5, seeds=[1])
    step(folder, [first()], METHODS, seeds=[0, 1])
    step(folder, [second(), first()], METHODS, seeds=[0, 1])
    step(folder, [first(), second()], [STREAM], seeds=[1, 0])


def whole(folder: Path) -> None:
    step(folder, [first(), second()], [*METHODS, STREAM], seeds=[0, 1])
