"""The compute thread: images of all waiting requests share one pass through the feature pipeline and the tower.

A pass takes images from the queue, client by client, until it is empty, including images that arrive meanwhile. A busy
service is therefore as fast as :meth:`otpt.Classifier.stream`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterator, Mapping
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from weakref import WeakSet

import torch
from torch import Tensor

from otpt.backbones import Backbone
from otpt.errors import OtptError
from otpt.features.pipeline import EncodedImage, FeaturePipeline, ImageTask, PixelBudget
from otpt.methods import Output, Predictor, stream
from otpt.serve.errors import unavailable
from otpt.serve.metrics import Metrics
from otpt.serve.queries import Query
from otpt.threads import Cancelled, cancellable, check_cancelled
from otpt.transfers import to_host

PARTS = ("queue", "texts", "decode", "views", "encode", "predict")
"""Parts of the processing time of a request."""
_log = logging.getLogger("otpt.serve")


class Answer(NamedTuple):
    """Outputs of the methods and, if views are shown, zero-shot logits (V, C)."""

    outputs: list[Output]
    view_logits: Tensor | None


@dataclass(eq=False)
class Unit:
    """One image in the queue, or the error of its file; dropped when its future is cancelled.

    ``seconds`` is shared by the images of a request.
    """

    query: Query
    file: Any
    client: str = ""
    show_views: bool = False
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))
    accepted: float = 0.0
    predictor: Predictor | None = None  # released when the image is taken from the queue
    future: Future[Answer] = field(default_factory=Future)

    def __post_init__(self) -> None:
        if isinstance(self.file, OtptError):
            self.future.set_exception(self.file)

    def settle(self, answer: Answer | Exception) -> None:
        """Set the result unless the request was cancelled."""
        with suppress(InvalidStateError):
            if isinstance(answer, Exception):
                self.future.set_exception(answer)
            else:
                self.future.set_result(answer)


class TextCache:
    """Predictors of class lists, the most recently used within a budget of bytes.

    The budget bounds the lists that requests use, too: while they exceed it, no further list is prepared. A predictor
    that is larger by itself is used and not cached.
    """

    def __init__(self, budget: int, metrics: Metrics) -> None:
        self._budget, self._metrics = budget, metrics
        self._cached: OrderedDict[Hashable, Predictor] = OrderedDict()
        self._alive: WeakSet[Predictor] = WeakSet()
        self._lock = threading.Lock()

    @property
    def size(self) -> int:
        """Bytes of the cached predictors."""
        with self._lock:
            return sum(each.nbytes for each in self._cached.values())

    def find(self, key: Hashable) -> Predictor | None:
        """The cached predictor of this key."""
        with self._lock:
            found = self._cached.get(key)
            if found is not None:
                self._cached.move_to_end(key)
        self._metrics.texts.labels("miss" if found is None else "hit").inc()
        return found

    def prepare(
        self, key: Hashable, make: Callable[[], Predictor], stop: Callable[[], bool] = lambda: False
    ) -> Predictor:
        """Make a predictor, unless another thread just did; raises ``Cancelled`` once ``stop()`` is true."""
        while self._shrink() > self._budget:  # requests use them
            if stop():
                raise Cancelled
            time.sleep(0.02)
        with self._lock:
            found = self._cached.get(key)
        if found is not None:
            return found
        with cancellable(stop):
            check_cancelled()
            found = make()
        self._shrink(found.nbytes)
        with self._lock:
            self._alive.add(found)
            if found.nbytes <= self._budget:
                self._cached[key] = found
        return found

    def _shrink(self, size: int = 0) -> int:
        """Evict predictors until ``size`` more bytes fit; return the bytes of all that are still in memory."""
        with self._lock:
            while self._cached and sum(each.nbytes for each in self._alive) + size > self._budget:
                self._cached.popitem(last=False)
            return sum(each.nbytes for each in self._alive)


class Engine:
    """Queue and compute thread; ``threads`` decode and augment ahead."""

    def __init__(
        self, models: Mapping[str, Backbone], threads: int | None, pixels: PixelBudget, metrics: Metrics
    ) -> None:
        self._models, self._metrics = models, metrics
        self._options: dict[str, Any] = {"threads": threads, "fixed_chunks": False, "pixels": pixels, "clock": _note}
        self._waiting: dict[str, deque[Unit]] = {}  # by client, the next one first
        self._begun: set[Unit] = set()  # being computed
        self._change = threading.Condition()
        self._closed = False
        self._threads = torch.get_num_threads()
        self._thread = threading.Thread(target=self._run, name="otpt-engine", daemon=True)

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
            for unit in (*self._begun, *(unit for units in self._waiting.values() for unit in units)):
                unit.settle(unavailable("closing", "The service has ended."))

    def submit(self, units: list[Unit], predictor: Predictor) -> None:
        """Accept images of one class list."""
        with self._change:
            for unit in units:
                unit.accepted, unit.predictor = time.perf_counter(), predictor
                self._waiting.setdefault(unit.client, deque()).append(unit)
            self._change.notify_all()

    def oldest(self) -> float:
        """Age in seconds of the oldest unanswered image; 0 if there is none."""
        with self._change:
            units = [*self._begun, *(units[0] for units in self._waiting.values() if units)]
        return max((time.perf_counter() - unit.accepted for unit in units), default=0.0)

    def _run(self) -> None:
        # a new thread begins with the number that torch has at that moment, which another thread may have changed
        torch.set_num_threads(self._threads)
        while True:
            with self._change:
                unit = self._change.wait_for(lambda: self._next_unit() or self._closed)
            if not isinstance(unit, Unit):
                return
            self._pass(unit.query.model)

    def _next_unit(self) -> Unit | None:
        """The next image; images of cancelled requests are dropped."""
        for client in list(self._waiting):
            units = self._waiting[client]
            while units and units[0].future.done():
                units.popleft()
            if units:
                return units[0]
            del self._waiting[client]
        return None

    def _pass(self, model: str) -> None:
        """Predict images of one model until none waits, or it is the turn of another model."""
        try:
            for batch in stream(self._tasks(model), FeaturePipeline(self._models[model], **self._options), catch=True):
                self._metrics.batches.observe(sum(image.error is None for image, _ in batch))
                for image, outputs in batch:
                    image.task.key.settle(_answer(image, outputs))
                    with self._change:
                        self._begun.discard(image.task.key)
        except Exception as error:
            _log.exception("a pass of the engine failed")
            for unit in self._begun:
                unit.settle(error)
        with self._change:
            self._begun.clear()

    def _tasks(self, model: str) -> Iterator[ImageTask]:
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
                predictor, unit.predictor = unit.predictor, None
            assert predictor is not None
            unit.seconds["queue"] = unit.seconds["queue"] or time.perf_counter() - unit.accepted
            yield predictor.task(
                unit,
                unit.file.open,
                seed=unit.query.settings.seed,
                wanted=lambda unit=unit: not unit.future.done(),
                pixels=unit.file.pixels,
            )
            del predictor


def _answer(image: EncodedImage, outputs: list[Output] | Exception) -> Answer | Exception:
    unit: Unit = image.task.key
    if isinstance(outputs, Exception):
        if not isinstance(outputs, (OtptError, Cancelled)):
            _log.error("an image was not predicted", exc_info=outputs)
        return outputs
    logits = image.task.predictor.view_logits(image) if unit.show_views else None
    return Answer(outputs, None if logits is None else to_host([logits])[0])


def _note(task: ImageTask, part: str, seconds: float) -> None:
    task.key.seconds[part] += seconds
