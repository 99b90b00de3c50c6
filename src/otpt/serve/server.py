"""The process: a socket, uvicorn, and an end that answers what was accepted."""

from __future__ import annotations

import asyncio
import signal
import socket
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from otpt.errors import OtptError
from otpt.serve.limits import Limits
from otpt.serve.logs import log_config

LOOPBACK = ("localhost", "127.0.0.1", "::1")
_KEEP_ALIVE = 30


def protocol(seconds: float) -> type[H11Protocol]:
    """HTTP/1.1 that closes a connection if the headers of its first request are not there after so many seconds."""

    class Protocol(H11Protocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self.loop.call_later(seconds, self._close_if_silent)

        def _close_if_silent(self) -> None:
            if vars(self).get("cycle") is None and not self.transport.is_closing():
                self.transport.close()

    return Protocol


def open_socket(host: str, port: int) -> socket.socket:
    """A socket that listens there; port 0 lets the system choose."""
    if not 0 <= port <= 65535:
        raise OtptError(f"The port is {port}; expected 0 to 65535, where 0 takes any that is free.")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((host, port))
    except OSError as error:
        found.close()
        raise OtptError(
            f"Cannot listen at {host}:{port}: {error.strerror or error}; choose another --host or --port."
        ) from None
    found.set_inheritable(True)
    return found


def address_of(listening: socket.socket) -> str:
    """``http://127.0.0.1:8000`` of a socket."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def run(app: Any, listening: socket.socket, limits: Limits, *, log_level: str = "info") -> None:
    """Serve until SIGTERM or SIGINT; then answer what was accepted, and return."""
    config = uvicorn.Config(
        app,
        http=protocol(limits.arrival),
        ws="none",
        loop="asyncio",
        lifespan="on",
        log_config=log_config(log_level),
        access_log=False,  # the guard writes its own lines
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE,
        timeout_graceful_shutdown=int(limits.arrival + limits.seconds) + 1,
    )
    # uvicorn raises the signal again when it is done: an orderly end is no failure
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        uvicorn.Server(config).run(sockets=[listening])
    finally:
        signal.signal(signal.SIGTERM, before)
        listening.close()
