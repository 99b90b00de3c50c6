"""Middleware that checks origin, token, size and arrival time of requests, and counts and logs responses.

The whole body is read here, within limits of bytes and seconds. Work stops when the client disconnects.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
from collections import Counter
from collections.abc import Collection

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from otpt.serve.config import Limits
from otpt.serve.errors import RequestError, busy
from otpt.serve.metrics import Metrics

_log = logging.getLogger(__name__)
_OPEN = ("/", "/healthz", "/readyz")
"""Routes without a token: the page, which holds no secret, and health checks."""
_DRAINED = 4
"""Multiple of the limit up to which the body of a refused request is read."""
_CLOSE = {"Connection": "close"}
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data: blob:; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'; object-src 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_HEADERS = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]


def _name_of(host: str) -> str:
    """Return the name in a Host header, without the port.

    >>> _name_of("[::1]:8000"), _name_of("localhost:8000")
    ('::1', 'localhost')
    """
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


class Guard:
    """ASGI middleware.

    Args:
        app: the application.
        limits: limits of requests.
        metrics: counters of responses.
        token: token that requests must carry; None to require none.
        names: host names that requests may be for; None for any.
    """

    def __init__(
        self, app: ASGIApp, limits: Limits, metrics: Metrics, token: str | None, names: Collection[str] | None
    ) -> None:
        self._app = app
        self._limits = limits
        self._metrics = metrics
        self._token = token
        self._names = None if names is None else {name.lower() for name in names}
        self._bytes: Counter[str] = Counter()  # received for requests in progress, by client

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if scope["method"] == "HEAD":  # the server leaves the body out
            scope = {**scope, "method": "GET"}
        begun = time.perf_counter()
        status = 499  # as nginx counts clients that have gone

        async def send_noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], *_HEADERS]
            await send(message)

        client = (scope.get("client") or ("",))[0][:100]
        body = bytearray()
        try:
            refusal = await self._receive_body(client, receive, body, self._check(scope))
            if refusal is not None:
                await refusal.response()(scope, receive, send_noting)
            else:
                await self._run(scope, bytes(body), receive, send_noting)
        finally:
            self._release(client, body)
            route = getattr(scope.get("route"), "path", None) or "(other)"
            seconds = time.perf_counter() - begun
            self._metrics.requests.labels(route, str(status)).inc()
            self._metrics.seconds.labels(route).observe(seconds)
            fields = {"route": route, "method": scope["method"], "status": status, "client": client}
            _log.info("request", extra={"fields": {**fields, "seconds": round(seconds, 6)}})

    async def _run(self, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
        """Run the application until it responds or the client disconnects."""
        gone = asyncio.ensure_future(receive())  # http.disconnect is all that can come
        pending = [body]

        async def replay() -> Message:
            if pending:
                return {"type": "http.request", "body": pending.pop(), "more_body": False}
            return await asyncio.shield(gone)

        app = asyncio.ensure_future(self._app(scope, replay, send))
        try:
            await asyncio.wait({app, gone}, return_when=asyncio.FIRST_COMPLETED)
            if app.done():
                await app  # raises what it raised
        finally:
            app.cancel()
            gone.cancel()

    def _check(self, scope: Scope) -> RequestError | None:
        """Return the error of a request with invalid headers, or None."""
        headers, path = Headers(scope=scope), scope["path"]
        if "content-length" in headers and "transfer-encoding" in headers:
            message = "The request has both Content-Length and Transfer-Encoding."
            return RequestError(400, "ambiguous-length", message, expected="one of them", headers=_CLOSE)
        # browsers would let pages of other sites send requests to a service on the loopback
        host, origin = headers.get("host", "").lower(), headers.get("origin")
        if self._names is not None and _name_of(host) not in self._names:
            message = "The request is for a host that is not served."
            return RequestError(400, "host", message, given=host[:100], hint="otpt serve --hosts NAME accepts it.")
        # a proxy in front may speak https to the page and http here, not the other way round
        schemes = ("https",) if scope.get("scheme") == "https" else ("http", "https")
        if origin is not None and origin.lower() not in [f"{scheme}://{host}" for scheme in schemes]:
            message = "The request comes from a page of another site."
            return RequestError(403, "origin", message, given=origin[:100])
        if self._token is None or (scope["method"] == "GET" and (path in _OPEN or path.startswith("/page/"))):
            return None
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and hmac.compare_digest(token.strip().encode(), self._token.encode()):
            return None
        message = "The token is wrong." if token else "The request has no token."
        expected = "the header 'Authorization: Bearer TOKEN'"
        return RequestError(401, "token", message, expected=expected, headers={"WWW-Authenticate": "Bearer"})

    async def _receive_body(
        self, client: str, receive: Receive, body: bytearray, refusal: RequestError | None
    ) -> RequestError | None:
        """Read the body; drain that of a refused request so that the client receives the response."""
        size, is_incomplete = 0, True
        try:
            async with asyncio.timeout(self._limits.arrival):
                while is_incomplete and size <= self._limits.body * _DRAINED:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return RequestError(400, "disconnected", "The client has gone.")
                    part, is_incomplete = message.get("body", b""), message.get("more_body", False)
                    size += len(part)
                    refusal = refusal or self._reserve(client, part, size)
                    if refusal is None:
                        body += part
                    else:
                        self._release(client, body)
        except TimeoutError:
            reason = f"The request did not arrive within {self._limits.arrival:g} s."
            refusal = refusal or RequestError(408, "too-slow", reason, hint="Send it again.")
        if refusal is not None and is_incomplete:
            refusal.headers = {**(refusal.headers or {}), **_CLOSE}
        return refusal

    def _reserve(self, client: str, part: bytes, size: int) -> RequestError | None:
        """Count received bytes; return an error above the limits of a body, of memory, or of a client's share."""
        limits = self._limits
        of_client, total = self._bytes[client], self._bytes.total()
        if size > limits.body:
            message = f"The request has more than {limits.body:,} bytes."
            return RequestError(413, "body-too-large", message, expected=f"at most {limits.body:,} bytes")
        share = max(limits.share * limits.memory, limits.body)
        if total + len(part) > limits.memory or of_client + len(part) > share:
            held = f"{total:,} of at most {limits.memory:,} bytes, {of_client:,} of them yours"
            return busy(1, f"Requests in progress hold {held}.")
        self._bytes[client] += len(part)
        return None

    def _release(self, client: str, body: bytearray) -> None:
        self._bytes[client] -= len(body)
        if not self._bytes[client]:
            del self._bytes[client]
        body.clear()
