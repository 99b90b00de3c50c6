"""One thread that computes: images of all waiting requests go through the feature pipeline and the tower together.

A pass takes images from the queue as long as there are some, those that arrive meanwhile included, one client after the
other. So a busy service computes as :meth:`otpt.Classifier.stream` does.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterator, Mapping
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import Any
from weakref import WeakSet

import torch

from otpt.backbones import Backbone
from otpt.errors import OtptError
from otpt.features.pipeline import EncodedImage, FeaturePipeline, ImageTask, PixelBudget
from otpt.methods import Output, Predictor, check_fit, stream
from otpt.prediction import Prediction, predictions
from otpt.serve.images import ImageFile, view_thumbnails
from otpt.serve.queries import Query
from otpt.threads import Cancelled, cancellable, check_cancelled

PARTS = ("queue", "texts", "decode", "views", "encode", "predict")
"""What the seconds of a request are made of."""
_log = logging.getLogger("otpt.serve")


@dataclass(frozen=True)
class Answer:
    """The predictions for one image by method, and its views as :func:`otpt.serve.images.view_thumbnails`."""

    predictions: Mapping[str, Prediction]
    views: Mapping[str, Any] | None = None


@dataclass(eq=False)
class Unit:
    """One image of a job."""

    job: Job
    position: int
    file: ImageFile

    def __str__(self) -> str:
        return f"image {self.position + 1}"


class Job:
    """A query with its prepared texts and images. ``future`` gives an :class:`Answer` or an error for each image.

    Args:
        images: an error takes the place of an image that cannot be used.
        client: whose turn it is; clients alternate.
    """

    def __init__(self, query: Query, texts: Prepared, images: list[ImageFile | OtptError], client: str = "") -> None:
        self.query, self.texts, self.client = query, texts, client
        self.future: Future[list[Answer | OtptError]] = Future()
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self.accepted = time.perf_counter()
        self._answers: list[Answer | OtptError | None] = [
            each if isinstance(each, OtptError) else None for each in images
        ]
        self.units = [Unit(self, i, each) for i, each in enumerate(images) if isinstance(each, ImageFile)]
        self._finish_if_complete()

    def began(self) -> None:
        """Note that an image has left the queue."""
        self.seconds["queue"] = self.seconds["queue"] or time.perf_counter() - self.accepted

    def answer(self, unit: Unit, answer: Answer | OtptError) -> None:
        """Store the answer for an image; called by the engine's thread alone."""
        self._answers[unit.position] = answer
        self._finish_if_complete()

    def _finish_if_complete(self) -> None:
        if None not in self._answers:
            with suppress(InvalidStateError):  # the client has gone
                self.future.set_result([each for each in self._answers if each is not None])

    def fail(self, error: BaseException) -> None:
        """Give up the whole job."""
        with suppress(InvalidStateError):
            self.future.set_exception(error)


@dataclass(frozen=True, eq=False)
class Prepared:
    """A predictor for one class list, and the bytes of its text features."""

    predictor: Predictor
    size: int


class TextCache:
    """Predictors of class lists, the most recently used within a budget of bytes.

    The budget bounds the lists that jobs use, too: while they exceed it, no further list is prepared.

    Args:
        budget: bytes. A predictor that is larger by itself is used and not cached.
        watch: called with "hit" or "miss" at each look-up.
    """

    def __init__(self, budget: int, watch: Callable[[str], None] = lambda _: None) -> None:
        self._budget, self._watch = budget, watch
        self._cached: OrderedDict[Hashable, Prepared] = OrderedDict()
        self._alive: WeakSet[Prepared] = WeakSet()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._cached)

    @property
    def size(self) -> int:
        """Bytes of the cached predictors."""
        with self._lock:
            return sum(each.size for each in self._cached.values())

    def find(self, key: Hashable) -> Prepared | None:
        """The cached predictor of this key."""
        with self._lock:
            found = self._cached.get(key)
            if found is not None:
                self._cached.move_to_end(key)
        self._watch("miss" if found is None else "hit")
        return found

    def prepare(self, query: Query, backbone: Backbone, stop: Callable[[], bool] = lambda: False) -> Prepared:
        """Encode the texts of a query, unless another thread just did; raises ``Cancelled`` once ``stop()`` is true."""
        while self._shrink() > self._budget:  # jobs use them
            if stop():
                raise Cancelled
            time.sleep(0.02)
        with self._lock:
            found = self._cached.get(query.key)
        if found is not None:
            return found
        with cancellable(stop):
            check_cancelled()
            check_fit(backbone, query.settings, query.methods)
            predictor = Predictor(backbone, query.settings, query.methods)
        found = Prepared(predictor, predictor.nbytes)
        self._shrink(found.size)
        with self._lock:
            self._alive.add(found)
            if found.size <= self._budget:
                self._cached[query.key] = found
        return found

    def _shrink(self, size: int = 0) -> int:
        """Evict predictors until ``size`` more bytes fit; return the bytes of all that are still in memory."""
        with self._lock:
            while self._cached and sum(each.size for each in self._alive) + size > self._budget:
                self._cached.popitem(last=False)
            return sum(each.size for each in self._alive)


class Engine:
    """Answers jobs.

    Args:
        models: by name.
        together: images of a pass; None for no limit.
        threads: that decode and augment; None for one per core, 0 for none but the engine's own.
        pixels: limit of decoded images in memory.
        watch: called with the number of images that were predicted together.
    """

    def __init__(
        self,
        models: Mapping[str, Backbone],
        *,
        together: int | None = None,
        threads: int | None = None,
        pixels: int = 50_000_000,
        watch: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._models, self._together, self._ahead, self._watch = models, together, threads, watch
        self._pixels = PixelBudget(pixels)
        self._waiting: dict[str, deque[Unit]] = {}  # by client, the next one first
        self._begun: set[Unit] = set()  # have left the queue and are not yet answered
        self._change = threading.Condition()
        self._closed = False
        self._threads = torch.get_num_threads()
        self._thread = threading.Thread(target=self._run, name="otpt-engine", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self, seconds: float | None = None) -> None:
        """Answer what was accepted, then end; what takes longer than this is dropped."""
        with self._change:
            self._closed = True
            self._change.notify_all()
        if self._thread.is_alive():
            self._thread.join(seconds)
        if self._thread.is_alive():
            _log.warning("the engine did not end in time")
        with self._change:
            for unit in (*self._begun, *(unit for units in self._waiting.values() for unit in units)):
                unit.job.fail(OtptError("The service has ended."))

    def submit(self, job: Job) -> None:
        """Accept a job."""
        with self._change:
            self._waiting.setdefault(job.client, deque()).extend(job.units)
            self._change.notify_all()

    def oldest(self) -> float:
        """Seconds since the acceptance of the oldest job that still waits or is computed; 0 without one."""
        with self._change:
            units = [*self._begun, *(units[0] for units in self._waiting.values() if units)]
        return max((time.perf_counter() - unit.job.accepted for unit in units), default=0.0)

    def _run(self) -> None:
        # a new thread begins with the number that torch has at that moment, which another thread may have changed
        torch.set_num_threads(self._threads)
        while True:
            with self._change:
                unit = self._change.wait_for(lambda: self._next_unit() or self._closed)
            if not isinstance(unit, Unit):
                return
            self._pass(unit.job.query.model)

    def _next_unit(self) -> Unit | None:
        """The image whose turn it is; those of finished jobs are dropped."""
        for client in list(self._waiting):
            units = self._waiting[client]
            while units and units[0].job.future.done():
                units.popleft()
            if units:
                return units[0]
            del self._waiting[client]
        return None

    def _pass(self, model: str) -> None:
        """Predict images of one model until none waits, or it is the turn of another model."""
        backbone = self._models[model]
        try:
            pipeline = FeaturePipeline(
                backbone, threads=self._ahead, fixed_chunks=False, pixels=self._pixels, clock=_note
            )
            for batch in stream(self._tasks(model), pipeline, catch=True):
                self._watch(len(batch))
                for image, outputs in batch:
                    self._answer(image, outputs, backbone)
        except Exception as error:
            _log.exception("a pass of the engine failed")
            for unit in self._begun:
                unit.job.fail(error)
        with self._change:
            self._begun.clear()

    def _tasks(self, model: str) -> Iterator[ImageTask]:
        for _ in count() if self._together is None else range(self._together):
            with self._change:
                unit = self._next_unit()
                if unit is None or unit.job.query.model != model:
                    return
                units = self._waiting.pop(unit.job.client)
                units.popleft()
                if units:  # the other clients come first
                    self._waiting[unit.job.client] = units
                self._begun.add(unit)
            job = unit.job
            job.began()
            yield job.texts.predictor.task(
                unit,
                lambda unit=unit: unit.file.data,
                seed=job.query.seed,
                wanted=lambda job=job: not job.future.done(),
                pixels=unit.file.pixels,
            )

    def _answer(self, image: EncodedImage, outputs: list[Output] | Exception, backbone: Backbone) -> None:
        unit: Unit = image.task.key
        query = unit.job.query
        try:
            if isinstance(outputs, Exception):
                raise outputs
            views = None
            if query.show_views:
                with self._pixels.hold(unit.file.pixels):
                    views = view_thumbnails(image.task.predictor, image, backbone.preprocessing)
            found = predictions(query.methods, outputs, query.settings.classes, query.calibrations)
            unit.job.answer(unit, Answer(found, views))
        except OtptError as error:
            unit.job.answer(unit, error)
        except Exception as error:
            _log.exception("an image was not predicted")
            unit.job.fail(error)
        with self._change:
            self._begun.discard(unit)


def _note(task: ImageTask, part: str, seconds: float) -> None:
    task.key.job.seconds[part] += seconds
