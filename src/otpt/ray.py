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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, redirect_stdout
from functools import cached_property, partial
from typing import Protocol, TypeVar, cast

import numpy as np
import numpy.typing as npt
import torch

from otpt.bulk import Answer, ClassifierJob, Item, Worker, chunks
from otpt.classifier import BACKBONE_OPTIONS, Classifier, load, read_records
from otpt.data.sources import IMAGE_COLUMNS, is_remote, read_address
from otpt.errors import OtptError
from otpt.evaluation.ray import RayPool, connected, errors_in_words, quiet_ray
from otpt.files import Json
from otpt.images import ImageSource, NamedImage, is_url
from otpt.prediction import Failure

_RETRIES = 20
"""Actors that may die on the same images before the prediction ends."""

Column = npt.NDArray[np.generic] | Sequence[object]
"""Column of a batch of Ray Data."""

_Result = TypeVar("_Result")
Reply = tuple[_Result | None, str]
"""Result of an actor, or None and its error message."""


class _RemoteMethod(Protocol):
    def remote(self, *arguments: object) -> object:
        """Return a reference to the result, which is hashable."""


class _ActorHandle(Protocol):
    """Handle of an :class:`_Actor`."""

    @property
    def ready(self) -> _RemoteMethod: ...
    @property
    def facts(self) -> _RemoteMethod: ...
    @property
    def answer(self) -> _RemoteMethod: ...


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
        **options: object,
    ) -> None:
        self._backbone, self._column = backbone, column
        self._options: dict[str, object] = {"classes": tuple(classes), "method": method, **options}
        of_model = {"method", "device", "urls", *BACKBONE_OPTIONS}
        fields = {name: value for name, value in self._options.items() if name not in of_model}
        read_records(method, fields)  # fail early

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in vars(self).items() if name != "_classifier"}

    @cached_property
    def _classifier(self) -> Classifier:
        make: Callable[..., Classifier] = load
        return make(self._backbone, **self._options)

    def __call__(self, batch: Mapping[str, Column]) -> dict[str, object]:
        """Return the batch with predictions in place of the images; paths stay."""
        column = self._column or next((name for name in IMAGE_COLUMNS if name in batch), "")
        if column not in batch:
            raise OtptError(f"A batch has the columns {', '.join(batch)}; name the one of the images with column=.")
        images = [NamedImage(f"row {i}", partial(_read, value)) for i, value in enumerate(batch[column])]
        columns: dict[str, object] = {name: values for name, values in batch.items() if name != column}
        if images and isinstance(batch[column][0], str):
            columns[column] = batch[column]
        answers = list(self._classifier.stream(images))
        predictions = [None if isinstance(answer, Failure) else answer for answer in answers]
        errors = [str(answer.error) if isinstance(answer, Failure) else "" for answer in answers]
        columns["label"] = np.array([None if p is None else p.label for p in predictions], object)
        columns["confidence"] = np.array([np.nan if p is None else p.confidence for p in predictions], np.float64)
        task, decision = self._classifier.task, self._classifier.decision
        if decision.coverage is not None:
            columns["set"] = [[] if p is None else list(p.set or ()) for p in predictions]
        if task.multi_label:
            columns["labels"] = [[] if p is None else p.labels_above() for p in predictions]
        if task.groups is not None:
            columns["group_probabilities"] = [{} if p is None else p.groups for p in predictions]
        for name, option in (("rejected", decision.reject), ("abstained", decision.risk)):
            if option is not None:
                columns[name] = np.array([p is not None and bool(getattr(p, name)) for p in predictions])
        columns["error"] = np.array(errors, object)
        return columns


def _read(value: object) -> ImageSource:
    """Return an image of a batch; an address is read by the thread that needs it."""
    if isinstance(value, str) and is_remote(value) and not is_url(value):
        return read_address(value)
    return cast(ImageSource, value)  # opening it raises for other objects


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
        self._actors = [self._new_actor() for _ in range(fewest)]

    def _new_actor(self) -> _ActorHandle:
        return cast(_ActorHandle, self._actor.remote(*self._arguments))

    def facts(self) -> dict[str, Json]:
        """See :meth:`otpt.bulk.Worker.facts`; the machine that computes decides them."""
        with errors_in_words(self._ray):
            reply: Reply[dict[str, Json]] = self._ray.get(self._actors[0].facts.remote())
        return _unwrap(reply)

    def __call__(self, images: Iterable[Item]) -> Iterator[Answer]:
        """Yield the answers in order."""
        with errors_in_words(self._ray):
            yield from self._answers(chunks(images, self._job))

    def _answers(self, waiting: Iterator[list[Item]]) -> Iterator[Answer]:
        get, wait = self._ray.get, self._ray.wait
        running: dict[object, tuple[int | None, _ActorHandle]] = {}  # by reference: number of the chunk, and its actor
        running |= {actor.ready.remote(): (None, actor) for actor in self._actors}
        idle: deque[_ActorHandle] = deque()  # an actor is in it once for each of two chunks that it may have
        finished: dict[int, list[Answer]] = {}
        sent = answered = 0
        chunk = next(waiting, None)
        while chunk is not None or answered < sent:
            while chunk is not None and idle and sent - answered < 8 * self._most:
                actor = idle.popleft()
                running[actor.answer.remote(chunk)] = (sent, actor)
                sent += 1
                chunk = next(waiting, None)
            if chunk is not None and not idle and len(self._actors) < self._most:
                actor = self._new_actor()
                self._actors.append(actor)
                running[actor.ready.remote()] = (None, actor)
            with redirect_stdout(sys.stderr):  # where Ray may print; the standard output is for answers
                (done,), _ = wait(list(running), num_returns=1)
                reply: Reply[list[Answer]] = get(done)
            number, actor = running.pop(done)
            idle.append(actor)
            if number is None:
                idle.append(actor)
                continue
            finished[number] = _unwrap(reply)
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

    def facts(self) -> Reply[dict[str, Json]]:
        """See :meth:`otpt.bulk.Worker.facts`."""
        return self._reply(Worker.facts)

    def answer(self, images: Sequence[Item]) -> Reply[list[Answer]]:
        """See :meth:`otpt.bulk.Worker.answer`."""
        return self._reply(lambda worker: worker.answer(images))

    def _reply(self, work: Callable[[Worker], _Result]) -> Reply[_Result]:
        """Return the result of the worker, or its error message."""
        torch.set_num_threads(max(self._threads, 1))  # here, since Ray may call from another thread than before
        try:
            return work(self._worker), ""
        except OtptError as error:
            return None, str(error)


def _unwrap(reply: Reply[_Result]) -> _Result:
    """Return the result of an actor, or raise its error."""
    result, error = reply
    if error:
        raise OtptError(error)
    return cast(_Result, result)
