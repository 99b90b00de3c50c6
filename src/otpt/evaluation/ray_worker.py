"""What runs on the machines of a Ray cluster; it knows nothing of Ray."""

from __future__ import annotations

import json
import os
import platform
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from otpt.data import Dataset
from otpt.errors import OtptError
from otpt.evaluation.claims import Claims
from otpt.evaluation.engines import Job
from otpt.evaluation.evaluator import Parts, evaluator_for
from otpt.evaluation.parts import Part
from otpt.evaluation.run import CLAIMS, CONFIG, Run, WorkItem
from otpt.evaluation.settings import Model, run_config


def configure(job: Job, folder: str, threads: int) -> str:
    """The configuration of the run, as an answer; ``folder`` is where relative paths begin."""

    def find() -> dict[str, Any]:
        backbone, datasets = _load(job, folder, threads)
        evaluator_for(backbone, datasets, job.settings, threads=0)
        return run_config(backbone, datasets, job.settings)

    return _answer(find)


class RayWorker:
    """An actor: holds the model and the data sets, and makes parts.

    Args:
        folder: where relative paths begin.
        threads: of torch.
        claim: leave parts to other processes that are at work on them.
    """

    def __init__(self, job: Job, folder: str, threads: int, claim: bool) -> None:
        self._job, self._folder, self._threads, self._claim = job, folder, threads, claim
        self._begun: tuple[Run, Parts, Claims] | None = None

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[Any]]:
        """For each item's number an answer: [(confidence, correct) of each prompt and method] of each picture."""
        torch.set_num_threads(self._threads)  # here, since Ray may call from another thread than before
        numbers = [int(number) for number in batch["item"]]
        return {"item": numbers, "answer": [_answer(partial(self._results, number)) for number in numbers]}

    def _results(self, number: int) -> list[list[tuple[float, bool]]] | None:
        if self._begun is None:
            self._begun = self._begin()
        run, evaluator, claims = self._begun
        item = run.items[number]
        part = run.read(item) if run.has(item) else None  # there already if it is asked for again
        if part is None:
            if self._claim and not claims.take(number):
                return None
            for _, part in evaluator([item]):
                run.write(item, part)
            claims.release(number)
        assert part is not None
        return _results(run, item, part)

    def _begin(self) -> tuple[Run, Parts, Claims]:
        job = self._job
        if not (job.folder / CONFIG).exists():
            raise OtptError(
                f"The machine {platform.node()!r} does not see the run folder {str(job.folder)!r}; put it on storage "
                "that all machines of the Ray cluster share, under the same path."
            )
        backbone, datasets = _load(job, self._folder, self._threads)
        # Refused if this machine would compute something else: other versions, another device, other data.
        run = Run.create(job.folder, run_config(backbone, datasets, job.settings))
        evaluator = evaluator_for(backbone, datasets, job.settings, cache=job.cache, threads=job.threads)
        return run, evaluator, Claims(job.folder / CLAIMS)


def read_answer(answer: str) -> tuple[Any, str, list[str]]:
    """(what was found, error or nothing, warnings)."""
    found, error, heard = json.loads(answer)
    return found, error, heard


def _answer(work: Callable[[], Any]) -> str:
    """What ``work`` finds, its error, and what it warned of: in one line of JSON, since that needs no more of Ray."""
    heard: list[str] = []
    found, error = None, ""
    with _overhear(heard):
        try:
            found = work()
        except OtptError as problem:
            error = str(problem)
    return json.dumps([found, error, heard])


@contextmanager
def _overhear(heard: list[str]) -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: heard.append(str(message))
        yield


def _load(job: Job, folder: str, threads: int) -> tuple[Model, list[Dataset]]:
    torch.set_num_threads(threads)
    if os.path.isdir(folder):
        os.chdir(folder)
    datasets = [make() for make in job.datasets]
    return job.backbone(job.device), datasets


def _results(run: Run, item: WorkItem, part: Part) -> list[list[tuple[float, bool]]]:
    """Of each picture, for progress; nothing for one that could not be read."""
    columns = len(run.columns(item.dataset))
    rows = zip(*(part.table.column(name).to_pylist() for name in ("confidence", "correct")), strict=True)
    pictures = zip(*[rows] * columns, strict=True)
    return [[] if picture[0][0] is None else list(picture) for picture in pictures]
