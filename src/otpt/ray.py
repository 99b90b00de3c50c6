"""Predictions on a Ray cluster: :class:`Classify` for pipelines of Ray Data, and the actors of ``otpt predict``.

import ray, otpt.ray

images = ray.data.read_binary_files("s3://bucket/photos", include_paths=True)
labels = images.map_batches(
    otpt.ray.Classify, fn_constructor_args=("ViT-B-16/openai", ["cat", "dog"]), batch_size=32, num_gpus=1, concurrency=4
)
labels.write_parquet("s3://bucket/labels")
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, redirect_stdout
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch

from otpt.bulk import Answer, ClassifierJob, Worker, chunks
from otpt.classifier import BACKBONE_OPTIONS, Classifier, load, read_records
from otpt.data.sources import IMAGE_COLUMNS, is_remote, read_address
from otpt.errors import OtptError
from otpt.evaluation.ray import RayPool, connected, errors_in_words, quiet_ray
from otpt.images import NamedImage, is_url
from otpt.prediction import Failure

_RETRIES = 20
"""Actors that may die on the same images before the prediction ends."""


class Classify:
    """Label the batches of a Ray data set, as a class for ``ray.data.Dataset.map_batches``.

    Images may be file contents, paths, addresses or arrays; a corrupt one becomes a row with an ``error``. The other
    columns stay, and ``label``, ``confidence`` and ``error`` are added; ``set`` with ``coverage=``, ``rejected`` with
    ``reject=``, ``abstained`` with ``risk=``, ``group_probabilities`` with ``groups=``, and with ``multi_label=`` the
    ``labels`` that are more probable than not. The model is loaded once per actor, at the first batch.

    Args:
        backbone: the name of a model, as in :func:`otpt.load`.
        classes: class names; optional with ``examples=``.
        method: a name; the default method otherwise.
        column: the column with the images; a known name such as "bytes", "image" or "path" by default.
        options: options of :func:`otpt.load`: ``views=16``, ``precision="bf16"``, ``calibration="cal.json"`` …
    """

    def __init__(
        self,
        backbone: str,
        classes: Sequence[str] = (),
        method: str | None = None,
        *,
        column: str | None = None,
        **options: Any,
    ) -> None:
        self._backbone, self._column = backbone, column
        self._options = {"classes": tuple(classes), "method": method, **options}
        of_model = {"method", "device", "urls", *BACKBONE_OPTIONS}
        fields = {name: value for name, value in self._options.items() if name not in of_model}
        read_records(method, fields)  # fail early

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_classifier"}

    @cached_property
    def _classifier(self) -> Classifier:
        return load(self._backbone, **self._options)

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return the batch with predictions in place of the images; paths stay."""
        column = self._column or next((each for each in IMAGE_COLUMNS if each in batch), "")
        if column not in batch:
            raise OtptError(f"A batch has the columns {', '.join(batch)}; name the one of the images with column=.")
        images = [NamedImage(f"row {i}", partial(_read, value)) for i, value in enumerate(batch[column])]
        found = {name: values for name, values in batch.items() if name != column}
        if images and isinstance(batch[column][0], str):
            found[column] = batch[column]
        answers = list(self._classifier.stream(images))
        good = [None if isinstance(each, Failure) else each for each in answers]
        found["label"] = np.array([None if each is None else each.label for each in good], object)
        found["confidence"] = np.array([np.nan if each is None else each.confidence for each in good], np.float64)
        task, decision = self._classifier.task, self._classifier.decision
        if decision.coverage is not None:
            found["set"] = [[] if each is None else list(each.set or ()) for each in good]
        if task.multi_label:
            found["labels"] = [[] if each is None else each.labels_above() for each in good]
        if task.groups is not None:
            found["group_probabilities"] = [{} if each is None else each.groups for each in good]
        for name, asked in (("rejected", decision.reject), ("abstained", decision.risk)):
            if asked is not None:
                found[name] = np.array([each is not None and bool(getattr(each, name)) for each in good])
        found["error"] = np.array([str(each.error) if isinstance(each, Failure) else "" for each in answers], object)
        return found


def _read(value: Any) -> Any:
    """Return an image of a batch; an address is read by the thread that needs it."""
    if isinstance(value, str) and is_remote(value) and not is_url(value):
        return read_address(value)
    return value


class RayActors:
    """Workers on a Ray cluster; see :class:`otpt.bulk.Workers`.

    An actor or a machine that dies is replaced, and its images are predicted again.
    """

    def __init__(self, job: ClassifierJob, engine: RayPool, threads: int | None = None) -> None:
        self._stack = ExitStack()
        with quiet_ray("ray.data") as ray:
            self._stack.enter_context(connected(ray, engine.address))
        self._ray = ray
        engine.check_resources(ray)
        threads = engine.cpus if threads is None else threads
        self._job = job
        self._arguments = (job, engine.device(job.device), threads, os.getcwd())
        self._actor = ray.remote(
            num_cpus=engine.cpus, num_gpus=engine.gpus, max_restarts=-1, max_task_retries=_RETRIES
        )(_Actor)
        here = ray.cluster_resources()
        fit = min(here.get("CPU", 0) // engine.cpus, here.get("GPU", 0) // engine.gpus if engine.gpus else np.inf)
        fewest, most = engine.actors
        self._most = most or max(int(fit), fewest)
        self._actors = [self._actor.remote(*self._arguments) for _ in range(fewest)]

    def facts(self) -> dict[str, Any]:
        """See :meth:`otpt.bulk.Worker.facts`; the machine that computes decides them."""
        with errors_in_words(self._ray):
            found: dict[str, Any] = _unwrap(self._ray.get(self._actors[0].call.remote("facts")))
        return found

    def __call__(self, images: Iterable[NamedImage]) -> Iterator[Answer]:
        """Yield the answers in order."""
        with errors_in_words(self._ray):
            yield from self._answers(chunks(images, self._job))

    def _answers(self, waiting: Iterator[list[NamedImage]]) -> Iterator[Answer]:
        get, wait = self._ray.get, self._ray.wait
        running: dict[Any, tuple[int | None, Any]] = {each.ready.remote(): (None, each) for each in self._actors}
        idle: deque[Any] = deque()  # an actor is in it once for each of two chunks that it may have
        finished: dict[int, list[Answer]] = {}
        given = answered = 0
        chunk = next(waiting, None)
        while chunk is not None or answered < given:
            while chunk is not None and idle and given - answered < 8 * self._most:
                actor = idle.popleft()
                running[actor.call.remote("answer", chunk)] = (given, actor)
                given += 1
                chunk = next(waiting, None)
            if chunk is not None and not idle and len(self._actors) < self._most:
                actor = self._actor.remote(*self._arguments)
                self._actors.append(actor)
                running[actor.ready.remote()] = (None, actor)
            with redirect_stdout(sys.stderr):  # where Ray may print; the standard output is for answers
                (done,), _ = wait(list(running), num_returns=1)
                answer = get(done)
            number, actor = running.pop(done)
            idle.append(actor)
            if number is None:
                idle.append(actor)
                continue
            finished[number] = _unwrap(answer)
            while answered in finished:
                yield from finished.pop(answered)
                answered += 1

    def close(self) -> None:
        """Release the actors, and the cluster if it was started here."""
        for actor in self._actors:
            self._ray.kill(actor)
        self._stack.close()


class _Actor:
    """A worker in an actor. It loads the model at the first call, so that an error is an answer."""

    def __init__(self, job: ClassifierJob, device: str, threads: int, folder: str) -> None:
        self._job, self._device, self._threads = job, device, threads
        if os.path.isdir(folder):
            os.chdir(folder)  # relative paths begin there

    @cached_property
    def _worker(self) -> Worker:
        return Worker(self._job, self._device, self._threads)

    def ready(self) -> None:
        """Return once the actor has started."""

    def call(self, name: str, *arguments: Any) -> tuple[Any, str]:
        """Return (the answer of the worker, its error message)."""
        torch.set_num_threads(max(self._threads, 1))  # here, since Ray may call from another thread than before
        try:
            return getattr(self._worker, name)(*arguments), ""
        except OtptError as error:
            return None, str(error)


def _unwrap(answer: tuple[Any, str]) -> Any:
    found, error = answer
    if error:
        raise OtptError(error)
    return found
