"""What runs on the machines of a Ray cluster; it knows nothing of Ray."""

from __future__ import annotations

import json
import os
import platform
import warnings
from collections.abc import Callable
from dataclasses import asdict
from functools import cached_property, partial
from typing import Any

import torch

from otpt.data import Dataset
from otpt.errors import OtptError
from otpt.evaluation.config import Model, run_config
from otpt.evaluation.engines import Job, PackedJob
from otpt.evaluation.evaluator import Evaluator
from otpt.evaluation.progress import ImageDone, image_done
from otpt.runs.locks import Locks
from otpt.runs.run import CONFIG, LOCKS, Run, WorkItem


def configure(packed: PackedJob, folder: str, threads: int) -> str:
    """The configuration of the run, as an answer; ``folder`` is where relative paths begin."""

    def find() -> dict[str, Any]:
        job = packed.unpack()
        backbone, datasets = _load(job, folder, threads)
        Evaluator(backbone, datasets, job.settings, threads=0)  # refuses what does not fit before a run is made
        return run_config(backbone, datasets, job.settings, command=job.command)

    return _answer(find)


class RayWorker:
    """An actor: holds the model and the data sets, and makes shards.

    Args:
        folder: where relative paths begin.
        threads: of torch.
        lock: leave items to other processes that are at work on them.
    """

    def __init__(self, packed: PackedJob, folder: str, threads: int, lock: bool) -> None:
        self._packed, self._folder, self._threads, self._lock = packed, folder, threads, lock
        self._images: list[ImageDone] = []

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[Any]]:
        """For each item, as :func:`as_text` writes it, an answer: what is reported of each image."""
        torch.set_num_threads(self._threads)  # here, since Ray may call from another thread than before
        items = [str(item) for item in batch["item"]]
        return {"item": items, "answer": [_answer(partial(self._results, as_item(item))) for item in items]}

    def _results(self, item: WorkItem) -> list[Any] | None:
        run, evaluator, locks = self._loaded
        if not run.lacks(item):  # it was written by an actor that died before it could answer
            return _stored_results(run, item)
        if self._lock and not locks.take(item.lock):
            return None
        self._images.clear()
        for _, shards, _ in evaluator([item]):
            for shard in shards:
                run.write(shard)
        if self._lock:
            locks.release(item.lock)
        return [[[*column, *result] for column, result in image.results.items()] for image in self._images]

    @cached_property
    def _loaded(self) -> tuple[Run, Evaluator, Locks]:
        job = self._packed.unpack()
        if not (job.folder / CONFIG).exists():
            raise OtptError(
                f"The machine {platform.node()!r} does not see the run folder {str(job.folder)!r}; put it on storage "
                "that all machines of the Ray cluster share, under the same path."
            )
        backbone, datasets = _load(job, self._folder, self._threads)
        # Refused if this machine would compute something else: other versions, another device, other data.
        run = Run.create(job.folder, run_config(backbone, datasets, job.settings, command=job.command))
        evaluator = job.evaluator(
            backbone, datasets, on_image=lambda predicted: self._images.append(image_done(predicted))
        )
        return run, evaluator, Locks(job.folder / LOCKS)


def _stored_results(run: Run, item: WorkItem) -> list[list[list[Any]]]:
    """What is reported of each image of an item, from its rows."""
    images: list[list[list[Any]]] = [[] for _ in range(item.images)]
    for column in item.columns:
        for shard in run.shards(item.dataset, item.seed, column, start=item.start, stop=item.stop):
            for position, row in enumerate(shard.table.select(["confidence", "correct"]).to_pylist(), shard.start):
                if item.start <= position < item.stop and row["confidence"] is not None:
                    images[position - item.start].append([*column, row["confidence"], row["correct"]])
    return images


def as_text(item: WorkItem) -> str:
    """An item in one line of JSON."""
    return json.dumps(asdict(item))


def as_item(text: str) -> WorkItem:
    """The item of :func:`as_text`."""
    values = json.loads(text)
    return WorkItem(**{**values, "columns": tuple(tuple(column) for column in values["columns"])})


def read_answer(answer: str) -> tuple[Any, str, list[str]]:
    """(what was found, error or nothing, warnings)."""
    found, error, warned = json.loads(answer)
    return found, error, warned


def _answer(work: Callable[[], Any]) -> str:
    """What ``work`` finds, its error, and its warnings: one line of JSON, which asks nothing more of Ray."""
    warned: list[str] = []
    found, error = None, ""
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: warned.append(str(message))
        try:
            found = work()
        except OtptError as problem:
            error = str(problem)
    return json.dumps([found, error, warned])


def _load(job: Job, folder: str, threads: int) -> tuple[Model, list[Dataset]]:
    torch.set_num_threads(threads)
    if os.path.isdir(folder):
        os.chdir(folder)
    datasets = job.load_datasets()
    return job.backbone(job.device), datasets
