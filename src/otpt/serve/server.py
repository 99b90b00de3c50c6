"""The server process: uvicorn with deadlines, JSON logs and a graceful shutdown."""

from __future__ import annotations

import json
import logging
import signal
import socket
import time
from datetime import UTC, datetime
from typing import NamedTuple

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from otpt.errors import OtptError
from otpt.serve.config import Limits

LOOPBACK = ("localhost", "127.0.0.1", "::1")
_KEEP_ALIVE = 30  # seconds between requests of a connection
_HEADERS = 64 << 10  # bytes


class _Waiting(NamedTuple):
    """Last request of a connection that waits for its client, and since when it waits."""

    request: RequestResponseCycle | None
    since: float


class Server(uvicorn.Server):
    """uvicorn with deadlines for request headers and for clients that read slowly."""

    def __init__(self, config: uvicorn.Config, seconds: float) -> None:
        super().__init__(config)
        self._seconds = seconds
        self._waiting: dict[H11Protocol, _Waiting] = {}

    async def on_tick(self, counter: int) -> bool:
        """Abort connections over their deadline; uvicorn calls this ten times a second."""
        before, self._waiting = self._waiting, {}
        for connection in self.server_state.connections.copy():
            assert isinstance(connection, H11Protocol)  # see run()
            if connection.conn.their_state is h11.IDLE or connection.flow.write_paused:
                waiting = before.get(connection)
                if waiting is None or waiting.request is not connection.cycle:
                    waiting = _Waiting(connection.cycle, time.monotonic())
                self._waiting[connection] = waiting
                if time.monotonic() - waiting.since > self._seconds:
                    connection.transport.abort()
        return await super().on_tick(counter)


def open_socket(host: str, port: int) -> socket.socket:
    """Open a socket that listens there; port 0 lets the system choose."""
    if not 0 <= port <= 65535:
        raise OtptError(f"The port is {port}; expected 0 to 65535.")
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise OtptError(f"Cannot listen at {host}:{port}: {error.strerror}; choose another --host or --port.") from None


def address_of(listening: socket.socket) -> str:
    """Return the URL of a listening socket, such as "http://127.0.0.1:8000"."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def run(app: FastAPI, listening: socket.socket, limits: Limits, *, log_level: str = "info") -> None:
    """Serve until SIGTERM or SIGINT, then answer accepted requests and return."""
    config = uvicorn.Config(
        app,
        http="h11",
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
        Server(config, limits.arrival).run(sockets=[listening])
    finally:
        signal.signal(signal.SIGTERM, before)


class JsonFormatter(logging.Formatter):
    """Format records as JSON lines with time, level, message and extra fields; never images, labels or tokens."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line of JSON."""
        now = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, object] = {"time": now, "level": record.levelname.lower(), "logger": record.name}
        line |= {"message": record.getMessage(), **getattr(record, "fields", {})}
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line)


def log_config(level: str) -> dict[str, object]:
    """Return the logging configuration for uvicorn: everything to standard error."""
    logger = {"handlers": ["stderr"], "level": level.upper(), "propagate": False}
    silent = {"level": "CRITICAL"}  # of asyncio come tracebacks of malformed input, after an answer has begun
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"json": {"()": f"{__name__}.{JsonFormatter.__name__}"}},
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "json", "stream": "ext://sys.stderr"}},
        "loggers": {__package__: logger, "uvicorn": logger, "asyncio": silent},
    }
