"""The service behind the HTTP interface: models, engine, catalogue, limits and counters."""

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

import numpy as np
from prometheus_client import Gauge
from torch import Tensor

from otpt.backbones import Backbone, load_backbone
from otpt.calibration import Calibration, read_calibration
from otpt.data.classes import ClassList, read_class_list
from otpt.errors import OtptError
from otpt.explain import HeatMap, crop_map
from otpt.features.pipeline import PixelBudget
from otpt.images import is_url, open_image, open_with_digest
from otpt.methods import Predictor, check_fit, recipe_for
from otpt.objectives import select_fraction, view_entropies
from otpt.prediction import Prediction
from otpt.serve.config import ServiceConfig, read_folder
from otpt.serve.engine import PARTS, Engine, TextCache, Unit
from otpt.serve.errors import RequestError, busy, check_count, unavailable
from otpt.serve.images import ImageFile, data_url, decode_base64, fetch, thumbnails
from otpt.serve.metrics import Metrics
from otpt.serve.queries import Catalogue, Query, served_method
from otpt.serve.schemas import PIXEL, Asked, PredictRequest
from otpt.settings import MULTI_LABEL
from otpt.threads import cancellable, make_pool
from otpt.views import make_views

_READERS = 4  # threads that read requests and headers of images
_FETCHERS, _FETCHES = 16, 8  # threads that fetch URLs, in all and per client
_ALWAYS = 8  # images accepted regardless of the estimated wait
_FEW_TEXTS = 256  # lists up to this length do not wait for longer ones
_SELECTED = 0.1  # fraction of views that TPT selects: 6 of 64
_ELSEWHERE = {"probabilities", "class_names", "method"}  # fields of a prediction that results omit

_T = TypeVar("_T")
_log = logging.getLogger("otpt.serve")


class Service:
    """Answer the queries of many clients.

    Args:
        models: backbones by name, the default first.
        classes: class lists by name.
        calibrations: calibrations by name.
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
        self._texts = TextCache(config.text_cache, self.metrics)
        self._pixels = PixelBudget(self.limits.pixels)
        self._engine = Engine(models, config.threads, self._pixels, self.metrics)
        self._in_progress: Counter[str] = Counter()  # images by client
        size = Gauge("otpt_text_cache_bytes", "bytes of prepared class lists", registry=self.metrics.registry)
        size.set_function(lambda: self._texts.size)
        try:
            defaults = [PredictRequest(image=PIXEL, labels=["a", "b"], model=each) for each in models]
            self._warm_ups = [self.catalogue.queries(each, 1, self.limits)[0] for each in defaults]
        except RequestError as error:
            raise OtptError(f"The limits refuse the service's own defaults: {error.detail}") from None
        self._warm = self._closing = False
        self._rate, self._finished = 0.1, 0.0  # seconds per image, a moving average; when the last one was answered
        self._readers = ThreadPoolExecutor(_READERS, "otpt-requests")
        self._fetchers = ThreadPoolExecutor(_FETCHERS, "otpt-fetch")
        self._encoders = make_pool(1, "otpt-texts"), make_pool(1, "otpt-many-texts")
        self._explainer = make_pool(1, "otpt-heat-maps")
        self._turns: WeakValueDictionary[Hashable, asyncio.Semaphore] = WeakValueDictionary()

    @classmethod
    def from_config(cls, config: ServiceConfig) -> Service:
        """Read class lists and calibrations and load the models."""
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

    def start(self) -> None:
        """Start the threads and warm up each model with one image."""
        self._engine.start()
        self._encoders[0].submit(self._warm_up)

    def _warm_up(self) -> None:
        file = ImageFile.read(base64.b64decode(PIXEL), self.limits.pixels)
        try:
            for query in self._warm_ups:
                unit = Unit(query, file)
                self._engine.submit([unit], self._texts.prepare(query.key, partial(self._predictor, query)))
                unit.future.result()
        except Exception:
            _log.exception("the warm-up failed")
        else:
            self._warm = True

    @property
    def is_ready(self) -> bool:
        """Whether every model has predicted once, and no accepted image waits longer than the limit."""
        return self._warm and not self._closing and self._engine.oldest() <= self.limits.seconds

    async def ready(self) -> bool:
        """Async form of :attr:`is_ready`, as called on replicas."""
        return self.is_ready

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
        """Stop accepting requests and answer the accepted ones within the time limit of a request."""
        self._closing = True
        self._engine.close(self.limits.seconds)
        for pool in (self._readers, self._fetchers, self._explainer, *self._encoders):
            pool.shutdown(wait=False, cancel_futures=True)

    async def answer(self, asked: Asked, images: Sequence[str | bytes], client: str = "") -> dict[str, Any]:
        """Return the JSON of ``/v1/compare``; the default method is used if none is named.

        Work stops when the answer is complete, on time-out (``TimeoutError``), or when the caller is cancelled. An
        unusable image fails a request with a single image; with several images it has its own error.
        """
        begun, finished = time.perf_counter(), False
        if self._closing:
            raise unavailable("closing", "The service is shutting down.")
        check_count("images", len(images), 1 if asked.show_views or asked.explain else self.limits.images)
        seconds = dict.fromkeys(PARTS, 0.0)
        units: list[Unit] = []
        try:
            with self._admitted(client, len(images)):
                async with asyncio.timeout(self.limits.seconds):
                    queries = await _run(self._readers, self.catalogue.queries, asked, len(images), self.limits)
                    scores = sum(min(asked.top, len(each.settings.classes)) for each in queries)
                    check_count("scores", scores * len(queries[0].settings.methods), self.limits.scores)
                    deadline = begun + self.limits.seconds / 2
                    for own, image in zip(queries, images, strict=True):
                        file = await self._file(image, client, deadline)
                        units.append(Unit(own, file, client, asked.show_views, seconds))
                    read = time.perf_counter()
                    for key in dict.fromkeys(own.key for own in queries):  # release one list before the next
                        alike = [unit for unit in units if unit.query.key == key]
                        predictor = await self._prepare(alike[0].query, client, lambda: finished)
                        self._engine.submit(alike, predictor)
                        del predictor
                    seconds["texts"] = time.perf_counter() - read
                    waiting = (asyncio.wrap_future(unit.future) for unit in units)
                    answers = await asyncio.gather(*waiting, return_exceptions=True)
                    results = await _run(self._readers, _results, asked, queries, answers)
                    if asked.show_views:
                        results[0]["views"] = await _run(self._readers, self._views, units[0])
                    if asked.explain:
                        results[0]["heat_map"] = await self._explain(asked.explain, units[0], lambda: finished)
        finally:
            finished = True
            for unit in units:
                unit.future.cancel()
        now = time.perf_counter()
        self._rate += 0.3 * ((now - max(self._finished, units[0].accepted)) / len(images) - self._rate)
        self._finished = now
        labels = [list(each.settings.classes) for each in queries]
        return {
            "model": queries[0].model,
            "labels": labels if asked.labels and isinstance(asked.labels[0], list) else labels[0],
            "results": results,
            "seconds": {part: round(value, 6) for part, value in {**seconds, "total": now - begun}.items()},
        }

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
        """Bound the concurrent work of one client so that others do not wait for all of it."""
        key = (asyncio.get_running_loop(), what, client)
        turn = self._turns[key] = self._turns.get(key) or asyncio.Semaphore(at_once)
        async with turn:
            yield

    async def _file(self, given: str | bytes, client: str, fetched_by: float) -> ImageFile | OtptError:
        """Read an image file; decoding waits for its turn in the queue."""
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
        """Prepare the texts of a query; long lists have a thread of their own, so that short ones do not wait."""
        found = self._texts.find(query.key)
        if found is not None:
            return found
        many = query.texts > _FEW_TEXTS
        async with self._turn(f"texts {many}", client, 1):
            make = partial(self._predictor, query)
            return await _run(self._encoders[many], self._texts.prepare, query.key, make, stop)

    def _predictor(self, query: Query) -> Predictor:
        backbone, settings = self.catalogue.models[query.model], query.settings
        check_fit(backbone, settings, settings.methods)
        return Predictor(backbone, settings, settings.methods)

    def _views(self, unit: Unit) -> dict[str, Any]:
        """Views as data URLs, the clean one first, entropies of their zero-shot predictions, and selected indices."""
        settings, preprocessing = unit.query.settings, self.catalogue.models[unit.query.model].preprocessing
        found: dict[str, Any] = {"images": [], "entropies": None, "selected": []}
        recipes = [each for method in settings.methods if (each := recipe_for(settings, method)) is not None]
        if not recipes:  # the method makes its own views
            return found
        recipe = max(recipes, key=lambda each: each.n_views)
        with self._pixels.hold(unit.file.pixels):
            opened, digest = open_with_digest(unit.file.open())
            views = make_views(opened, recipe, preprocessing, seed=settings.seed, image_id=digest)
        found["images"] = thumbnails(views, preprocessing)
        if (logits := unit.future.result().view_logits) is not None:
            found["entropies"] = view_entropies(logits).tolist()
            found["selected"] = select_fraction(logits, _SELECTED).tolist()
        return found

    async def _explain(self, label: str | bool, unit: Unit, stop: Callable[[], bool]) -> dict[str, Any]:
        """Heat map of a label; by default of the label that the first method predicts."""
        predictor = await self._prepare(unit.query.for_crops(), unit.client, stop)
        async with self._turn("heat map", unit.client, 1):
            return await _run(self._explainer, self._heat_map, label, unit, predictor, stop)

    def _heat_map(
        self, label: str | bool, unit: Unit, predictor: Predictor, stop: Callable[[], bool]
    ) -> dict[str, Any]:
        """Heat map by the zero-shot ``predictor``, with the confidence of the first method."""
        first = next(iter(unit.query.predictions(unit.future.result().outputs).values()))
        index = first.class_names.index(label) if isinstance(label, str) else first.index

        def probabilities(features: Tensor) -> Any:
            return np.array([each.probabilities[index] for (each,) in predictor.of_features(features[:, None])])

        with self._pixels.hold(unit.file.pixels), cancellable(stop):
            opened = open_image(unit.file.open())
            values = crop_map(self.catalogue.models[unit.query.model], opened, probabilities)
            found = HeatMap(values, first.class_names[index], float(first.probabilities[index]), opened)
            image = data_url(found.layer(), "PNG")
        return {"label": found.label, "confidence": found.confidence, "image": image, "peak": list(found.peak)}


def _results(asked: Asked, queries: Sequence[Query], answers: Sequence[Any]) -> list[dict[str, Any]]:
    """Convert answers to results (:class:`otpt.serve.schemas.Compared`)."""
    results: list[dict[str, Any]] = []
    for query, answer in zip(queries, answers, strict=True):
        if isinstance(answer, OtptError):
            error = RequestError(422, "image", str(answer))
            if len(answers) == 1:
                raise error
            results.append(error.content)
        elif isinstance(answer, BaseException):
            raise answer
        else:
            own = query.predictions(answer.outputs).items()
            results.append({"methods": {name: _result(each, asked) for name, each in own}})
    return results


def _result(prediction: Prediction, asked: Asked) -> dict[str, Any]:
    """Convert a prediction to a :class:`otpt.serve.schemas.Result`."""
    given = prediction.to_dict()
    found: dict[str, Any] = {
        name: value for name, value in given.items() if value is not None and name not in _ELSEWHERE
    }
    found["top"] = [{"label": label, "score": score} for label, score in prediction.top(asked.top)]
    if prediction.rejected is not None:
        found["unknown_score"] = found["extras"].pop("unknown_score")
    if prediction.method == MULTI_LABEL:
        found["labels_above"] = prediction.labels_above(asked.threshold)
    if prediction.grouping is not None:
        best = prediction.back_off(asked.threshold)
        found["back_off"] = None if best is None else best._asdict()
    return found


async def _run(pool: Executor, work: Callable[..., _T], *arguments: Any, **options: Any) -> _T:
    return await asyncio.get_running_loop().run_in_executor(pool, partial(work, *arguments, **options))
