"""The application: routes over a :class:`otpt.serve.service.Service`.

app = create_app(Service({"pocket": load_backbone("pocket")}))
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
import logging
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Form, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer
from fastapi.staticfiles import StaticFiles
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartParser
from starlette.middleware.trustedhost import TrustedHostMiddleware

from otpt._version import __version__
from otpt.classifier import candidates
from otpt.data.emoji import load_emoji
from otpt.errors import OtptError
from otpt.methods import field_names, known_parts, published_names
from otpt.registry import AXES
from otpt.serve.errors import Json, RequestError, invalid_field
from otpt.serve.guard import Guard
from otpt.serve.queries import served_method
from otpt.serve.schemas import (
    BAD,
    FIELDS,
    CompareAnswer,
    CompareForm,
    CompareRequest,
    HubRequest,
    PredictAnswer,
    PredictForm,
    PredictRequest,
    Scored,
)
from otpt.serve.service import Service

PAGE = Path(__file__).parent / "page"
_log = logging.getLogger("otpt.serve")
_EXAMPLES = {"emoji/animals": (0, 1, 5, 17), "emoji/food": (0, 4, 12, 30), "emoji/travel": (40, 60)}
"""Set → positions of images that the page offers."""
_OFFERED = 8  # labels that come with an image
_VALUES = 200_000  # values of a JSON body: each takes about a hundred times its bytes
_KEYS = 100  # of a JSON object

MultiPartParser.spool_max_size = 1 << 40  # uploads stay in memory, which the guard limits; nothing is written to disk


def create_app(service: Any, *, token: str | None = None, names: Collection[str] | None = None) -> FastAPI:
    """Make the application.

    Args:
        service: a :class:`Service`, or :class:`otpt.serve.ray.RayService`; started and closed with the application.
        token: that requests must carry as ``Authorization: Bearer``; None for none.
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
    app.router.route_class = StrictRoute
    _add_information(app, service)
    _add_predictions(app, service)
    app.add_api_route("/", lambda: FileResponse(PAGE / "index.html"), include_in_schema=False)
    app.mount("/page", StaticFiles(directory=PAGE), name="page")
    _add_handlers(app)
    if names is not None:
        hosts = [f"[{each}]" if ":" in each else each for each in names]
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=hosts, www_redirect=False)
    app.add_middleware(Guard, limits=service.limits, metrics=service.metrics, token=token)
    return app


class StrictRoute(APIRoute):
    """Checks the content type before the body is parsed; JSON is parsed by :class:`_Request`."""

    def get_route_handler(self) -> Callable[[Request], Any]:
        """FastAPI's handler after these checks."""
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


class _Request(Request):
    """Refuses JSON with duplicate keys, of which readers take different ones, and with too many values."""

    async def json(self) -> Any:
        body = await self.body()
        if sum(map(body.count, (b",", b"[", b"{"))) > _VALUES:
            raise RequestError(400, "invalid-json", "The body has too many values.", expected=f"at most {_VALUES:,}")
        try:
            return json.loads(body, object_pairs_hook=_unique, parse_constant=_no_number)
        except (json.JSONDecodeError, RequestError):
            raise
        except (ValueError, RecursionError) as error:  # an encoding, a very long number, very deep nesting
            raise RequestError(400, "invalid-json", f"The body is not JSON: {error}"[:200]) from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(pairs) > _KEYS:
        raise RequestError(400, "invalid-json", f"A JSON object has {len(pairs):,} keys.", expected=f"at most {_KEYS}")
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in found if keys.count(key) > 1)
        raise RequestError(400, "duplicate-key", "A JSON object has a key twice.", given=twice[:60])
    return found


def _no_number(text: str) -> Any:
    raise RequestError(400, "invalid-json", f"{text} is not JSON.", given=text, expected="a finite number")


def _add_handlers(app: FastAPI) -> None:
    """Answer every error as JSON."""

    async def refused(request: Request, error: Any) -> Response:
        if not isinstance(error, RequestError):
            message = f"{request.method} {request.url.path[:200]}: {str(error.detail).rstrip('.')}."
            hint = "GET /openapi.json describes the routes."
            error = RequestError(error.status_code, "http", message, hint=hint, headers=error.headers)
        return error.response()

    async def invalid(_: Request, error: Any) -> Response:
        return invalid_field(error.errors()[0], FIELDS).response()

    async def unexpected(_: Request, error: Exception) -> Response:
        _log.error("a request failed", exc_info=error)
        return RequestError(500, "internal", "The service failed.", hint="Report it with the service's log.").response()

    app.add_exception_handler(HTTPException, refused)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(Exception, unexpected)


def _add_predictions(app: FastAPI, service: Service) -> None:
    async def compare(request: Request, asked: Any) -> dict[str, Any]:
        if isinstance(asked, (PredictForm, CompareForm)):
            images = [await each.read() for each in asked.image]
        else:
            images = asked.images or [asked.image]
        client = request.client.host[:100] if request.client else ""
        return await service.answer(asked.model_copy(update={"image": None, "images": None}), images, client)

    async def predict(request: Request, asked: Any) -> dict[str, Any]:
        found = await compare(request, asked)
        for i, each in enumerate(found["results"]):
            for name, result in each.get("methods", {}).items():
                found["method"], found["results"][i] = name, result
        return found

    def add(path: str, summary: str, model: Any, ask: Any, answer: Any) -> None:
        async def handle(request: Request, asked: Any) -> Response:
            return Json(await ask(request, asked))

        handle.__annotations__["asked"] = model
        app.post(path, summary=summary, response_model=answer, responses=BAD)(handle)

    predict_form, compare_form = (
        Annotated[each, Form(media_type="multipart/form-data")] for each in (PredictForm, CompareForm)
    )
    add("/v1/predict", "One method on one or many images", PredictRequest, predict, PredictAnswer)
    add("/v1/predict/form", "The same with file parts", predict_form, predict, PredictAnswer)
    add("/v1/compare", "Several methods on the same views", CompareRequest, compare, CompareAnswer)
    add("/v1/compare/form", "The same with file parts", compare_form, compare, CompareAnswer)

    async def classify(request: Request, asked: HubRequest, model: str | None = None) -> Response:
        listed = candidates(asked.parameters.candidate_labels, asked.parameters.hypothesis_template)
        assert listed is not None
        labels, template = listed
        image = asked.inputs if isinstance(asked.inputs, str) else asked.inputs.get("image", "")
        options: Any = {"labels": list(labels), "template": template, "model": model, "top": max(len(labels), 1)}
        found = await predict(request, PredictRequest(image=image, method=asked.parameters.method, **options))
        return Json(found["results"][0]["top"])

    shape: Any = {"response_model": list[Scored], "responses": BAD, "summary": "As Hugging Face's clients ask"}

    @app.post("/models/{model:path}", **shape)
    async def classify_by(request: Request, model: str, asked: HubRequest) -> Response:
        return await classify(request, asked, model[:200])

    @app.post("/", **shape)
    async def classify_default(request: Request, asked: HubRequest) -> Response:
        return await classify(request, asked)


def _add_information(app: FastAPI, service: Service) -> None:
    """Add routes about models, methods, class lists, examples, health and counters."""

    @app.get("/healthz", summary="Whether the process answers")
    async def healthz() -> dict[str, str]:
        return {"status": "alive"}

    not_ready: Any = {503: {"description": "not yet, stuck, or closing"}}

    @app.get("/readyz", summary="Whether the models are warm and requests are answered in time", responses=not_ready)
    async def readyz() -> Response:
        ready = await service.ready()
        return Json({"status": "ready" if ready else "not ready"}, 200 if ready else 503)

    @app.get("/metrics", summary="Counters in Prometheus' format", responses=BAD)
    async def metrics() -> Response:
        return Response(await service.counters(), media_type=CONTENT_TYPE_LATEST)

    @app.get("/v1/models", summary="Loaded models, default views and seed", responses=BAD)
    async def models() -> dict[str, Any]:
        return (await service.information())["models"]

    @app.get("/v1/classes", summary="Named class lists and calibrations", responses=BAD)
    async def classes() -> dict[str, Any]:
        return (await service.information())["classes"]

    @app.get("/v1/methods", summary="Methods, and the parts that names are made of", responses=BAD)
    async def methods() -> dict[str, Any]:
        return {"default": (await service.information())["method"], **await asyncio.to_thread(_methods)}

    @app.get("/v1/examples", summary="A few embedded images, if the extra emoji is installed", responses=BAD)
    def examples() -> dict[str, Any]:
        return {"examples": _examples()}


@cache
def _methods() -> dict[str, Any]:
    """Methods that are served, with one line each; and all parts, axis by axis."""
    found = []
    for name in (*published_names(), *field_names()):
        try:
            method = served_method(name)
        except OtptError:
            continue
        found.append({"name": name, "summary": method.summary, "caution": method.caution})
    parts = {
        axis: [{"name": each.name, "summary": each.summary} for each in known_parts().values() if each.axis == axis]
        for axis in AXES
    }
    return {"methods": found, "parts": parts}


@cache
def _examples() -> list[dict[str, Any]]:
    """Images with their label among its neighbours in the list, which are similar."""
    found = []
    try:
        for name, positions in _EXAMPLES.items():
            data = load_emoji(name)
            for position in positions:
                file, label = io.BytesIO(), data.label(position)
                data.image(position).save(file, "PNG")
                first = max(0, min(label - 3, len(data.class_names) - _OFFERED))
                labels = list(data.class_names[first : first + _OFFERED])
                image = base64.b64encode(file.getvalue()).decode("ascii")
                found.append({"label": data.class_names[label], "labels": labels, "image": image})
    except OtptError:  # the images are in another package, which is not installed
        return []
    return found
