"""The application: routes over a :class:`otpt.serve.service.Service`.

app = create_app(Service({"pocket": load_backbone("pocket")}))
"""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Depends, FastAPI, Form, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer
from fastapi.staticfiles import StaticFiles
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import JsonValue
from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException, MultiPartParser

from otpt._version import __version__
from otpt.backbones.sources import DRAWINGS, PHOTOGRAPHS
from otpt.classifier import candidates
from otpt.data import photograph
from otpt.data.emoji import EmojiSet, load_emoji
from otpt.data.photographs import PHOTOGRAPH_CLASSES
from otpt.errors import OtptError
from otpt.methods import field_names, known_parts, published_names
from otpt.registry import AXES
from otpt.serve.errors import Json, RequestError, invalid_field, read_json, unavailable
from otpt.serve.guard import Guard
from otpt.serve.images import data_url
from otpt.serve.queries import served_method
from otpt.serve.schemas import (
    BAD,
    FIELDS,
    REFUSED,
    REPEATED,
    CompareAnswer,
    CompareForm,
    CompareRequest,
    HubRequest,
    ImageRequest,
    PredictAnswer,
    PredictForm,
    PredictRequest,
    Scored,
)
from otpt.serve.service import AnsweringService

PAGE = Path(__file__).parent / "page"
_log = logging.getLogger(__name__)
_EXAMPLES = {"emoji/animals": (0, 1, 5, 17), "emoji/food": (0, 4, 12, 30), "emoji/travel": (40, 60)}
"""Set → positions of images that the page offers."""
_OFFERED = 8  # labels that come with an image


def create_app(service: AnsweringService, *, token: str | None = None, names: Collection[str] | None = None) -> FastAPI:
    """Make the application.

    Args:
        service: a :class:`Service`, or the one in front of replicas (:mod:`otpt.serve.replicas`); started and closed
            with the application.
        token: token that requests must carry as ``Authorization: Bearer``; None to require none.
        names: host names that requests may be for; None for any.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.start()
        yield
        await asyncio.to_thread(service.close)

    app = FastAPI(
        title="otpt",
        version=__version__,
        summary="Calibrated zero-shot image classification",
        docs_url=None,  # its scripts would come from the network
        redoc_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
        # the guard checks the token; this describes it in /openapi.json
        dependencies=[] if token is None else [Depends(HTTPBearer(auto_error=False))],
    )
    app.state.service = service
    app.include_router(_routes)
    app.add_api_route("/", lambda: FileResponse(PAGE / "index.html"), include_in_schema=False)
    app.mount("/page", StaticFiles(directory=PAGE), name="page")
    for kind in (HTTPException, RequestValidationError, OtptError, TimeoutError, Exception):
        app.add_exception_handler(kind, _refuse)
    app.add_middleware(Guard, limits=service.limits, metrics=service.metrics, token=token, names=names)
    return app


async def _refuse(request: Request, error: Exception) -> Response:
    """Convert an error to a JSON response."""
    if isinstance(error, RequestError):
        return error.response()
    if isinstance(error, HTTPException):
        message = f"{request.method} {request.url.path[:200]}: {str(error.detail).rstrip('.')}."
        hint = "GET /openapi.json describes the routes."
        return RequestError(error.status_code, "http", message, hint=hint, headers=error.headers).response()
    if isinstance(error, RequestValidationError):
        deepest = max(error.errors(), key=lambda detail: len(detail["loc"]))  # a field may have several types
        return invalid_field(deepest, FIELDS, REFUSED).response()
    if isinstance(error, OtptError):
        return RequestError(422, "unusable", str(error)).response()
    if isinstance(error, TimeoutError):
        seconds = request.app.state.service.limits.seconds
        return unavailable("time-out", f"The request was not answered within {seconds:g} s.").response()
    _log.error("a request failed", exc_info=error)
    return RequestError(500, "internal", "The service failed.", hint="Report it with the service's log.").response()


class StrictRoute(APIRoute):
    """Route that checks the content type before parsing the body; :class:`_Request` parses JSON."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[None, None, Response]]:
        """Return FastAPI's handler, preceded by these checks."""
        handler = super().get_route_handler()
        expected = "multipart/form-data" if self.path.endswith("/form") else "application/json"

        async def handle(request: Request) -> Response:
            kind, _, parameters = request.headers.get("content-type", "").lower().partition(";")
            if request.method == "POST" and (kind.strip() != expected or len(parameters) > 200):
                message = "The route takes another content type."
                hint = "/v1/… takes JSON with images in base64, /v1/…/form a form with file parts 'image'."
                raise RequestError(415, "content-type", message, given=kind[:100], expected=expected, hint=hint)
            if "charset" in parameters and "utf-8" not in parameters:  # some of Python's decoders take quadratic time
                raise RequestError(415, "charset", "The body has another charset.", expected="utf-8")
            return await handler(_Request(request.scope, request.receive))

        return handle


class _FormParser(MultiPartParser):
    """Parser that keeps uploads in memory, which the guard limits; nothing is written to disk."""

    spool_max_size = 1 << 40


class _Request(Request):
    """A request whose JSON is read strictly and whose files stay in memory."""

    async def json(self) -> JsonValue:
        return read_json(await self.body())

    async def form(self, **_: object) -> FormData:  # type: ignore[override]  # FastAPI awaits it
        try:
            form = await _FormParser(self.headers, self.stream()).parse()
        except MultiPartException as error:
            raise HTTPException(400, error.message) from None
        names = [name for name, _ in form.multi_items()]
        for name in dict.fromkeys(names):
            if name not in REPEATED and names.count(name) > 1:
                message = f"The form has the field {name[:60]!r} {names.count(name)} times."
                raise RequestError(400, "duplicate-field", message, given=name[:60], expected="each field once")
        return form


_routes = APIRouter(route_class=StrictRoute, responses=BAD)


def _service(request: Request) -> AnsweringService:
    service: AnsweringService = request.app.state.service
    return service


Serving = Annotated[AnsweringService, Depends(_service)]
FORM = Form(media_type="multipart/form-data")


@_routes.get("/healthz", summary="Liveness")
async def healthz() -> dict[str, str]:
    """Return 200 while the process runs."""
    return {"status": "alive"}


@_routes.get("/readyz", summary="Readiness: models are warm and requests are answered in time")
async def readyz(service: Serving) -> Response:
    """Return 200, or 503 during warm-up, if stuck, or while shutting down."""
    ready = await service.ready()
    return Json({"status": "ready" if ready else "not ready"}, 200 if ready else 503)


@_routes.get("/metrics", summary="Counters in Prometheus' format")
async def metrics(service: Serving) -> Response:
    """Return the counters of :class:`otpt.serve.metrics.Metrics`."""
    return Response(await service.exposition(), media_type=CONTENT_TYPE_LATEST)


@_routes.get("/v1/models", summary="Loaded models, default views and seed")
async def models(service: Serving) -> dict[str, JsonValue]:
    """List values of the field ``model``."""
    return (await service.information())["models"]


@_routes.get("/v1/classes", summary="Named class lists and calibrations")
async def classes(service: Serving) -> dict[str, JsonValue]:
    """List values of the fields ``classes`` and ``calibration``."""
    return (await service.information())["classes"]


@_routes.get("/v1/methods", summary="Methods, and the parts that names are made of")
async def methods(service: Serving) -> dict[str, JsonValue]:
    """List values of the fields ``method`` and ``methods``."""
    return {"default": (await service.information())["method"], **await asyncio.to_thread(_methods)}


@_routes.get("/v1/examples", summary="A few embedded images: photographs, and drawings if the extra emoji is installed")
def examples() -> dict[str, JsonValue]:
    """List the images that the page offers."""
    return {"examples": _examples()}


@_routes.post("/v1/compare", summary="Several methods on the same views", response_model=CompareAnswer)
async def compare(request: Request, body: CompareRequest) -> Response:
    """Take images as base64 or data URLs."""
    return Json(await _compare(request, body))


@_routes.post("/v1/compare/form", summary="The same with file parts", response_model=CompareAnswer)
async def compare_form(request: Request, body: Annotated[CompareForm, FORM]) -> Response:
    """Take images as file parts."""
    return Json(await _compare(request, body))


@_routes.post("/v1/predict", summary="One method on one or many images", response_model=PredictAnswer)
async def predict(request: Request, body: PredictRequest) -> Response:
    """Take images as base64 or data URLs."""
    return Json(await _predict(request, body))


@_routes.post("/v1/predict/form", summary="The same with file parts", response_model=PredictAnswer)
async def predict_form(request: Request, body: Annotated[PredictForm, FORM]) -> Response:
    """Take images as file parts."""
    return Json(await _predict(request, body))


@_routes.post("/", summary="As Hugging Face's clients ask", response_model=list[Scored])
@_routes.post("/models/{model:path}", summary="As Hugging Face's clients ask", response_model=list[Scored])
async def classify(request: Request, body: HubRequest, model: str = "") -> Response:
    """Answer in the format of Hugging Face's zero-shot image classification."""
    parameters = body.parameters
    labels, template = parameters.candidate_labels, parameters.hypothesis_template
    names = candidates(labels)
    values = {
        "image": body.inputs if isinstance(body.inputs, str) else body.inputs.get("image", ""),
        "labels": list(names),
        "prompt": template,
        "model": model[:200] or None,
        "method": parameters.method,
        "top": len(names),
    }
    answer = await _predict(request, PredictRequest.model_validate(values))
    (result,) = answer["results"]
    assert "top" in result  # a single image that cannot be used raises
    return Json(result["top"])


async def _compare(request: Request, body: ImageRequest) -> CompareAnswer:
    service = _service(request)
    images = await body.files()
    client = request.client.host[:100] if request.client else ""
    service.metrics.queue.inc(len(images))
    try:
        without_images = body.model_copy(update={"image": None, "images": None})
        answer = await service.answer(without_images, images, client)
    finally:
        service.metrics.queue.dec(len(images))
    classes = body.classes
    if body.labels is None and classes is None:
        classes = str((await service.information())["classes"]["default"])
    service.metrics.count(classes, answer)
    return answer


async def _predict(request: Request, body: ImageRequest) -> PredictAnswer:
    """Return an answer of ``/v1/compare`` to one method in the format of ``/v1/predict``."""
    compared = await _compare(request, body)
    answer: PredictAnswer = {
        "model": compared["model"],
        "labels": compared["labels"],
        "results": [],
        "seconds": compared["seconds"],
    }
    for image in compared["results"]:
        if "error" in image:
            answer["results"].append(image)
            continue
        ((name, result),) = image["methods"].items()
        if "heat_map" in image:
            result["heat_map"] = image["heat_map"]
        answer["method"] = name
        answer["results"].append(result)
    return answer


@cache
def _methods() -> dict[str, JsonValue]:
    """Return the served methods with a one-line summary, and all parts by axis."""
    served: list[JsonValue] = []
    for name in (*published_names(), *field_names()):
        try:
            method = served_method(name)
        except OtptError:
            continue
        served.append({"name": name, "summary": method.summary, "caution": method.caution})
    parts: dict[str, JsonValue] = {}
    for axis in AXES:
        of_axis = [part for part in known_parts().values() if part.axis == axis]
        parts[axis] = [{"name": part.name, "summary": part.summary} for part in of_axis]
    return {"methods": served, "parts": parts}


@cache
def _examples() -> list[JsonValue]:
    """Return example images, each with its label among others, and the embedded model that knows it."""
    images: list[JsonValue] = []
    for name, classes in PHOTOGRAPH_CLASSES.items():
        image = base64.b64encode(photograph(name).read_bytes()).decode()
        images.append({"label": classes[0], "labels": list(classes), "image": image, "model": PHOTOGRAPHS})
    with suppress(OtptError):  # the drawings are in another package, which may not be installed
        for name, positions in _EXAMPLES.items():
            images += _examples_of(load_emoji(name), positions)
    return images


def _examples_of(dataset: EmojiSet, positions: Sequence[int]) -> list[JsonValue]:
    """Return drawings with the labels next to theirs in the class list, which are similar."""
    images: list[JsonValue] = []
    for position in positions:
        label = dataset.label(position)
        first = max(0, min(label - 3, len(dataset.class_names) - _OFFERED))
        labels: list[JsonValue] = list(dataset.class_names[first : first + _OFFERED])
        image = data_url(dataset.image(position), "PNG").partition(",")[2]
        images.append({"label": dataset.class_names[label], "labels": labels, "image": image, "model": DRAWINGS})
    return images
