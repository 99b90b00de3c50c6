"""One thread that computes: images of all requests that wait go through the feature pipeline and the tower together.

A pass takes images from the queue for as long as there are some, those that come meanwhile included, in their order.
So a busy service computes as :meth:`otpt.Classifier.stream` does, and each image gets the bits that it would get alone.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from typing import Any

import torch

from otpt.backbones import Backbone
from otpt.errors import OtptError
from otpt.features.pipeline import EncodedImage, FeaturePipeline, ImageTask
from otpt.methods.output import Output
from otpt.methods.predictor import Predictor, stream_batches
from otpt.methods.preparing import check_fit
from otpt.prediction import predictions
from otpt.serve.jobs import Answer, Job, Unit
from otpt.serve.texts import Prepared, TextCache
from otpt.serve.thumbnails import shown_views

_log = logging.getLogger("otpt.serve")


class Full(Exception):
    """The queue has no room."""


class Engine:
    """Answers jobs in their order.

    Args:
        models: by name.
        texts: prepared class lists.
        queue: images that may wait or be under way.
        together: images of a pass; None for no limit.
        threads: that decode and augment; None for one per core, 0 for none but the engine's own.
        watch: called with the number of images that were predicted together.
    """

    def __init__(
        self,
        models: Mapping[str, Backbone],
        texts: TextCache,
        *,
        queue: int,
        together: int | None = None,
        threads: int | None = None,
        watch: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._models, self._texts, self._most, self._together = models, texts, queue, together
        self._ahead, self._watch = threads, watch
        self._begun: set[Unit] = set()  # have left the queue and are not yet answered
        self._waiting: deque[Unit] = deque()
        self._under_way = 0
        self._change = threading.Condition()
        self._closed = False
        self._threads = torch.get_num_threads()
        self._thread = threading.Thread(target=self._run, name="otpt-engine", daemon=True)

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def close(self) -> None:
        """Answer what was accepted, then end."""
        with self._change:
            self._closed = True
            self._change.notify_all()
        if self._thread.is_alive():
            self._thread.join()

    @property
    def length(self) -> int:
        """Images that were accepted and are not yet answered."""
        return self._under_way

    def submit(self, job: Job) -> None:
        """Accept a job, or raise :class:`Full`."""
        with self._change:
            if self._closed or self._under_way + len(job.units) > self._most:
                raise Full
            self._under_way += len(job.units)
            self._waiting.extend(job.units)
            self._change.notify_all()
        job.future.add_done_callback(lambda _: self._done(job))

    def _done(self, job: Job) -> None:
        with self._change:
            self._under_way -= len(job.units)

    def _run(self) -> None:
        # a new thread begins with the number that torch has at that moment, which another thread may have changed
        torch.set_num_threads(self._threads)
        while True:
            with self._change:
                self._change.wait_for(lambda: self._waiting or self._closed)
                if not self._waiting:
                    return
                model = self._waiting[0].job.query.model
            self._pass(model)

    def _pass(self, model: str) -> None:
        """Images of one model, until there are none, or one of another model is next."""
        backbone = self._models[model]
        try:
            pipeline = FeaturePipeline(backbone, threads=self._ahead, fixed_chunks=False, clock=_note)
            for batch in stream_batches(self._tasks(model), pipeline, catch=True):
                self._watch(len(batch))
                for image, outputs in batch:
                    self._answer(image, outputs, backbone)
        except Exception as error:
            _log.exception("a pass of the engine failed")
            for unit in self._begun:
                unit.job.fail(error)
        self._begun.clear()

    def _tasks(self, model: str) -> Iterator[ImageTask]:
        """What waits, as tasks of the feature pipeline; prepared class lists of a pass fit the budget together."""
        held: dict[Any, int] = {}
        for _ in count() if self._together is None else range(self._together):
            with self._change:
                if not self._waiting or self._waiting[0].job.query.model != model:
                    return
                unit = self._waiting.popleft()
            if unit.job.future.done():  # nobody waits for it any more
                continue
            unit.job.began()
            try:
                prepared = unit.prepared = unit.prepared or self._prepared(unit)
            except OtptError as error:
                unit.job.fail(error)
                continue
            except Exception as error:
                _log.exception("class list not prepared")
                unit.job.fail(error)
                continue
            key = unit.job.query.key
            if held and sum({**held, key: prepared.size}.values()) > self._texts.budget:
                with self._change:
                    self._waiting.appendleft(unit)
                return
            held[key] = prepared.size
            self._begun.add(unit)
            yield prepared.predictor.task(
                unit, unit.source, seed=unit.job.query.seed, wanted=lambda job=unit.job: not job.future.done()
            )

    def _prepared(self, unit: Unit) -> Prepared:
        query = unit.job.query
        backbone = self._models[query.model]

        def prepare() -> Predictor:
            begun = time.perf_counter()
            check_fit(backbone, query.settings, query.methods)
            found = Predictor(backbone, query.settings, query.methods).prepare()
            unit.job.spent("texts", begun)
            return found

        return self._texts.get(query.key, backbone, prepare)

    def _answer(self, image: EncodedImage, outputs: list[Output] | Exception, backbone: Backbone) -> None:
        unit: Unit = image.task.key
        self._begun.discard(unit)
        query = unit.job.query
        try:
            if isinstance(outputs, Exception):
                raise outputs
            views = shown_views(image.task.predictor, image, backbone.preprocessing) if query.show_views else None
            found = predictions(query.methods, outputs, query.settings.classes, query.calibrations)
            unit.answer(Answer(found, views))
        except OtptError as error:
            unit.answer(error)
        except Exception as error:
            _log.exception("an image was not predicted")
            unit.job.fail(error)


def _note(task: ImageTask, part: str, seconds: float) -> None:
    task.key.job.seconds[part] += seconds
