"""A proxy in front of replicas: requests are read and checked here, answered elsewhere, and retried if a replica dies.

A request may be sent twice because its answer depends on nothing but the request: image, labels, method and seed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Protocol

from prometheus_client import Counter, Gauge
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from otpt.serve.app import add_guard
from otpt.serve.config import Limits
from otpt.serve.errors import RequestError, too_slow
from otpt.serve.guard import Message, Receive, replay
from otpt.serve.metrics import TYPE, Metrics, merge_metrics

_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")  # what a replica refuses, it refuses in JSON
_LEFT_OUT = (b"content-length", b"transfer-encoding")  # of an answer: the proxy's own server counts the bytes
_COLLECT_WITHIN = 5.0
"""Seconds in which replicas must send their counters."""


@dataclass(frozen=True)
class Sent:
    """A request that was read whole; ``scope`` is that of ASGI, without objects of this process."""

    scope: Mapping[str, Any]
    body: bytes


@dataclass(frozen=True)
class Received:
    """Its answer. ``route`` is the pattern that it matched, under which it is counted."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes
    route: str | None


class Replicas(Protocol):
    """Where requests are answered."""

    async def ask(self, sent: Sent, again: Callable[[], None]) -> Received:
        """The answer of a replica; ``again`` is called each time that one has died and another is asked."""

    async def metrics(self) -> Mapping[str, bytes]:
        """Counters of each replica, by its name, in Prometheus' format."""


async def answer(app: Any, scope: MutableMapping[str, Any], receive: Receive) -> Received:
    """The answer of an ASGI application, without a socket."""
    status, headers, parts = 500, list[tuple[bytes, bytes]](), list[bytes]()

    async def send(message: Mapping[str, Any]) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
            headers.extend((bytes(name), bytes(value)) for name, value in message["headers"])
        else:
            parts.append(message.get("body", b""))

    try:
        await app(scope, receive, send)
    except Exception:
        if not headers:  # Starlette answers a failure with 500, and then raises it for the server's log
            raise
    return Received(status, tuple(headers), b"".join(parts), getattr(scope.get("route"), "path", None))


async def answer_sent(app: Any, sent: Sent) -> Received:
    """The answer of an application to a forwarded request."""
    gone: asyncio.Future[Message] = asyncio.get_running_loop().create_future()  # the proxy cancels instead
    return await answer(app, dict(sent.scope), replay(sent.body, gone))


def create_proxy(
    replicas: Replicas, limits: Limits, *, token: str | None = None, names: Collection[str] | None = None
) -> Starlette:
    """The application in front: host, token, size and time of a request are checked as in a service of one process."""
    metrics = Metrics()
    again = Counter("otpt_retries", "requests sent again because a replica died", registry=metrics.registry)
    alive = Gauge("otpt_replicas", "replicas that answered when their counters were read", registry=metrics.registry)

    async def forward(request: Request) -> Response:
        sent = Sent(plain_scope(request.scope), await request.body())
        try:
            found = await asyncio.wait_for(replicas.ask(sent, again.inc), limits.seconds)
        except TimeoutError:
            return too_slow(limits.seconds).response()
        except RequestError as error:
            return error.response()
        request.scope["route"] = SimpleNamespace(path=found.route)
        answered = Response(found.body, found.status)
        own = [each for each in answered.raw_headers if each[0] == b"content-length"]
        answered.raw_headers = [*own, *(each for each in found.headers if each[0].lower() not in _LEFT_OUT)]
        return answered

    async def health(request: Request) -> Response:
        request.scope["route"] = SimpleNamespace(path="/healthz")
        return JSONResponse({"status": "alive"})

    async def counters(request: Request) -> Response:
        request.scope["route"] = SimpleNamespace(path="/metrics")
        texts: Mapping[str, bytes] = {}
        with suppress(TimeoutError):  # none is up, which the gauge shows
            texts = await asyncio.wait_for(replicas.metrics(), _COLLECT_WITHIN)
        alive.set(len(texts))
        return Response(merge_metrics(metrics.registry, texts), media_type=TYPE)

    proxy = Starlette(
        routes=[
            Route("/healthz", health),
            Route("/metrics", counters),
            Route("/{path:path}", forward, methods=list(_METHODS)),
        ]
    )
    add_guard(proxy, limits, metrics, token, names)
    return proxy


def plain_scope(scope: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a request's scope that can be sent to another process."""
    names = ("type", "asgi", "http_version", "method", "scheme", "path", "raw_path", "query_string", "headers")
    found = {name: scope[name] for name in (*names, "client", "server") if name in scope}
    return {**found, "headers": [tuple(each) for each in scope["headers"]], "root_path": ""}
