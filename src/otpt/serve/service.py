"""What the HTTP interface asks: models, the engine, names, limits and counters, in one object."""

from __future__ import annotations

import asyncio
import base64
import logging
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from prometheus_client import Gauge, generate_latest
from torch import Tensor

from otpt.backbones import Backbone, load_backbone
from otpt.calibration import Calibration, read_calibration
from otpt.data.classes import ClassList, read_class_list
from otpt.errors import OtptError
from otpt.features.pipeline import EncodedImage, PixelBudget
from otpt.images import is_url
from otpt.methods import Predictor
from otpt.objectives import select_fraction, view_entropies
from otpt.prediction import Prediction
from otpt.serve.config import ServiceConfig, read_folder
from otpt.serve.engine import Answer, Engine, Job, TextCache, Unit
from otpt.serve.errors import RequestError, busy, unavailable, unusable
from otpt.serve.images import ImageFile, data_urls, decode_base64, fetch
from otpt.serve.metrics import Metrics
from otpt.serve.queries import Catalogue, Query, check_count, served_method
from otpt.serve.schemas import PIXEL, Asked, Options
from otpt.threads import make_pool
from otpt.views import make_views

_READERS = 4  # threads that read requests and headers of images
_FETCHERS, _FETCHES = 16, 8  # threads that fetch addresses; of them for one client
_ALWAYS = 8  # images that are accepted however slow the last ones were
_FEW_TEXTS = 256  # texts that do not wait for longer lists
_SELECTED = 0.1  # of the views that TPT and its successors select: 6 of 64

_T = TypeVar("_T")
_log = logging.getLogger("otpt.serve")


class Service:
    """Answers queries of many clients.

    Args:
        models: by name, the default first.
        classes: class lists by name.
        calibrations: by name.
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
        self._pixels = PixelBudget(self.limits.pixels)
        self._engine = Engine(models, config.threads, self._pixels, self.metrics.batches.observe)
        self._in_progress: Counter[str] = Counter()  # images by client
        for name, words, ask in (
            ("otpt_queue_images", "images accepted and not yet answered", self._in_progress.total),
            ("otpt_text_cache_bytes", "bytes of prepared class lists in memory", lambda: self._texts.size),
            ("otpt_text_cache_entries", "prepared class lists in memory", lambda: len(self._texts)),
        ):
            Gauge(name, words, registry=self.metrics.registry).set_function(ask)
        self._warm_ups = [self._warm_up_query(model) for model in models]
        self._warm = self._closing = False
        self._rate, self._finished = 0.1, 0.0  # seconds per image, a moving average; when the last one was answered
        self._readers = ThreadPoolExecutor(_READERS, "otpt-requests")
        self._fetchers = ThreadPoolExecutor(_FETCHERS, "otpt-fetch")
        self._encoders = make_pool(1, "otpt-texts"), make_pool(1, "otpt-many-texts")
        self._turns: WeakValueDictionary[Hashable, asyncio.Semaphore] = WeakValueDictionary()

    @classmethod
    def from_config(cls, config: ServiceConfig) -> Service:
        """Read the files and load the models."""
        served_method(config.method)  # fail early
        given = config.classes
        classes = given if isinstance(given, Mapping) else read_folder(given, ".txt", read_class_list)
        calibrations = read_folder(config.calibrations, ".json", read_calibration)
        models = {
            name: load_backbone(spec, device=config.device, precision=config.precision, compile=config.compile)
            for name, spec in config.models.items()
        }
        read = {"models", "classes", "calibrations"}
        options = {name: getattr(config, name) for name in config.model_fields_set - read}
        return cls(models, classes=classes, calibrations=calibrations, **options)

    def _warm_up_query(self, model: str) -> Query:
        """A request with all defaults."""
        try:
            return self.catalogue.query(Options(labels=["a", "b"], model=model), [], self.limits)
        except RequestError as error:
            raise OtptError(f"The limits refuse the service's own defaults: {error.detail}") from None

    def start(self) -> None:
        """Start the threads; each model predicts an image first."""
        self._engine.start()
        self._encoders[0].submit(self._warm_up)

    def _warm_up(self) -> None:
        file = ImageFile.read(base64.b64decode(PIXEL), self.limits.pixels)
        try:
            for query in self._warm_ups:
                unit = Unit(Job(query, self._texts.prepare(query, self.catalogue.models[query.model])), file)
                self._engine.submit(unit.job, [unit])
                unit.future.result()
        except Exception:
            _log.exception("the warm-up failed")
        else:
            self._warm = True

    async def ready(self) -> bool:
        """Whether every model has predicted once, and no accepted image waits longer than the limit."""
        return self._warm and not self._closing and self._engine.oldest() <= self.limits.seconds

    async def counters(self) -> bytes:
        """The counters in Prometheus' format."""
        return generate_latest(self.metrics.registry)

    async def information(self) -> dict[str, Any]:
        """Models, class lists and calibrations that requests can name, and the defaults."""
        own = self.catalogue
        models = [
            {
                "name": name,
                "backbone": each.name,
                "fingerprint": each.fingerprint,
                "device": each.device.type,
                "embed_dim": each.embed_dim,
                "image_size": each.preprocessing.size,
            }
            for name, each in own.models.items()
        ]
        classes = [{"name": n, "count": len(each), "labels": list(each.names[:20])} for n, each in own.classes.items()]
        calibrations = [
            {
                "name": name,
                "method": each.facts["method"]["name"],
                "model": each.facts["model"]["name"],
                "labels": each.labels,
                "count": len(each.class_names),
            }
            for name, each in own.calibrations.items()
        ]
        return {
            "models": {"default": models[0]["name"], "views": own.views, "seed": own.seed, "models": models},
            "classes": {"classes": classes, "calibrations": calibrations},
            "method": own.method,
        }

    def close(self) -> None:
        """Accept nothing more, and answer what was accepted, within the limit of a request."""
        self._closing = True
        self._engine.close(self.limits.seconds)
        for pool in (self._readers, self._fetchers, *self._encoders):
            pool.shutdown(wait=False, cancel_futures=True)

    async def answer(self, asked: Asked, images: Sequence[str | bytes], client: str = "") -> dict[str, Any]:
        """The answer of ``/v1/compare``, ready for JSON; without a method, the default one is used.

        All work ends when the answer is there, when the time is over, or when the caller is cancelled. The error of a
        single image is that of the request; of several, each has its own.
        """
        begun, finished = time.perf_counter(), False
        if self._closing:
            hint = "Send the request again in a few seconds, or to another replica."
            raise unavailable("closing", "The service is shutting down.", hint)
        check_count("images", len(images), 1 if asked.show_views else self.limits.images)
        try:
            with self._admitted(client, len(images)):
                async with asyncio.timeout(self.limits.seconds):
                    query = await _run(self._readers, self.catalogue.query, asked, asked.methods, self.limits)
                    scores = min(asked.top, len(query.settings.classes)) * len(query.methods) * len(images)
                    check_count("scores", scores, self.limits.scores)
                    deadline = begun + self.limits.seconds / 2
                    files = [await self._file(each, client, deadline) for each in images]
                    read = time.perf_counter()
                    job = Job(query, await self._prepare(query, client, lambda: finished), client)
                    job.seconds["texts"] = job.accepted - read
                    answers = await self._compute(job, files, asked.show_views)
                    results = [_content(each, query, asked.top) for each in answers]
                    if isinstance(answers[0], Answer) and answers[0].image is not None:
                        shown = self._views, answers[0].image, answers[0].view_logits
                        results[0]["views"] = await _run(self._readers, *shown)
        except TimeoutError:
            message = f"The request was not answered within {self.limits.seconds:g} s."
            hint = "Send fewer images, labels, views or methods; or try again when the service is less busy."
            raise unavailable("time-out", message, hint) from None
        except OtptError as error:
            raise unusable(error) from None
        finally:
            finished = True
        now = time.perf_counter()
        self._rate += 0.3 * ((now - max(self._finished, job.accepted)) / len(answers) - self._rate)
        self._finished = now
        seconds = {**job.seconds, "total": now - begun}
        self._count(asked.classes, query, answers, seconds)
        if len(answers) == 1 and isinstance(answers[0], OtptError):
            raise unusable(answers[0], "image")
        rounded = {part: round(value, 6) for part, value in seconds.items()}
        labels = list(query.settings.classes)
        return {"model": query.model, "labels": labels, "results": results, "seconds": rounded}

    @contextmanager
    def _admitted(self, client: str, images: int) -> Iterator[None]:
        """Count the images as in progress; 429 above the limit of the queue, or of a client's share of it."""
        own, total, most = self._in_progress[client], self._in_progress.total(), self.limits.queue
        wait = total * self._rate
        later = max(math.ceil(wait), 1)
        if total > _ALWAYS and wait > 0.8 * self.limits.seconds:  # an estimate
            raise busy(later, f"The {total} images in progress take longer than {self.limits.seconds:g} s.")
        if total + images > most:
            raise busy(later, f"The queue holds {total} of at most {most} images, and {images} more were sent.")
        if own and own + images > self.limits.share * most:
            raise busy(later, f"{own} of your images are in progress, and the share of one client is limited.")
        self._in_progress[client] += images
        try:
            yield
        finally:
            self._in_progress[client] -= images
            if not self._in_progress[client]:
                del self._in_progress[client]

    @asynccontextmanager
    async def _turn(self, what: str, client: str, at_once: int) -> AsyncIterator[None]:
        """Let a client do so much at once, so that the others need not wait for all of its work."""
        key = (asyncio.get_running_loop(), what, client)
        turn = self._turns[key] = self._turns.get(key) or asyncio.Semaphore(at_once)
        async with turn:
            yield

    async def _file(self, given: str | bytes, client: str, fetched_by: float) -> ImageFile | OtptError:
        """An image's file; it is decoded when its turn comes."""
        if isinstance(given, bytes):
            data = given
        elif is_url(given):
            async with self._turn("fetch", client, _FETCHES):
                if (left := fetched_by - time.perf_counter()) <= 0:
                    raise TimeoutError
                data = await _run(self._fetchers, fetch, given, self._hosts, max_bytes=self.limits.body, seconds=left)
        else:
            data = await _run(self._readers, decode_base64, given)
        try:
            return await _run(self._readers, ImageFile.read, data, self.limits.pixels)
        except OtptError as error:
            return error

    async def _prepare(self, query: Query, client: str, stop: Callable[[], bool]) -> Predictor:
        """The texts of a query; long lists are encoded in their own thread, so that short ones do not wait."""
        found = self._texts.find(query.key)
        if found is not None:
            return found
        many = query.texts > _FEW_TEXTS
        async with self._turn(f"texts {many}", client, 1):
            return await _run(
                self._encoders[many], self._texts.prepare, query, self.catalogue.models[query.model], stop
            )

    async def _compute(
        self, job: Job, files: Sequence[ImageFile | OtptError], show_views: bool
    ) -> list[Answer | OtptError]:
        """The answer for each image, in order; cancelled with the caller."""
        units = {i: Unit(job, each, show_views) for i, each in enumerate(files) if isinstance(each, ImageFile)}
        self._engine.submit(job, list(units.values()))
        waiting = (asyncio.wrap_future(unit.future) for unit in units.values())
        found: dict[int, Any] = dict(zip(units, await asyncio.gather(*waiting, return_exceptions=True), strict=True))
        for each in found.values():
            if isinstance(each, BaseException) and not isinstance(each, OtptError):
                raise each
        return [found.get(i, each) for i, each in enumerate(files)]

    def _views(self, image: EncodedImage, logits: Tensor | None) -> dict[str, Any]:
        """All views as data URLs, the clean one first; the entropies of their zero-shot predictions; those selected."""
        unit: Unit = image.task.key
        preprocessing = self.catalogue.models[unit.job.query.model].preprocessing
        recipe = max(image.task.recipes, key=lambda each: each.n_views)
        with self._pixels.hold(unit.file.pixels):
            opened, digest = image.open()
            views = make_views(opened, recipe, preprocessing, seed=image.task.seed, image_id=digest)
        found: dict[str, Any] = {"images": data_urls(views, preprocessing), "entropies": None, "selected": []}
        if logits is not None:
            found["entropies"] = view_entropies(logits).tolist()
            found["selected"] = select_fraction(logits, _SELECTED).tolist()
        return found

    def _count(
        self, classes: str | None, query: Query, answers: Sequence[Answer | OtptError], seconds: Mapping[str, float]
    ) -> None:
        """Update the counters."""
        for part, value in seconds.items():
            self.metrics.parts.labels(part).observe(value)
        for answer in answers:
            outcome = "failed" if isinstance(answer, OtptError) else "answered"
            self.metrics.images.labels(query.model, outcome).inc()
            for name, own in {} if isinstance(answer, OtptError) else answer.predictions.items():
                self.metrics.predicted(classes, name, own.confidence)


def _content(answer: Answer | OtptError, query: Query, top: int) -> dict[str, Any]:
    """See :class:`otpt.serve.schemas.Compared`."""
    if isinstance(answer, OtptError):
        return unusable(answer, "image").content()
    return {"methods": {name: _result(each, query, top) for name, each in answer.predictions.items()}}


def _result(prediction: Prediction, query: Query, top: int) -> dict[str, Any]:
    """See :class:`otpt.serve.schemas.Result`."""
    extras = {name: float(value) if math.isfinite(value) else None for name, value in prediction.extras.items()}
    unknown_score = extras.pop("unknown_score", None)
    optional: dict[str, Any] = {"abstained": prediction.abstained, "rejected": prediction.rejected}
    if prediction.set is not None:
        optional["set"] = list(prediction.set)
    if query.settings.reject is not None:
        optional["unknown_score"] = unknown_score
    return {
        "label": prediction.label,
        "confidence": prediction.confidence,
        "index": prediction.index,
        "top": [{"label": label, "score": score} for label, score in prediction.top(top)],
        "flags": list(prediction.flags),
        "extras": extras,
        **{name: value for name, value in optional.items() if value is not None or name == "unknown_score"},
    }


async def _run(pool: Executor, work: Callable[..., _T], *arguments: Any, **options: Any) -> _T:
    return await asyncio.get_running_loop().run_in_executor(pool, partial(work, *arguments, **options))
