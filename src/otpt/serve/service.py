"""What the HTTP interface asks: models, the engine, names, limits and counters, in one object."""

from __future__ import annotations

import asyncio
import base64
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from otpt.backbones import Backbone, load_backbone
from otpt.calibration import Calibration
from otpt.data.classes import ClassList
from otpt.errors import OtptError
from otpt.images import is_url
from otpt.serve.config import ServiceConfig, read_calibrations, read_class_lists
from otpt.serve.engine import Answer, Engine, Job, Prepared, TextCache
from otpt.serve.errors import RequestError, busy, closing, too_slow, unusable
from otpt.serve.images import ImageFile, decode_base64, fetch, read_header
from otpt.serve.metrics import Metrics
from otpt.serve.queries import Catalogue, Query, served_method
from otpt.serve.schemas import PIXEL, Options
from otpt.threads import make_pool

_READERS = 4  # threads that read requests and headers of images
_FETCHERS = 16  # threads that fetch addresses; slow hosts hold up nothing else
_FEW_TEXTS = 256  # texts that do not wait for longer lists

_T = TypeVar("_T")
_log = logging.getLogger("otpt.serve")


class Service:
    """Answers queries of many clients.

    Args:
        models: by name, the default first.
        classes: class lists by name; see :func:`otpt.serve.config.read_class_lists`.
        calibrations: by name; see :func:`otpt.serve.config.read_calibrations`.
        options: other fields of :class:`ServiceConfig`.
    """

    def __init__(
        self,
        models: Mapping[str, Backbone],
        *,
        classes: Mapping[str, ClassList] | None = None,
        calibrations: Mapping[str, Calibration] | None = None,
        **options: Any,
    ) -> None:
        config = ServiceConfig(**options)
        self.limits = config.limits
        method = served_method(config.method).name
        self.catalogue = Catalogue(models, method, config.views, config.seed, classes or {}, calibrations or {})
        self.metrics = Metrics()
        self._hosts = config.hosts
        self._texts = TextCache(config.text_cache, lambda outcome: self.metrics.texts.labels(outcome).inc())
        self._engine = Engine(
            models,
            together=config.together,
            threads=config.threads,
            pixels=self.limits.pixels,
            watch=self.metrics.batches.observe,
        )
        self._in_progress: Counter[str] = Counter()  # images by client
        self.metrics.watch(self._in_progress.total, lambda: self._texts.size, lambda: len(self._texts))
        self._warm_ups = [self._warm_up_query(model) for model in models]
        self._warm = self._closing = False
        self._rate = 0.1  # seconds per image, a moving average
        self._readers = ThreadPoolExecutor(_READERS, "otpt-requests")
        self._fetchers = ThreadPoolExecutor(_FETCHERS, "otpt-fetch")
        self._encoders = make_pool(1, "otpt-texts"), make_pool(1, "otpt-many-texts")

    @classmethod
    def from_config(cls, config: ServiceConfig) -> Service:
        """Read the files and load the models."""
        served_method(config.method)  # fail early
        classes = config.classes if isinstance(config.classes, Mapping) else read_class_lists(config.classes)
        calibrations = read_calibrations(config.calibrations)
        models = {
            name: load_backbone(spec, device=config.device, precision=config.precision, compile=config.compile)
            for name, spec in config.models.items()
        }
        options = {
            name: getattr(config, name) for name in config.model_fields_set - {"models", "classes", "calibrations"}
        }
        return cls(models, classes=classes, calibrations=calibrations, **options)

    @property
    def ready(self) -> bool:
        """Whether every model has predicted once, and no accepted image waits longer than the limit."""
        return self._warm and not self._closing and self._engine.oldest() <= self.limits.seconds

    def _warm_up_query(self, model: str) -> Query:
        """A request with all defaults."""
        try:
            return self.catalogue.query(Options(labels=["a", "b"], model=model), [self.catalogue.method], self.limits)
        except RequestError as error:
            raise OtptError(f"The limits refuse the service's own defaults: {error.detail}") from None

    def start(self) -> None:
        """Start the threads; each model predicts an image first."""
        self._engine.start()
        self._encoders[0].submit(self._warm_up)

    def _warm_up(self) -> None:
        image = read_header(base64.b64decode(PIXEL), self.limits.pixels)
        try:
            for query in self._warm_ups:
                job = Job(query, self._texts.prepare(query, self.catalogue.models[query.model]), [image])
                self._engine.submit(job)
                (answer,) = job.future.result()
                if isinstance(answer, OtptError):
                    raise answer
        except Exception:
            _log.exception("the warm-up failed")
        else:
            self._warm = True

    def close(self) -> None:
        """Accept nothing more, and answer what was accepted, within the limit of a request."""
        self._closing = True
        self._engine.close(self.limits.seconds)
        for pool in (self._readers, self._fetchers, *self._encoders):
            pool.shutdown(wait=False, cancel_futures=True)

    async def answer(
        self,
        asked: Options,
        methods: Sequence[str],
        images: Sequence[str | bytes],
        *,
        show_views: bool = False,
        client: str = "",
    ) -> tuple[Query, list[Answer | OtptError], dict[str, float]]:
        """The query, the answer for each image, and the seconds that each part took.

        All work ends when the answer is there, when the time is over, or when the caller is cancelled.
        """
        begun = time.perf_counter()
        if self._closing:
            raise closing()
        if not images:
            raise RequestError(422, "no-image", "No image was given.", expected="image or images")
        if len(images) > self.limits.images:
            message = f"{len(images)} images were given."
            raise RequestError(422, "too-many-images", message, expected=f"at most {self.limits.images}")
        finished = False
        try:
            with self._admitted(client, len(images)):
                async with asyncio.timeout(self.limits.seconds):
                    query = await _run(
                        self._readers, self.catalogue.query, asked, methods, self.limits, show_views=show_views
                    )
                    files = [await self._file(each, begun + self.limits.seconds / 2) for each in images]
                    read = time.perf_counter()
                    texts = await self._prepare(query, lambda: finished)
                    job = Job(query, texts, files, client)
                    job.seconds["texts"] = time.perf_counter() - read
                    self._engine.submit(job)
                    answers = await asyncio.wrap_future(job.future)
        except TimeoutError:
            raise too_slow(self.limits.seconds) from None
        except OtptError as error:
            raise unusable(error) from None
        finally:
            finished = True
        seconds = {**job.seconds, "total": time.perf_counter() - begun}
        self._count(query, answers, seconds)
        return query, answers, seconds

    @contextmanager
    def _admitted(self, client: str, images: int) -> Iterator[None]:
        """Count the images as in progress; 429 above the limit of the queue, or of a client's share of it."""
        own, total, most = self._in_progress[client], self._in_progress.total(), self.limits.queue
        if total + images > most:
            raise self._busy(f"The queue holds {total} of at most {most} images, and {images} more were sent.")
        if own and own + images > self.limits.share * most:
            raise self._busy(f"{own} of your images are in progress, and the share of one client is limited.")
        self._in_progress[client] += images
        try:
            yield
        finally:
            self._in_progress[client] -= images
            if not self._in_progress[client]:
                del self._in_progress[client]

    async def _file(self, given: str | bytes, fetched_by: float) -> ImageFile | OtptError:
        """An image's file; it is decoded when its turn comes."""
        if isinstance(given, bytes):
            data = given
        elif is_url(given):
            left = fetched_by - time.perf_counter()
            if left <= 0:
                raise TimeoutError
            data = await _run(self._fetchers, fetch, given, self._hosts, max_bytes=self.limits.body, seconds=left)
        else:
            data = await _run(self._readers, decode_base64, given)
        try:
            return await _run(self._readers, read_header, data, self.limits.pixels)
        except OtptError as error:
            return error

    async def _prepare(self, query: Query, stop: Callable[[], bool]) -> Prepared:
        """The texts of a query; long lists are encoded in their own thread, so that short ones do not wait."""
        found = self._texts.find(query.key)
        if found is not None:
            return found
        pool = self._encoders[query.texts > _FEW_TEXTS]
        return await _run(pool, self._texts.prepare, query, self.catalogue.models[query.model], stop)

    def _busy(self, message: str) -> RequestError:
        return busy(max(math.ceil(self._in_progress.total() * self._rate), 1), message)

    def _count(self, query: Query, answers: Sequence[Answer | OtptError], seconds: Mapping[str, float]) -> None:
        """Update the counters and the moving average."""
        self._rate += 0.1 * ((seconds["total"] - seconds["queue"]) / len(answers) - self._rate)
        for part, value in seconds.items():
            self.metrics.parts.labels(part).observe(value)
        for answer in answers:
            outcome = "failed" if isinstance(answer, OtptError) else "answered"
            self.metrics.images.labels(query.model, outcome).inc()
            for name, own in {} if isinstance(answer, OtptError) else answer.predictions.items():
                self.metrics.predicted(query.classes, name, own.confidence)


async def _run(pool: Executor, work: Callable[..., _T], *arguments: Any, **options: Any) -> _T:
    return await asyncio.get_running_loop().run_in_executor(pool, partial(work, *arguments, **options))
