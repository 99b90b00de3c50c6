"""What every request passes first: host, token, size, time; then its answer is counted and logged.

The body is read here, whole, within its limits of bytes and seconds, before anything is made of it.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse

from otpt.serve.http.errors import RequestError, busy
from otpt.serve.limits import Limits
from otpt.serve.metrics import Metrics

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_log = logging.getLogger("otpt.serve")
_OPEN = ("/", "/healthz", "/readyz")
"""Without a token: the page, which holds no secret, and what a supervisor asks."""
_DRAINED = 4
"""A body that is too large is read on up to so many times the limit, so that its sender hears the answer."""

HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data: blob:; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'; object-src 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Guard:
    """ASGI middleware.

    Args:
        metrics: where requests are counted.
        token: which requests must carry; None for none.
        names: values of the Host header that are served; None for any.
    """

    def __init__(
        self, app: Any, limits: Limits, metrics: Metrics, token: str | None, names: Collection[str] | None
    ) -> None:
        self._app, self._limits, self._metrics, self._token = app, limits, metrics, token
        self._names = None if names is None else {each.lower() for each in names}
        self._held = 0  # bytes of requests under way

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun, status = time.perf_counter(), 500

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                own = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
                message["headers"] = [*message["headers"], *own]
            await send(message)

        try:
            await self._pass(scope, receive, noting)
        finally:
            self._note(scope, status, time.perf_counter() - begun)

    async def _pass(self, scope: Message, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        reserved = 0
        try:
            self._check_origin(headers)
            self._check_token(scope, headers)
            reserved = self._reserve(scope, headers)
            body = await self._body(receive)
        except RequestError as error:
            self._held -= reserved
            extra = {"Connection": "close"} if error.status in (408, 413) else {}
            answer = JSONResponse(error.content(), error.status, {**error.headers, **extra})
            await answer(scope, receive, send)
            return
        try:
            await self._app(scope, whole(body, receive), send)
        finally:
            self._held -= reserved

    def _check_origin(self, headers: Headers) -> None:
        """Against pages of other sites, which a browser would let send requests to a service on the loopback."""
        host = headers.get("host", "").lower()
        if self._names is not None and _name_of(host) not in self._names:
            raise RequestError(
                403,
                "host",
                f"The request is for the host {host[:100]!r}.",
                "a host that is served here",
                "See --hosts.",
            )
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2].lower() != host:
            raise RequestError(
                403, "origin", f"The request comes from a page of {origin[:100]!r}.", "the page of this service itself"
            )

    def _check_token(self, scope: Message, headers: Headers) -> None:
        path = scope["path"]
        is_open = scope["method"] in ("GET", "HEAD") and (path in _OPEN or path.startswith("/page/"))
        if self._token is None or is_open:
            return
        kind, _, given = headers.get("authorization", "").partition(" ")
        right = hmac.compare_digest(given.strip().encode(), self._token.encode())
        if kind.lower() != "bearer" or not right:
            what = "The request has no token." if not given else "The token is wrong."
            do = "Send the token of the service's --token-file."
            bearer = {"WWW-Authenticate": "Bearer"}
            raise RequestError(401, "token", what, "the header 'Authorization: Bearer TOKEN'", do, bearer)

    def _reserve(self, scope: Message, headers: Headers) -> int:
        """Bytes of memory for the body; 413 or 429 if there are not so many."""
        limits, size = self._limits, _announced(headers)
        if size is None:  # it comes in chunks, or, of GET and HEAD, not at all
            expected = scope["method"] not in ("GET", "HEAD") or "transfer-encoding" in headers
            size = limits.body if expected else 0
        if size > limits.body * _DRAINED:
            raise _too_large(limits.body)
        size = min(size, limits.body)
        if self._held + size > limits.memory:
            raise busy(
                1,
                f"The service is busy: the requests under way hold {self._held:,} of at most {limits.memory:,} bytes.",
            )
        self._held += size
        return size

    async def _body(self, receive: Receive) -> bytes:
        limits = self._limits
        parts: list[bytes] = []
        size, deadline = 0, time.monotonic() + limits.arrival
        while True:
            try:
                message = await asyncio.wait_for(receive(), max(deadline - time.monotonic(), 0.001))
            except TimeoutError:
                what = f"The request did not arrive within {limits.arrival:g} s."
                raise RequestError(408, "too-slow", what, "the whole request in that time", "Send it again.") from None
            if message["type"] == "http.disconnect":
                raise RequestError(400, "disconnected", "The client has gone.", "a whole request")
            part = message.get("body", b"")
            size += len(part)
            if size <= limits.body:
                parts.append(part)
            elif size > limits.body * _DRAINED:
                raise _too_large(limits.body)
            if not message.get("more_body", False):
                break
        if size > limits.body:
            raise _too_large(limits.body)
        return b"".join(parts)

    def _note(self, scope: Message, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", None) or "(other)"
        self._metrics.requests.labels(route, str(status)).inc()
        self._metrics.seconds.labels(route).observe(seconds)
        client = (scope.get("client") or ("",))[0]
        more = {"route": route, "method": scope["method"], "status": status, "client": client}
        _log.info("request", extra={"fields": {**more, "seconds": round(seconds, 6)}})


def whole(body: bytes, then: Receive) -> Receive:
    """A body as ASGI hands it out, in one piece; what comes after it is up to ``then``."""
    given = False

    async def receive() -> Message:
        nonlocal given
        if given:
            return await then()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive


def _name_of(host: str) -> str | None:
    """The name in a Host header, without the port; None if there is none."""
    if any(c in host for c in " /?#@\\"):
        return None
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:  # a bracket that is not closed, or holds no address
        return None


def _announced(headers: Headers) -> int | None:
    """The Content-Length; None if there is none."""
    given = headers.get("content-length", "")
    return int(given) if given.isdecimal() else None


def _too_large(limit: int) -> RequestError:
    return RequestError(
        413,
        "body-too-large",
        f"The request has more than {limit:,} bytes.",
        f"{limit:,} bytes at most",
        "Send fewer or smaller images.",
    )
