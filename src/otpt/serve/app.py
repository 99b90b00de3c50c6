"""The application: routes over a :class:`otpt.serve.service.Service`.

app = create_app(Service({"pocket": load_backbone("pocket")}))
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
import logging
import math
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Form, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartParser
from starlette.middleware.trustedhost import TrustedHostMiddleware

from otpt._version import __version__
from otpt.classifier import candidates
from otpt.data.emoji import load_emoji
from otpt.errors import OtptError
from otpt.methods import field_names, known_parts, published_names
from otpt.prediction import Prediction
from otpt.registry import AXES
from otpt.serve.engine import Answer
from otpt.serve.errors import RequestError, invalid_field, unusable_image
from otpt.serve.guard import Guard
from otpt.serve.metrics import TYPE
from otpt.serve.queries import Query, served_method
from otpt.serve.schemas import (
    BAD,
    FIELDS,
    CompareAnswer,
    CompareForm,
    CompareRequest,
    HubRequest,
    JsonOptions,
    Options,
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

MultiPartParser.spool_max_size = 1 << 40  # uploads stay in memory, which the guard limits; nothing is written to disk


def create_app(
    service: Service,
    *,
    token: str | None = None,
    names: Collection[str] | None = None,
    page: Path = PAGE,
    guarded: bool = True,
) -> FastAPI:
    """Make the application.

    Args:
        service: is started and closed with the application.
        token: that requests must carry as ``Authorization: Bearer``; None for none.
        names: host names that requests may be for; None for any.
        page: folder of the page at ``/``, if it has an ``index.html``.
        guarded: False behind a proxy that checks token, names, size and time itself (:mod:`otpt.serve.proxy`).
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.start()
        yield
        await asyncio.get_running_loop().run_in_executor(None, service.close)

    app = FastAPI(
        title="otpt",
        version=__version__,
        summary="Calibrated zero-shot image classification",
        docs_url=None,  # its scripts would come from the network
        redoc_url=None,
        lifespan=lifespan,
        # the guard checks the token; this describes it in /openapi.json
        dependencies=[] if token is None else [Depends(HTTPBearer(auto_error=False))],
    )
    app.router.route_class = UniqueKeysRoute
    _add_information(app, service)
    _add_predictions(app, service)
    if (page / "index.html").is_file():

        async def index() -> FileResponse:
            return FileResponse(page / "index.html")

        app.add_api_route("/", index, methods=["GET", "HEAD"], include_in_schema=False)
        app.mount("/page", StaticFiles(directory=page), name="page")
    _add_handlers(app)
    if guarded:
        add_guard(app, service.limits, service.metrics, token, names)
    return app


def add_guard(app: Any, limits: Any, metrics: Any, token: str | None, names: Collection[str] | None) -> None:
    """Add the middleware of every request."""
    if names is not None:
        hosts = [f"[{each}]" if ":" in each else each for each in names]
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=hosts, www_redirect=False)
    app.add_middleware(Guard, limits=limits, metrics=metrics, token=token)


class UniqueKeysRoute(APIRoute):
    """Refuses JSON with duplicate keys, of which readers take different ones."""

    def get_route_handler(self) -> Callable[[Request], Any]:
        """The handler with :class:`_Request` in place of FastAPI's request."""
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            return await handler(_Request(request.scope, request.receive))

        return handle


class _Request(Request):
    async def json(self) -> Any:
        try:
            return json.loads(await self.body(), object_pairs_hook=_unique, parse_constant=_no_number)
        except (json.JSONDecodeError, RequestError):
            raise
        except (ValueError, RecursionError) as error:  # an encoding, a very long number, very deep nesting
            raise RequestError(400, "invalid-json", f"The body is not JSON: {error}"[:200]) from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(key for i, (key, _) in enumerate(pairs) if key in dict(pairs[:i]))
        raise RequestError(400, "duplicate-key", "A JSON object has a key twice.", given=twice[:60])
    return found


def _no_number(text: str) -> Any:
    raise RequestError(400, "invalid-json", f"{text} is not JSON.", given=text, expected="a finite number")


def _content_type(expected: str) -> Any:
    """A dependency that answers 415 to other content types."""

    def check(request: Request) -> None:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != expected:
            message = "The route takes another content type."
            hint = "/v1/… takes JSON with images in base64, /v1/…/form a form with file parts 'image'."
            raise RequestError(415, "content-type", message, given=kind[:100], expected=expected, hint=hint)

    return Depends(check)


def _add_handlers(app: FastAPI) -> None:
    """Answer every error as JSON."""

    async def refused(_: Request, error: Any) -> JSONResponse:
        return error.response()  # type: ignore[no-any-return]

    async def invalid(_: Request, error: Any) -> JSONResponse:
        return invalid_field(error.errors()[0], FIELDS).response()

    async def other(request: Request, error: Any) -> JSONResponse:
        message = f"{request.method} {request.url.path[:200]}: {str(error.detail).rstrip('.')}."
        hint = "GET /openapi.json describes the routes."
        return RequestError(error.status_code, "http", message, hint=hint, headers=error.headers).response()

    async def unexpected(_: Request, error: Exception) -> JSONResponse:
        _log.error("a request failed", exc_info=error)
        hint = "Report it with the service's log."
        return RequestError(500, "internal", "The service failed.", hint=hint).response()

    app.add_exception_handler(RequestError, refused)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, other)
    app.add_exception_handler(Exception, unexpected)


def _add_predictions(app: FastAPI, service: Service) -> None:
    default = service.catalogue.method

    async def predict(request: Request, asked: PredictRequest | PredictForm) -> Any:
        method = default if asked.method is None else asked.method
        query, answers, seconds = await service.answer(asked, [method], await _images(asked), client=_client(request))
        results = _results(answers, lambda each: _only_result(query, each, asked.top))
        head = {"model": query.model, "method": query.methods[0].name, "labels": list(query.settings.classes)}
        return JSONResponse({**head, "results": results, "seconds": _rounded(seconds)})

    async def compare(request: Request, asked: CompareRequest | CompareForm) -> Any:
        query, answers, seconds = await service.answer(
            asked, asked.methods, await _images(asked), show_views=asked.show_views, client=_client(request)
        )
        results = _results(answers, lambda each: _all_results(query, each, asked.top))
        head = {"model": query.model, "labels": list(query.settings.classes)}
        return JSONResponse({**head, "results": results, "seconds": _rounded(seconds)})

    json_only, form_only = [_content_type("application/json")], [_content_type("multipart/form-data")]
    predicts: dict[str, Any] = {"response_model": PredictAnswer, "responses": BAD}
    compares: dict[str, Any] = {"response_model": CompareAnswer, "responses": BAD}

    @app.post("/v1/predict", **predicts, dependencies=json_only, summary="One method on one or many images")
    async def predict_json(request: Request, asked: PredictRequest) -> Any:
        return await predict(request, asked)

    @app.post("/v1/predict/form", **predicts, dependencies=form_only, summary="The same with file parts")
    async def predict_form(
        request: Request, asked: Annotated[PredictForm, Form(media_type="multipart/form-data")]
    ) -> Any:
        return await predict(request, asked)

    @app.post("/v1/compare", **compares, dependencies=json_only, summary="Several methods on the same views")
    async def compare_json(request: Request, asked: CompareRequest) -> Any:
        return await compare(request, asked)

    @app.post("/v1/compare/form", **compares, dependencies=form_only, summary="The same with file parts")
    async def compare_form(
        request: Request, asked: Annotated[CompareForm, Form(media_type="multipart/form-data")]
    ) -> Any:
        return await compare(request, asked)

    async def classify(request: Request, model: str | None, asked: HubRequest) -> Any:
        given, image = asked.parameters, asked.inputs if isinstance(asked.inputs, str) else asked.inputs.image
        listed = candidates(given.candidate_labels, given.hypothesis_template)
        assert listed is not None
        fields = Options(labels=list(listed[0]), template=listed[1], model=model)
        method = default if given.method is None else given.method
        _, answers, _ = await service.answer(fields, [method], [image], client=_client(request))
        (scores,) = _results(answers, _scores)
        return JSONResponse(scores)

    shape: dict[str, Any] = {
        "response_model": list[Scored],
        "responses": BAD,
        "summary": "Zero-shot image classification in the shape of Hugging Face's clients",
    }

    @app.post("/models/{model:path}", **shape)
    async def classify_by(request: Request, model: str, asked: HubRequest) -> Any:
        return await classify(request, model, asked)

    @app.post("/", **shape)
    async def classify_default(request: Request, asked: HubRequest) -> Any:
        return await classify(request, None, asked)


def _client(request: Request) -> str:
    return request.client.host if request.client else ""


async def _images(asked: PredictRequest | PredictForm | CompareRequest | CompareForm) -> Sequence[str | bytes]:
    if not isinstance(asked, JsonOptions):
        return [await each.read() for each in asked.image]
    if asked.image is not None and asked.images is not None:
        raise RequestError(422, "image-twice", "Both image and images were given.", expected="one of them")
    return asked.images or ([] if asked.image is None else [asked.image])


def _results(answers: Sequence[Answer | OtptError], show: Callable[[Answer], Any]) -> list[Any]:
    """A result for each image; the error of a single image is that of the request, of several each has its own."""
    if len(answers) == 1 and isinstance(answers[0], OtptError):
        raise unusable_image(answers[0])
    return [unusable_image(each).content() if isinstance(each, OtptError) else show(each) for each in answers]


def _result(query: Query, prediction: Prediction, top: int) -> dict[str, Any]:
    """See :class:`otpt.serve.schemas.Result`."""
    extras = {name: _finite(value) for name, value in prediction.extras.items() if name != "unknown_score"}
    found: dict[str, Any] = {
        "label": prediction.label,
        "confidence": prediction.confidence,
        "index": prediction.index,
        "top": [{"label": label, "score": score} for label, score in prediction.top(top)],
        "flags": list(prediction.flags),
        "extras": extras,
    }
    if prediction.set is not None:
        found["set"] = list(prediction.set)
    if prediction.abstained is not None:
        found["abstained"] = prediction.abstained
    if query.settings.reject is not None:
        found |= {"rejected": prediction.rejected, "unknown_score": _finite(prediction.unknown_score)}
    return found


def _only_result(query: Query, answer: Answer, top: int) -> dict[str, Any]:
    (only,) = answer.predictions.values()
    return _result(query, only, top)


def _all_results(query: Query, answer: Answer, top: int) -> dict[str, Any]:
    found = {name: _result(query, each, top) for name, each in answer.predictions.items()}
    return {"methods": found, **({} if answer.views is None else {"views": answer.views})}


def _scores(answer: Answer) -> list[dict[str, Any]]:
    """All labels, the most probable first."""
    (only,) = answer.predictions.values()
    return [{"label": label, "score": score} for label, score in only.top(len(only))]


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _rounded(seconds: Mapping[str, float]) -> dict[str, float]:
    return {part: round(value, 6) for part, value in seconds.items()}


def _add_information(app: FastAPI, service: Service) -> None:
    """Add routes about models, methods, class lists, examples, health and counters."""
    catalogue = service.catalogue

    async def healthz() -> dict[str, str]:
        return {"status": "alive"}

    async def readyz() -> Response:
        return JSONResponse({"status": "ready" if service.ready else "not ready"}, 200 if service.ready else 503)

    async def metrics() -> Response:
        return Response(service.metrics.text(), media_type=TYPE)

    not_ready: dict[int | str, dict[str, Any]] = {503: {"description": "not yet, stuck, or closing"}}
    for route, responses, summary in (
        (healthz, {}, "Whether the process answers"),
        (readyz, not_ready, "Whether the models are warm and requests are answered in time"),
        (metrics, BAD, "Counters in Prometheus' format"),
    ):
        path = f"/{route.__name__}"
        app.add_api_route(path, route, responses=responses, summary=summary)
        app.add_api_route(path, route, methods=["HEAD"], include_in_schema=False)

    @app.get("/v1/models", summary="Loaded models, default views and seed", responses=BAD)
    async def models() -> dict[str, Any]:
        listed = [
            {
                "name": name,
                "backbone": backbone.name,
                "fingerprint": backbone.fingerprint,
                "device": backbone.device.type,
                "embed_dim": backbone.embed_dim,
                "image_size": backbone.preprocessing.size,
            }
            for name, backbone in catalogue.models.items()
        ]
        return {"default": listed[0]["name"], "views": catalogue.views, "seed": catalogue.seed, "models": listed}

    @app.get("/v1/methods", summary="Methods, and the parts that names are made of", responses=BAD)
    def methods() -> dict[str, Any]:
        return {"default": catalogue.method, **_methods()}

    @app.get("/v1/classes", summary="Named class lists and calibrations", responses=BAD)
    async def classes() -> dict[str, Any]:
        return {
            "classes": [
                {"name": name, "count": len(own), "labels": list(own.names[:20])}
                for name, own in catalogue.classes.items()
            ],
            "calibrations": [
                {
                    "name": name,
                    "method": own.facts["method"]["name"],
                    "model": own.facts["model"]["name"],
                    "labels": own.labels,
                    "count": len(own.class_names),
                }
                for name, own in catalogue.calibrations.items()
            ],
        }

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
                found.append(
                    {
                        "label": data.class_names[label],
                        "labels": list(data.class_names[first : first + _OFFERED]),
                        "image": base64.b64encode(file.getvalue()).decode("ascii"),
                    }
                )
    except OtptError:  # the images are in another package, which is not installed
        return []
    return found
