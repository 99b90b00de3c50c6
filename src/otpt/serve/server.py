"""The process: a socket, uvicorn, logs as JSON lines, and an end that answers what was accepted."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import socket
from datetime import UTC, datetime
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from otpt.errors import OtptError
from otpt.serve.config import Limits

LOOPBACK = ("localhost", "127.0.0.1", "::1")
_KEEP_ALIVE = 30  # seconds between requests of a connection
_HEADERS = 64 << 10  # bytes


def make_protocol(seconds: float) -> type[H11Protocol]:
    """HTTP/1.1 with deadlines that uvicorn has no setting for: the headers of every request, and reading an answer."""

    class Protocol(H11Protocol):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self._deadlines: dict[str, asyncio.TimerHandle] = {}

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._check_headers()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._check_headers()

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            for name in list(self._deadlines):
                self._clear(name)

        def pause_writing(self) -> None:
            super().pause_writing()
            self._set("answer")

        def resume_writing(self) -> None:
            super().resume_writing()
            self._clear("answer")

        def send_400_response(self, msg: str) -> None:
            try:
                super().send_400_response(msg)
            except h11.LocalProtocolError:  # malformed input after the answer has begun
                self.transport.close()

        def _check_headers(self) -> None:
            if self.conn.their_state is h11.IDLE:
                self._set("headers")
            else:  # they are complete
                self._clear("headers")

        def _set(self, name: str) -> None:
            if name not in self._deadlines:
                self._deadlines[name] = self.loop.call_later(seconds, self.transport.abort)

        def _clear(self, name: str) -> None:
            if name in self._deadlines:
                self._deadlines.pop(name).cancel()

    return Protocol


def open_socket(host: str, port: int) -> socket.socket:
    """Open a socket that listens there; port 0 lets the system choose."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((host, port))
    except (OSError, OverflowError) as error:
        found.close()
        reason = getattr(error, "strerror", None) or error
        raise OtptError(f"Cannot listen at {host}:{port}: {reason}; choose another --host or --port.") from None
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
        http=make_protocol(limits.arrival),
        ws="none",
        loop="asyncio",
        lifespan="on",
        log_config=log_config(log_level),
        access_log=False,  # the guard writes its own lines
        server_header=False,
        h11_max_incomplete_event_size=_HEADERS,
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


class JsonFormatter(logging.Formatter):
    """``{"time": …, "level": …, "message": …}`` and the fields of a record, on one line; no image, label or token."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        found: dict[str, Any] = {"time": time, "level": record.levelname.lower(), "logger": record.name}
        found |= {"message": record.getMessage(), **getattr(record, "fields", {})}
        if record.exc_info:
            found["error"] = self.formatException(record.exc_info)
        return json.dumps(found)


def log_config(level: str) -> dict[str, Any]:
    """The logging configuration for uvicorn: everything to standard error."""
    logger = {"handlers": ["stderr"], "level": level.upper(), "propagate": False}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"json": {"()": f"{__name__}.{JsonFormatter.__name__}"}},
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "json", "stream": "ext://sys.stderr"}},
        "loggers": {"otpt.serve": logger, "uvicorn": logger},
    }
