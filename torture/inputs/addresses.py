"""Addresses of images: nonsense, and servers that lie about length and type, redirect in circles, or never end."""

from __future__ import annotations

import random
import socket
import struct
import threading
from functools import cache
from pathlib import Path
from typing import Any

from otpt.images import open_image
from otpt.images.urls import UrlLimits
from torture.inputs.kinds import Input, Kind
from torture.inputs.mutations import text

_LIMITS = UrlLimits(max_bytes=1 << 16, seconds=1.0, redirects=3)
_STATUS = (200, 200, 200, 204, 206, 301, 302, 307, 308, 304, 401, 404, 500, 999, 100)


@cache
def _server() -> tuple[int, dict[str, bytes]]:
    """A port of this machine where what is put into the dictionary is answered, byte for byte; one for each process."""
    answers: dict[str, bytes] = {}
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            connection, _ = listening.accept()
            with connection:
                try:
                    connection.settimeout(2)
                    request = connection.recv(1 << 16).split(b" ")
                    path = request[1].decode("latin-1") if len(request) > 1 else ""
                    connection.sendall(answers.get(path, answers.get("*", b"")))
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                except OSError:
                    continue

    threading.Thread(target=serve, daemon=True).start()
    return listening.getsockname()[1], answers


def _answer(rng: random.Random, port: int) -> bytes:
    if rng.random() < 0.1:
        return rng.randbytes(rng.choice((0, 1, 200)))
    status = rng.choice(_STATUS)
    place = rng.choice(
        ("/", f"http://127.0.0.1:{port}/x", "file:///etc/passwd", "ftp://x.invalid/", "//", "", "http://[", text(rng))
    )
    heads = [f"HTTP/1.{rng.choice('019')} {status} {rng.choice(('OK', '', text(rng)))}", f"Location: {place}"]
    if rng.random() < 0.5:
        heads.append(f"Content-Length: {rng.choice(('5', '-1', '9' * 30, 'x', '0', '²', str(1 << 40)))}")
    if rng.random() < 0.2:
        heads.append("Transfer-Encoding: chunked")
    if rng.random() < 0.1:
        heads += [f"X-{number}: y" for number in range(rng.choice((5, 200)))]
    if rng.random() < 0.05:
        heads.append("X: " + "y" * 70_000)
    body = rng.choice((b"", b"5\r\nhello\r\n0\r\n\r\n", b"ffffffffffffffff\r\n", b"x" * 100_000, rng.randbytes(50)))
    return "\r\n".join(heads).encode("utf-8", "replace") + b"\r\n\r\n" + body


def _address(rng: random.Random, given: Path) -> Input:
    if rng.random() < 0.6:
        port, answers = _server()
        answers.clear()
        answers["*"] = _answer(rng, port)
        url = f"http://127.0.0.1:{port}/{rng.randrange(99)}"
    else:
        start = rng.choice(
            ("http://", "HTTPS://", "http://127.0.0.1:", "http://[", "http://@", "http://user:pw@127.0.0.1:")
        )
        end = rng.choice(
            (text(rng), "99999/", "-1/", "x", "::1", "0/\r\nHost: x", " ", "127.0.0.1:1/", "\u2100.invalid/", "1/")
        )
        url = start + end
    limits = None if rng.random() < 0.05 else _LIMITS
    return Input(f"the address {ascii(url)[:60]}", lambda: open_image(url, urls=limits))


def _only_here() -> None:
    """Names are not asked of anybody: only this machine is known."""
    whole: Any = socket.getaddrinfo

    def lookup(host: Any, *rest: Any, **named: Any) -> Any:
        if host not in ("127.0.0.1", b"127.0.0.1"):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return whole(host, *rest, **named)

    socket.getaddrinfo = lookup


KINDS = [Kind("addresses", _address, _only_here)]
