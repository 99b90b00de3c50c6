"""The service behind the HTTP interface: models, engine, catalogue, limits and counters."""

from __future__ import annotations

import asyncio
import base64
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import numpy as np
import numpy.typing as npt
from prometheus_client import Gauge
from pydantic import JsonValue
from torch import Tensor

from otpt.backbones import Backbone, load_backbone
from otpt.calibration import Calibration, read_calibration
from otpt.data.classes import ClassList, read_class_list
from otpt.errors import OtptError
from otpt.explain import HeatMap, crop_map
from otpt.features.pipeline import PixelBudget
from otpt.images import is_url, open_image, open_with_digest
from otpt.methods import Predictor
from otpt.objectives import select_fraction, view_entropies
from otpt.prediction import Prediction
from otpt.serve.admission import Admission, Turns
from otpt.serve.config import Limits, ServiceConfig, public_name, read_folder
from otpt.serve.engine import PARTS, Answer, Engine, Unit
from otpt.serve.errors import ErrorAnswer, RequestError, check_count, unavailable
from otpt.serve.images import ImageFile, data_url, decode_base64, fetch, thumbnails
from otpt.serve.metrics import Metrics
from otpt.serve.pools import run_in
from otpt.serve.queries import Catalogue, Query, served_method
from otpt.serve.schemas import (
    PIXEL,
    CompareAnswer,
    Compared,
    HeatMapAnswer,
    ImageRequest,
    Information,
    PredictRequest,
    Result,
    ViewsAnswer,
)
from otpt.serve.texts import TextPreparer
from otpt.threads import cancellable, make_pool
from otpt.views import make_views

_READERS = 4  # threads that read requests and headers of images
_FETCHERS, _FETCHES = 16, 8  # threads that fetch URLs, in all and per client
_SELECTED = 0.1  # fraction of views that TPT selects: 6 of 64
_log = logging.getLogger(__name__)


class AnsweringService(Protocol):
    """What the application needs: :class:`Service`, or the one in front of replicas (:mod:`otpt.serve.replicas`)."""

    limits: Limits
    metrics: Metrics

    def start(self) -> None:
        """Begin to answer."""

    def close(self) -> None:
        """Answer the accepted requests, then stop."""

    async def ready(self) -> bool:
        """Return whether requests are answered in time."""

    async def information(self) -> Information:
        """Return what requests can name, and the defaults."""

    async def answer(self, request: ImageRequest, images: Sequence[str | bytes], client: str = "") -> CompareAnswer:
        """Return the answer of ``/v1/compare``."""


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
        **options: object,
    ) -> None:
        config = ServiceConfig(**options)
        self.limits = config.limits
        method = served_method(config.method).name
        self.catalogue = Catalogue(
            models, method, config.views, config.seed, classes or {}, calibrations or {}
        ).with_groups(config.groups)
        self.metrics = Metrics()
        self.admission = Admission()
        self._turns = Turns()
        self.texts = TextPreparer(models, config.text_cache, self._turns, self.metrics)
        self._pixels = PixelBudget(self.limits.pixels)
        self.engine = Engine(models, config.threads, self._pixels, self.metrics)
        self._hosts = config.hosts
        size = Gauge("otpt_text_cache_bytes", "bytes of prepared class lists", registry=self.metrics.registry)
        size.set_function(lambda: self.texts.cache.size)
        self._warm_ups = self._default_queries()
        self._warm = self._closing = False
        self._readers = ThreadPoolExecutor(_READERS, "otpt-requests")
        self._fetchers = ThreadPoolExecutor(_FETCHERS, "otpt-fetch")
        self._explainer = make_pool(1, "otpt-heat-maps")

    @classmethod
    def from_config(cls, config: ServiceConfig) -> Service:
        """Read class lists and calibrations and load the models."""
        served_method(config.method)  # fail early
        classes = config.classes
        if not isinstance(classes, Mapping):
            classes = read_folder(classes, ".txt", read_class_list)
        calibrations = read_folder(config.calibrations, ".json", read_calibration)
        models = {
            name: load_backbone(spec, device=config.device, precision=config.precision, compile=config.compile)
            for name, spec in config.models.items()
        }
        loaded = {"models", "classes", "calibrations"}
        options = {name: getattr(config, name) for name in config.model_fields_set - loaded}
        return cls(models, classes=classes, calibrations=calibrations, **options)

    def _default_queries(self) -> list[Query]:
        """Return a query of each model with the defaults of the service."""
        queries = []
        try:
            for model in self.catalogue.models:
                labels = ["a", "b"] if self.catalogue.default is None else None
                request = PredictRequest.model_validate({"image": PIXEL, "labels": labels, "model": model})
                queries += self.catalogue.queries(request, 1, self.limits)
        except RequestError as error:
            raise OtptError(f"The limits refuse the service's own defaults: {error.detail}") from None
        return queries

    def start(self) -> None:
        """Start the threads and warm up each model with one image."""
        self.engine.start()
        self.texts.few.submit(self._warm_up)

    def _warm_up(self) -> None:
        file = ImageFile.read(base64.b64decode(PIXEL), self.limits.pixels)
        try:
            for query in self._warm_ups:
                unit = Unit(query, file)
                self.engine.submit([unit], self.texts.prepare_now(query))
                unit.future.result()
        except Exception:
            _log.exception("the warm-up failed")
        else:
            self._warm = True

    @property
    def is_ready(self) -> bool:
        """Whether every model has predicted once, and no accepted image waits longer than the limit."""
        return self._warm and not self._closing and self.engine.oldest() <= self.limits.seconds

    async def ready(self) -> bool:
        """Async form of :attr:`is_ready`, as called on replicas."""
        return self.is_ready

    async def information(self) -> Information:
        """Return the models, class lists and calibrations that requests can name, and the defaults."""
        catalogue = self.catalogue
        models: list[JsonValue] = [
            {
                "name": name,
                "backbone": public_name(backbone.name),
                "fingerprint": backbone.fingerprint,
                "device": backbone.device.type,
                "embed_dim": backbone.embed_dim,
                "image_size": backbone.preprocessing.size,
            }
            for name, backbone in catalogue.models.items()
        ]
        classes: list[JsonValue] = [
            {"name": name, "count": len(class_list), "labels": list(class_list.names[:20])}
            for name, class_list in catalogue.classes.items()
        ]
        calibrations: list[JsonValue] = [
            {
                "name": name,
                "method": calibration.method,
                "model": public_name(calibration.model),
                "labels": calibration.labels,
                "count": len(calibration.class_names),
            }
            for name, calibration in catalogue.calibrations.items()
        ]
        default = next(iter(catalogue.models))
        return {
            "models": {"default": default, "views": catalogue.views, "seed": catalogue.seed, "models": models},
            "classes": {
                "default": catalogue.default,
                "groups": None if catalogue.groups is None else dict(catalogue.groups),
                "classes": classes,
                "calibrations": calibrations,
            },
            "method": catalogue.method,
        }

    def close(self) -> None:
        """Stop accepting requests and answer the accepted ones within the time limit of a request."""
        self._closing = True
        self.engine.close(self.limits.seconds)
        self.texts.close()
        for pool in (self._readers, self._fetchers, self._explainer):
            pool.shutdown(wait=False, cancel_futures=True)

    async def answer(self, request: ImageRequest, images: Sequence[str | bytes], client: str = "") -> CompareAnswer:
        """Return the answer of ``/v1/compare``; the default method is used if none is named.

        Work stops when the answer is complete, on time-out (``TimeoutError``), or when the caller is cancelled. An
        unusable image fails a request with a single image; with several images it has its own error.
        """
        if self._closing:
            raise unavailable("closing", "The service is shutting down.")
        check_count("images", len(images), 1 if request.show_views or request.explain else self.limits.images)
        work = _Work(client)
        try:
            with self.admission.admit(client, len(images), self.limits):
                async with asyncio.timeout(self.limits.seconds):
                    await self._queue(work, request, images)
                    results = await self._results(work, request)
        finally:
            work.end()
        self.admission.note_answer(work.units[0].accepted, len(images))
        labels = [list(unit.query.task.classes) for unit in work.units]
        return {
            "model": work.units[0].query.model,
            "labels": labels if request.has_lists else labels[0],
            "results": results,
            "seconds": work.times(),
        }

    async def _queue(self, work: _Work, request: ImageRequest, images: Sequence[str | bytes]) -> None:
        """Read the request and its images, prepare the texts and hand the images to the engine."""
        queries = await run_in(self._readers, self.catalogue.queries, request, len(images), self.limits)
        scores = sum(min(request.top, len(query.task.classes)) for query in queries)
        check_count("scores", scores * len(queries[0].protocol.methods), self.limits.scores)
        fetched_by = work.begun + self.limits.seconds / 2
        for query, image in zip(queries, images, strict=True):
            file = await self._file(image, work.client, fetched_by)
            work.units.append(Unit(query, file, work.client, request.show_views, work.seconds))
        files_read = time.perf_counter()
        for key in dict.fromkeys(query.key for query in queries):  # release one list before the next
            units = [unit for unit in work.units if unit.query.key == key]
            predictor = await self.texts.prepare(units[0].query, work.client, work.has_ended)
            self.engine.submit(units, predictor)
            del predictor
        work.seconds["texts"] = time.perf_counter() - files_read

    async def _results(self, work: _Work, request: ImageRequest) -> list[Compared | ErrorAnswer]:
        """Wait for the engine and return the result of each image."""
        waiting = (asyncio.wrap_future(unit.future) for unit in work.units)
        answers = await asyncio.gather(*waiting, return_exceptions=True)
        queries = [unit.query for unit in work.units]
        compared = await run_in(self._readers, _results, queries, answers, request.top)
        first = compared[0]
        if request.show_views and "methods" in first:
            first["views"] = await run_in(self._readers, self._views, work.units[0])
        if request.explain and "methods" in first:
            first["heat_map"] = await self._explain(request.explain, work)
        return compared

    async def _file(self, image: str | bytes, client: str, fetched_by: float) -> ImageFile | OtptError:
        """Read an image file; decoding waits for its turn in the queue."""
        if isinstance(image, bytes):
            data = image
        elif is_url(image):
            async with self._turns.wait("fetch", client, _FETCHES):
                seconds = fetched_by - time.perf_counter()
                if seconds <= 0:
                    raise TimeoutError
                data = await run_in(
                    self._fetchers, fetch, image, self._hosts, max_bytes=self.limits.body, seconds=seconds
                )
        else:
            data = await run_in(self._readers, decode_base64, image)
        try:
            return await run_in(self._readers, ImageFile.read, data, self.limits.pixels)
        except OtptError as error:
            return error

    def _views(self, unit: Unit) -> ViewsAnswer:
        """Return the views as data URLs, entropies of their zero-shot predictions, and selected indices."""
        query, preprocessing = unit.query, self.catalogue.models[unit.query.model].preprocessing
        recipes = [query.protocol.recipe_for(method) for method in query.protocol.methods]
        shown = max((recipe for recipe in recipes if recipe is not None), key=lambda r: r.n_views, default=None)
        if shown is None:  # the method makes its own views
            return {"images": [], "entropies": None, "selected": []}
        with self._pixels.hold(unit.image.pixels):
            opened, digest = open_with_digest(unit.image.open())
            views = make_views(opened, shown, preprocessing, seed=query.protocol.seed, image_id=digest)
        answer: ViewsAnswer = {"images": thumbnails(views, preprocessing), "entropies": None, "selected": []}
        logits = unit.future.result().view_logits
        if logits is not None:
            answer["entropies"] = view_entropies(logits).tolist()
            answer["selected"] = select_fraction(logits, _SELECTED).tolist()
        return answer

    async def _explain(self, label: str | bool, work: _Work) -> HeatMapAnswer:
        """Return the heat map of a label; by default of the label that the first method predicts."""
        unit = work.units[0]
        predictor = await self.texts.prepare(unit.query.for_crops(), unit.client, work.has_ended)
        async with self._turns.wait("heat map", unit.client, 1):
            return await run_in(self._explainer, self._heat_map, label, unit, predictor, work.has_ended)

    def _heat_map(self, label: str | bool, unit: Unit, predictor: Predictor, stop: Callable[[], bool]) -> HeatMapAnswer:
        """Return the heat map of a label, computed by zero-shot.

        The confidence is that of the first requested method.
        """
        prediction = next(iter(unit.query.predictions(unit.future.result().outputs).values()))
        names = unit.query.task.classes
        shown = prediction.class_names.index(label) if isinstance(label, str) else prediction.index
        index = names.index(label) if isinstance(label, str) else unit.query.position(prediction.index)

        def probabilities(features: Tensor) -> npt.NDArray[np.float64]:
            outputs = predictor.of_features(features[:, None])
            return np.array([output.probabilities[index] for (output,) in outputs])

        with self._pixels.hold(unit.image.pixels), cancellable(stop):
            opened = open_image(unit.image.open())
            values = crop_map(self.catalogue.models[unit.query.model], opened, probabilities)
            heat_map = HeatMap(values, names[index], float(prediction.probabilities[shown]), opened)
            image = data_url(heat_map.layer(), "PNG")
        return {
            "label": heat_map.label,
            "confidence": heat_map.confidence,
            "image": image,
            "peak": list(heat_map.peak),
        }


class _Work:
    """Images of a request, from their arrival to the answer."""

    def __init__(self, client: str) -> None:
        self.client = client
        self.begun = time.perf_counter()
        self.units: list[Unit] = []
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self._ended = False

    def has_ended(self) -> bool:
        """Return whether the answer is complete, or no longer needed."""
        return self._ended

    def end(self) -> None:
        """Stop what is still computed."""
        self._ended = True
        for unit in self.units:
            unit.future.cancel()

    def times(self) -> dict[str, float]:
        """Return the seconds by part, and in all."""
        seconds = {**self.seconds, "total": time.perf_counter() - self.begun}
        return {part: round(value, 6) for part, value in seconds.items()}


def _results(
    queries: Sequence[Query], answers: Sequence[Answer | BaseException], top: int
) -> list[Compared | ErrorAnswer]:
    """Convert the answers of the engine; raise the error of a single image."""
    results: list[Compared | ErrorAnswer] = []
    for query, answer in zip(queries, answers, strict=True):
        if isinstance(answer, OtptError):
            error = RequestError(422, "image", str(answer))
            if len(answers) == 1:
                raise error
            results.append(error.content)
        elif isinstance(answer, BaseException):
            raise answer
        else:
            predictions = query.predictions(answer.outputs)
            by_method = {name: _result(prediction, query, top) for name, prediction in predictions.items()}
            results.append({"methods": by_method})
    return results


def _result(prediction: Prediction, query: Query, top: int) -> Result:
    """Convert a prediction to JSON; non-finite numbers become None."""
    extras = {name: float(value) for name, value in prediction.extras.items()}
    result: Result = {
        "label": prediction.label,
        "confidence": prediction.confidence,
        "index": int(prediction.index),
        "top": [{"label": label, "score": score} for label, score in prediction.top(top)],
        "flags": list(prediction.flags),
        "extras": {name: value if math.isfinite(value) else None for name, value in extras.items()},
    }
    if prediction.set is not None:
        result["set"] = list(prediction.set)
    if prediction.abstained is not None:
        result["abstained"] = bool(prediction.abstained)
    if prediction.rejected is not None:
        result["rejected"] = bool(prediction.rejected)
        result["unknown_score"] = result["extras"].pop("unknown_score")
    if query.task.independent_labels:
        result["labels_above"] = prediction.labels_above()
    if prediction.groups is not None:
        best = prediction.back_off()
        result["groups"] = prediction.groups
        result["back_off"] = None
        if best is not None:
            result["back_off"] = {"name": best.name, "confidence": best.confidence, "classes": best.classes}
    return result
