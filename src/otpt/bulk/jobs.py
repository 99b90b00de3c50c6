"""Workers that predict many images: in this process, in several, or on Ray (:mod:`otpt.ray`).

Each takes a :class:`ClassifierJob`, returns the facts that determine the predictions, and maps images to answers
lazily and in order.
"""

from __future__ import annotations

import multiprocessing
import pickle
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from itertools import islice
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Protocol as Interface

import numpy as np
import numpy.typing as npt
import torch

from otpt._version import __version__
from otpt.backbones import Backbone
from otpt.classifier import Classifier
from otpt.data.sources import FeatureRow
from otpt.decision import Decision
from otpt.errors import OtptError
from otpt.features.pipeline import look_ahead
from otpt.files import Json
from otpt.images import LIMITS, ImageSource, NamedImage, UrlLimits
from otpt.methods import Method, Protocol, Task, get_methods, load_plugin, prompt_facts
from otpt.prediction import Failure, Prediction
from otpt.processes import WorkerPool

Answer = Mapping[str, Prediction] | Failure
"""The predictions of an image by method, or why it could not be read."""

Item = NamedImage | FeatureRow
"""Image, or its feature in a row of a table."""

READERS = 32
"""Threads that read images ahead from remote storage."""
_FEATURES = 256  # rows of features classified together
_VIEWS = 256  # views of the images in a chunk
_IMAGES = 64  # images in a chunk, at most


@dataclass(frozen=True)
class ClassifierJob:
    """How to make a classifier, in any process.

    Attributes:
        load: loads the model on a device, as :meth:`Backbone.to` takes it.
        task, protocol, decision: everything that determines the predictions besides the model.
        device: where the model runs by default.
        plugins: Python files that the methods need.
        urls: limits for downloads; None rejects URLs.
    """

    load: Callable[[str], Backbone]
    task: Task
    protocol: Protocol
    decision: Decision
    device: str = "auto"
    plugins: Sequence[Path] = ()
    urls: UrlLimits | None = LIMITS

    @classmethod
    def of(cls, classifier: Classifier, methods: Sequence[str | Method] | None = None) -> ClassifierJob:
        """Return the job of a classifier, with other methods if given."""
        protocol = classifier.protocol
        if methods is not None:
            protocol = protocol.replace(methods=get_methods(methods))
        backbone = classifier.backbone
        return cls(
            load=backbone.to,
            task=classifier.task,
            protocol=protocol,
            decision=classifier.decision,
            device=str(backbone.device),
            urls=classifier.urls,
        )

    def packed(self) -> ClassifierJob:
        """Return the job of a loaded model for other processes, each of which gets a copy of the model."""
        try:
            return replace(self, load=_PackedModel(pickle.dumps(self.load)))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise OtptError(f"The model cannot be sent to other processes ({error}); use one process.") from None

    def make(self, device: str | None = None) -> Classifier:
        """Load the model and return the classifier."""
        for path in self.plugins:
            load_plugin(path)
        backbone = self.load(device or self.device)
        return Classifier(backbone, task=self.task, protocol=self.protocol, decision=self.decision, urls=self.urls)

    @property
    def methods(self) -> tuple[Method, ...]:
        """Methods of the predictions."""
        return self.protocol.for_task(self.task).methods


@dataclass(frozen=True)
class _PackedModel:
    """Pickled function that returns a model on a device."""

    pickled: bytes

    def __call__(self, device: str) -> Backbone:
        load: Callable[[str], Backbone] = pickle.loads(self.pickled)
        return load(device)


class Worker:
    """A classifier, in this process or in another one.

    Args:
        job: how to make the classifier.
        device: where the model runs; the job's device by default.
        threads: number of threads; unchanged by default.
        readers: number of threads that read images ahead.
        classifier: classifier of the job, if it exists already.
    """

    def __init__(
        self,
        job: ClassifierJob,
        device: str | None = None,
        threads: int | None = None,
        readers: int = 0,
        classifier: Classifier | None = None,
    ) -> None:
        if threads is not None:
            torch.set_num_threads(max(threads, 1))
        self._threads, self._readers, self._methods = threads, readers, job.methods
        self.classifier = job.make(device) if classifier is None else classifier

    def facts(self) -> dict[str, Json]:
        """Return the facts that determine the predictions, as plain data."""
        backbone = self.classifier.backbone
        task = self.classifier.task
        protocol = self.classifier.protocol.replace(methods=self._methods)
        facts: dict[str, Json] = {**task.to_json(), **protocol.to_json(), **self.classifier.decision.to_json()}
        # with digests of files, such as learned contexts
        facts["prompts"] = {method.name: prompt_facts(task, protocol, method) for method in self._methods}
        return {"version": __version__, "backbone": backbone.fingerprint, "precision": backbone.precision, **facts}

    def __call__(self, images: Iterable[Item]) -> Iterator[Answer]:
        """Yield the answers lazily and in order; ``readers`` threads prefetch images from remote storage."""
        named = (NamedImage(image.id, image.read) for image in images)
        ahead = read_ahead(named, self._readers) if self._readers else named
        return self.classifier.stream(ahead, self._methods, workers=self._threads)

    def answer(self, images: Sequence[Item]) -> list[Answer]:
        """Return the answers of a chunk of images."""
        return list(self(images))


class FeatureWorker(Worker):
    """A classifier of image features, as ``otpt embed`` writes them."""

    def __init__(self, job: ClassifierJob, metadata: Mapping[str, str], classifier: Classifier | None = None) -> None:
        super().__init__(job, classifier=classifier)
        encoder, backbone = metadata.get("otpt.backbone"), self.classifier.backbone
        if encoder not in (None, backbone.fingerprint):
            raise OtptError(
                f"The features were made by another model (fingerprint {encoder}) than {backbone.name!r} "
                f"({backbone.fingerprint}); name that model with --backbone."
            )

    def __call__(self, images: Iterable[Item]) -> Iterator[Answer]:
        """Yield the answers of rows with features, in order."""
        rows = (row for row in images if isinstance(row, FeatureRow))
        position = 0
        while chunk := list(islice(rows, _FEATURES)):
            features = [row.feature for row in chunk if row.feature is not None]
            predictions = iter(self._classify(features) if features else ())
            for row in chunk:
                if row.feature is None:
                    yield Failure(row.id, position, OtptError(row.error or f"{row.id} has no feature."))
                else:
                    yield next(predictions)
                position += 1

    def _classify(self, features: Sequence[npt.NDArray[np.floating]]) -> list[dict[str, Prediction]]:
        backbone = self.classifier.backbone
        try:
            stacked = torch.from_numpy(np.stack(features)).to(backbone.dtype)
        except ValueError:
            raise OtptError("The features have different numbers of dimensions; expected those of one model.") from None
        return self.classifier.classify_features(stacked[:, None], self._methods)


class Workers(Interface):
    """Anything that predicts: a :class:`Worker`, :class:`Processes`, or the actors of :mod:`otpt.ray`."""

    def facts(self) -> dict[str, Json]: ...
    def __call__(self, images: Iterable[Item]) -> Iterator[Answer]: ...


def chunks(images: Iterable[Item], job: ClassifierJob) -> Iterator[list[Item]]:
    """Split images into chunks for workers, smaller ones if each image has many views."""
    count = max(min(_IMAGES, _VIEWS // job.protocol.recipe.n_views), 1)
    images = iter(images)
    while chunk := list(islice(images, count)):
        yield chunk


def read_ahead(images: Iterable[NamedImage], readers: int = READERS) -> Iterator[NamedImage]:
    """Yield the images in order while threads read the bytes of the next ones."""

    def read(image: NamedImage) -> NamedImage:
        content: Future[ImageSource] = Future()
        try:
            content.set_result(image.read())
        except OtptError as error:
            content.set_exception(error)
        return NamedImage(image.id, content.result)

    return (coming.result() for coming in look_ahead(read, images, readers))


class Processes:
    """Several processes of this machine, each with the model; one per GPU, or any number on the CPU."""

    def __init__(
        self, job: ClassifierJob, workers: int, devices: Sequence[str] | None = None, threads: int | None = None
    ) -> None:
        queue = multiprocessing.get_context("spawn").Queue()
        for number in range(workers):
            queue.put(devices[number % len(devices)] if devices else None)
        self._job = job
        self._pool = WorkerPool(workers, threads, _start, job, queue)

    def close(self) -> None:
        """End the processes."""
        self._pool.close()

    def facts(self) -> dict[str, Json]:
        """See :meth:`Worker.facts`."""
        return self._pool.result(self._pool.submit(_facts))

    def __call__(self, images: Iterable[Item]) -> Iterator[Answer]:
        """Yield the answers in order."""
        waiting = chunks(images, self._job)
        running: deque[Future[list[Answer]]] = deque()
        while True:
            for chunk in islice(waiting, 2 * self._pool.workers - len(running)):
                running.append(self._pool.submit(_answer, chunk))
            if not running:
                return
            yield from self._pool.result(running.popleft())


_worker: list[Worker | OtptError] = []
"""The worker of a process of the pool, or why there is none."""


def _start(job: ClassifierJob, devices: Queue[str | None]) -> None:
    try:
        _worker.append(Worker(job, devices.get(), torch.get_num_threads()))
    except OtptError as error:  # an exception here would only break the pool
        _worker.append(error)


def _started_worker() -> Worker:
    """Return the worker of this process, or raise the reason why there is none."""
    (worker,) = _worker
    if isinstance(worker, OtptError):
        raise worker
    return worker


def _facts() -> dict[str, Json]:
    return _started_worker().facts()


def _answer(images: Sequence[Item]) -> list[Answer]:
    return _started_worker().answer(images)
