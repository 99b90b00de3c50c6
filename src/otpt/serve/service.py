"""What the HTTP interface asks: models, the engine, names, limits and counters, in one object."""

from __future__ import annotations

import asyncio
import base64
import math
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from otpt.backbones import Backbone
from otpt.calibration import Calibration
from otpt.data.classes import ClassList
from otpt.errors import OtptError
from otpt.serve.engine import Engine, Full
from otpt.serve.http.errors import RequestError, busy, closing, too_slow, unusable
from otpt.serve.http.fetching import fetch
from otpt.serve.http.queries import Catalogue, served_method
from otpt.serve.http.reading import image_bytes
from otpt.serve.http.schemas import PIXEL, Asked
from otpt.serve.jobs import Answer, Job, Query
from otpt.serve.limits import TEXT_CACHE, Limits
from otpt.serve.metrics import Metrics
from otpt.serve.texts import TextCache
from otpt.settings import DEFAULT_METHOD

_WORKERS = 4
"""Threads that read requests and headers of images, and fetch addresses."""


class Service:
    """Answers queries of many clients.

    Args:
        models: by name, the default first.
        method: the default.
        views: per image, by default.
        seed: of the views, by default.
        classes: class lists by name; see :func:`otpt.serve.settings.read_class_lists`.
        calibrations: by name; see :func:`otpt.serve.settings.read_calibrations`.
        text_cache: bytes of prepared class lists that are kept.
        limits: of requests.
        hosts: from which images are fetched by address; none by default.
        together: images of a pass of the engine; None for as many as wait.
        threads: that decode and augment; one per core by default.
    """

    def __init__(
        self,
        models: Mapping[str, Backbone],
        *,
        method: str = DEFAULT_METHOD,
        views: int = 64,
        seed: int = 0,
        classes: Mapping[str, ClassList] | None = None,
        calibrations: Mapping[str, Calibration] | None = None,
        text_cache: int = TEXT_CACHE,
        limits: Limits | None = None,
        hosts: Collection[str] = (),
        together: int | None = None,
        threads: int | None = None,
    ) -> None:
        self.limits = limits or Limits()
        self.catalogue = Catalogue(
            models, served_method(method).name, views, seed, classes=classes or {}, calibrations=calibrations or {}
        )
        self.metrics = Metrics()
        self._hosts = tuple(hosts)
        self._texts = TextCache(text_cache, lambda outcome: self.metrics.texts.labels(outcome).inc())
        self._engine = Engine(
            models,
            self._texts,
            queue=self.limits.queue,
            together=together,
            threads=threads,
            watch=self.metrics.batches.observe,
        )
        self.metrics.watch(lambda: self._engine.length, lambda: self._texts.size, lambda: len(self._texts))
        self._workers = ThreadPoolExecutor(_WORKERS, "otpt-requests")
        self._warm = [self._first_job(model) for model in models]
        self._rate = 0.1  # seconds per image, of late
        self._closing = False

    @property
    def ready(self) -> bool:
        """Whether every model has answered once, and the service is not about to end."""
        return not self._closing and all(job.future.done() for job in self._warm)

    def _first_job(self, model: str) -> Job:
        """What warms a model up: a request that leaves everything to the service."""
        if len(self.catalogue.models) > self.limits.queue:
            raise OtptError(
                f"There are {len(self.catalogue.models)} models, but the queue holds {self.limits.queue} images; "
                "expected room for an image of each."
            )
        try:
            query = self.catalogue.query(Asked(labels=["a", "b"], model=model), [self.catalogue.method], self.limits)
        except RequestError as error:
            what = error.what.rstrip(".")
            raise OtptError(f"The service refuses its own defaults: {what}; expected {error.expected}.") from None
        return Job(query, [base64.b64decode(PIXEL)], self.limits.pixels)

    def start(self) -> None:
        """Begin to answer; each model is warmed up first."""
        self._engine.start()
        for job in self._warm:
            self._engine.submit(job)

    def close(self) -> None:
        """Accept nothing more, and answer what was accepted."""
        self._closing = True
        self._engine.close()
        self._workers.shutdown()

    async def answer(
        self, asked: Asked, methods: Sequence[str], files: Sequence[bytes] = (), *, show_views: bool = False
    ) -> tuple[Query, list[Answer | OtptError], dict[str, float]]:
        """The query, what is said of each image, and the seconds that each part took."""
        begun = time.perf_counter()
        if self._closing:
            raise closing()
        given = self._given(asked, files)
        if self._engine.length + len(given) > self.limits.queue:
            raise self._busy(len(given))
        query = await self._work(partial(self._query, asked, methods, show_views))
        fetched_by = begun + self.limits.seconds / 2
        images = [await self._work(partial(self._image, each, fetched_by)) for each in given]
        job = Job(query, images, self.limits.pixels)
        try:
            self._engine.submit(job)
        except Full:
            raise closing() if self._closing else self._busy(len(images)) from None
        answers = await self._wait(job, begun)
        seconds = {**job.seconds, "total": time.perf_counter() - begun}
        self._count(query, answers, seconds)
        return query, answers, seconds

    def _given(self, asked: Asked, files: Sequence[bytes]) -> list[str | bytes]:
        texts = [] if asked.image is None else [asked.image]
        given: list[str | bytes] = [*texts, *(asked.images or []), *files]
        if asked.image is not None and asked.images is not None:
            raise RequestError(422, "image-twice", "Both image and images were given.", "one of them")
        if not given:
            raise RequestError(
                422, "no-image", "No image was given.", "image, images, or file parts 'image'", "Send an image."
            )
        if len(given) > self.limits.images:
            what = f"{len(given)} images were given."
            raise RequestError(422, "too-many-images", what, f"{self.limits.images} at most", "Send several requests.")
        return given

    def _query(self, asked: Asked, methods: Sequence[str], show_views: bool) -> Query:
        try:
            return self.catalogue.query(asked, methods, self.limits, show_views=show_views)
        except OtptError as error:
            raise unusable(error) from None

    def _image(self, given: str | bytes, fetched_by: float) -> bytes:
        """The bytes of an image's file; it is decoded when its turn comes, so that those that wait stay small."""
        data = image_bytes(given) if isinstance(given, str) else given
        if isinstance(data, str):
            left = fetched_by - time.perf_counter()
            if left <= 0:
                raise too_slow(self.limits.seconds)
            return fetch(data, self._hosts, max_bytes=self.limits.body, seconds=left)
        return data

    async def _work(self, step: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._workers, step)

    async def _wait(self, job: Job, begun: float) -> list[Answer | OtptError]:
        left = self.limits.seconds - (time.perf_counter() - begun)
        try:
            return await asyncio.wait_for(asyncio.wrap_future(job.future), max(left, 0.001))
        except TimeoutError:
            raise too_slow(self.limits.seconds) from None
        except OtptError as error:
            raise unusable(error) from None

    def _busy(self, images: int) -> RequestError:
        seconds = max(math.ceil(self._engine.length * self._rate), 1)
        room = f"The service is busy: the queue holds {self._engine.length} of at most {self.limits.queue} images"
        return busy(seconds, f"{room}, and {images} more {'was' if images == 1 else 'were'} sent.")

    def _count(self, query: Query, answers: Sequence[Answer | OtptError], seconds: Mapping[str, float]) -> None:
        """Counters, and how long an image takes of late."""
        self._rate += 0.1 * ((seconds["total"] - seconds["queue"]) / len(answers) - self._rate)
        for part, value in seconds.items():
            self.metrics.parts.labels(part).observe(value)
        for answer in answers:
            outcome = "failed" if isinstance(answer, OtptError) else "answered"
            self.metrics.images.labels(query.model, outcome).inc()
            for name, own in {} if isinstance(answer, OtptError) else answer.predictions.items():
                self.metrics.predicted(query.classes, name, own.confidence)
