"""The application: routes over a :class:`otpt.serve.service.Service`.

app = create_app(Service({"pocket": load_backbone("pocket")}))
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException

from otpt._version import __version__
from otpt.serve.http.errors import RequestError
from otpt.serve.http.guard import Guard
from otpt.serve.http.information import add_information
from otpt.serve.http.openapi import describe
from otpt.serve.http.routes import add_routes
from otpt.serve.service import Service

PAGE = Path(__file__).parent / "page"
_log = logging.getLogger("otpt.serve")


def create_app(
    service: Service,
    *,
    token: str | None = None,
    names: Collection[str] | None = None,
    page: Path = PAGE,
    guarded: bool = True,
) -> FastAPI:
    """The application.

    Args:
        service: is started and closed with the application.
        token: that requests must carry as ``Authorization: Bearer``; None for none.
        names: host names that requests may be for; None for any.
        page: folder of the page at ``/``, if it has an ``index.html``.
        guarded: False behind a door that checks token, names, size and time itself (``replicas/forwarding.py``).
    """

    @asynccontextmanager
    async def running(_: FastAPI) -> AsyncIterator[None]:
        service.start()
        yield
        await asyncio.get_running_loop().run_in_executor(None, service.close)

    app = FastAPI(
        title="otpt",
        version=__version__,
        summary="Calibrated zero-shot image classification",
        docs_url=None,  # its scripts would come from the network
        redoc_url=None,
        lifespan=running,
    )
    add_information(app, service)
    add_routes(app, service)
    if (page / "index.html").is_file():
        app.add_api_route("/", lambda: FileResponse(page / "index.html"), include_in_schema=False)
        app.mount("/page", StaticFiles(directory=page), name="page")
    _add_handlers(app)
    if guarded:
        app.add_middleware(Guard, limits=service.limits, metrics=service.metrics, token=token, names=names)
    app.openapi = lambda: describe(app)  # type: ignore[method-assign]
    return app


def _add_handlers(app: FastAPI) -> None:
    """Every error as JSON."""

    async def refused(_: Request, error: Any) -> JSONResponse:
        return JSONResponse(error.content(), error.status, error.headers)

    async def invalid(_: Request, error: Any) -> JSONResponse:
        first = error.errors()[0]
        where = ".".join(str(each) for each in first["loc"])
        told = RequestError(422, "invalid-field", f"{where}: {first['msg']}.", "what /openapi.json describes")
        return JSONResponse(told.content(), told.status)

    async def by_http(request: Request, error: Any) -> JSONResponse:
        what = f"{request.method} {request.url.path[:200]}: {error.detail}."
        allowed = (error.headers or {}).get("Allow")  # of 405
        expected = f"{allowed} of this route" if allowed else "a route of GET /openapi.json"
        told = RequestError(error.status_code, "http", what, expected)
        return JSONResponse(told.content(), told.status, error.headers)

    async def unexpected(_: Request, error: Exception) -> JSONResponse:
        _log.error("a request failed", exc_info=error)
        told = RequestError(500, "internal", "The service failed.", "an answer", "Report it with the service's log.")
        return JSONResponse(told.content(), told.status)

    app.add_exception_handler(RequestError, refused)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, by_http)
    app.add_exception_handler(Exception, unexpected)
