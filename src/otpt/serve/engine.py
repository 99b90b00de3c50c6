"""The compute thread: images of all waiting requests share one pass through the feature pipeline and the tower.

A pass takes images from the queue, client by client, until it is empty, including images that arrive meanwhile. A busy
service is therefore as fast as :meth:`otpt.Classifier.stream`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from otpt.backbones import Backbone
from otpt.decoders import Opener
from otpt.errors import OtptError
from otpt.features.pipeline import EncodedImage, FeaturePipeline, ImageTask, PixelBudget
from otpt.images import ImageSource
from otpt.methods import Output, Predictor, stream
from otpt.serve.errors import unavailable
from otpt.serve.images import ImageFile
from otpt.serve.metrics import Metrics
from otpt.serve.queries import Query
from otpt.threads import Cancelled, use_own_pool
from otpt.transfers import to_host

PARTS = ("queue", "texts", "decode", "views", "encode", "predict")
"""Parts of the processing time of a request."""
_log = logging.getLogger(__name__)


class Answer(NamedTuple):
    """Outputs of the methods and, if views are shown, zero-shot logits (V, C)."""

    outputs: list[Output]
    view_logits: Tensor | None


@dataclass(eq=False)
class Unit:
    """One image in the queue, or the error of its file; dropped when its future is cancelled.

    Attributes:
        query: what is asked.
        file: the image, or why it cannot be used.
        client: address of the client.
        show_views: whether the answer has the logits of the views.
        seconds: times by part, shared by the images of a request.
        accepted: ``time.perf_counter()`` when the image was queued.
        ended: ``time.perf_counter()`` when the answer was complete or no longer needed; None before.
        predictor: predictor of the query while the image is queued or computed.
        future: the answer.
    """

    query: Query
    file: ImageFile | OtptError
    client: str = ""
    show_views: bool = False
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))
    accepted: float = 0.0
    ended: float | None = None
    predictor: Predictor | None = None
    future: Future[Answer] = field(default_factory=Future)

    def __post_init__(self) -> None:
        if isinstance(self.file, OtptError):
            self.future.set_exception(self.file)

    @property
    def image(self) -> ImageFile:
        """The file of a queued image."""
        assert isinstance(self.file, ImageFile)
        return self.file

    def task(self) -> ImageTask[Unit]:
        """Return the task for :func:`otpt.methods.stream`."""
        task = predictor_of(self).image_task(self, partial(_bytes, self.image), seed=self.query.protocol.seed)
        return replace(task, wanted=lambda: not self.future.done(), pixels=self.image.pixels)

    def end(self) -> None:
        """Stop what is still computed."""
        self.future.cancel()
        self.ended = time.perf_counter()

    def settle(self, answer: Answer | Exception) -> None:
        """Set the result unless the request was cancelled."""
        with suppress(InvalidStateError):
            if isinstance(answer, Exception):
                self.future.set_exception(answer)
            else:
                self.future.set_result(answer)


def _bytes(file: ImageFile) -> ImageSource:
    return file.data


def predictor_of(unit: Unit) -> Predictor:
    """Return the predictor of an image that is computed."""
    assert unit.predictor is not None
    return unit.predictor


class Engine:
    """Queue and compute thread.

    Args:
        models: backbones by name.
        threads: number of threads that decode and augment in advance.
        pixels: limit on concurrently decoded images.
        opener: decodes images.
        name: of the threads; engines of different names do not wait for each other.
        metrics: counters of the batches.
    """

    def __init__(
        self,
        models: Mapping[str, Backbone],
        threads: int | None,
        pixels: PixelBudget,
        opener: Opener,
        metrics: Metrics,
        name: str = "engine",
    ) -> None:
        self._models = models
        self._pipeline_threads = threads
        self._pixels = pixels
        self._opener = opener
        self._metrics = metrics
        self._waiting: dict[str, deque[Unit]] = {}  # by client, the next one first
        self._begun: set[Unit] = set()  # being computed
        self._change = threading.Condition()
        self._closed = False
        self._torch_threads = torch.get_num_threads()
        self._thread = threading.Thread(target=self._run, name=f"otpt-{name}", daemon=True)
        self._name = name

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self, seconds: float | None = None) -> None:
        """Answer accepted images, then stop; after ``seconds`` the rest is dropped."""
        with self._change:
            self._closed = True
            self._change.notify_all()
        if self._thread.is_alive():
            self._thread.join(seconds)
        if self._thread.is_alive():
            _log.warning("the engine did not end in time")
        with self._change:
            dropped = [*self._begun]
            for units in self._waiting.values():
                dropped += units
            for unit in dropped:
                unit.settle(unavailable("closing", "The service has ended."))

    def submit(self, units: list[Unit], predictor: Predictor) -> None:
        """Accept images of one class list; units whose file cannot be used are left out."""
        with self._change:
            for unit in units:
                unit.accepted = time.perf_counter()
                if not unit.future.done():
                    unit.predictor = predictor
                    self._waiting.setdefault(unit.client, deque()).append(unit)
            self._change.notify_all()

    @property
    def waiting(self) -> int:
        """Number of queued images."""
        with self._change:
            return sum(map(len, self._waiting.values()))

    def oldest(self) -> float:
        """Return the age in seconds of the oldest unanswered image; 0 if there is none."""
        with self._change:
            units = [*self._begun, *(units[0] for units in self._waiting.values() if units)]
        return max((time.perf_counter() - unit.accepted for unit in units), default=0.0)

    def overrun(self) -> float:
        """Return for how many seconds the engine has computed images of which none is needed any more."""
        with self._change:
            ended = [unit.ended for unit in self._begun]
        seconds = [time.perf_counter() - end for end in ended if end is not None]
        return min(seconds) if seconds and len(seconds) == len(ended) else 0.0

    def _run(self) -> None:
        # a new thread begins with the number that torch has at that moment, which another thread may have changed
        torch.set_num_threads(self._torch_threads)
        use_own_pool(self._name)
        while True:
            with self._change:
                unit = self._change.wait_for(lambda: self._next_unit() or self._closed)
            if not isinstance(unit, Unit):
                return
            self._pass(unit.query.model)

    def _next_unit(self) -> Unit | None:
        """Return the next image; images of cancelled requests are dropped."""
        for client in list(self._waiting):
            units = self._waiting[client]
            while units and units[0].future.done():
                units.popleft().predictor = None
            if units:
                return units[0]
            del self._waiting[client]
        return None

    def _pass(self, model: str) -> None:
        """Predict images of one model until none waits, or it is the turn of another model."""
        pipeline = FeaturePipeline(
            self._models[model],
            threads=self._pipeline_threads,
            fixed_chunks=False,
            pixels=self._pixels,
            clock=_note,
            opener=self._opener,
        )
        try:
            for batch in stream(self.tasks(model), pipeline, predictor_of, catch=True):
                self._metrics.batches.observe(sum(image.error is None for image, _ in batch))
                for image, outputs in batch:
                    unit = image.task.key
                    unit.settle(_answer(image, outputs))
                    unit.predictor = None
                    with self._change:
                        self._begun.discard(unit)
        except Exception as error:
            _log.exception("a pass of the engine failed")
            for unit in self._begun:
                unit.settle(error)
        with self._change:
            for unit in self._begun:
                unit.predictor = None
            self._begun.clear()

    def tasks(self, model: str) -> Iterator[ImageTask[Unit]]:
        """Yield the tasks of queued images of a model, one client after the other."""
        while True:
            with self._change:
                unit = self._next_unit()
                if unit is None or unit.query.model != model:
                    return
                units = self._waiting.pop(unit.client)
                units.popleft()
                if units:  # the other clients come first
                    self._waiting[unit.client] = units
                self._begun.add(unit)
            unit.seconds["queue"] = unit.seconds["queue"] or time.perf_counter() - unit.accepted
            yield unit.task()


def _answer(image: EncodedImage[Unit], outputs: list[Output] | Exception) -> Answer | Exception:
    unit = image.task.key
    if isinstance(outputs, Exception):
        if not isinstance(outputs, (OtptError, Cancelled)):
            _log.error("an image was not predicted", exc_info=outputs)
        return outputs
    logits = predictor_of(unit).view_logits(image) if unit.show_views else None
    return Answer(outputs, None if logits is None else to_host([logits])[0])


def _note(task: ImageTask[object], part: str, seconds: float) -> None:
    assert isinstance(task.key, Unit)
    task.key.seconds[part] += seconds
