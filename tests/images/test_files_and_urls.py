"""File objects and addresses as images, with a web server of our own."""

from __future__ import annotations

import io
import os
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from otpt.errors import OtptError
from otpt.images import LIMITS, UrlLimits, fetch_url, open_image, open_with_digest

PIXELS = np.random.default_rng(1).integers(0, 256, (6, 9, 3), dtype=np.uint8)
LONG = 2000
"""Number of pauses of 0.05 s in an answer that must not be waited for."""


def png() -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(PIXELS).save(buffer, "PNG")
    return buffer.getvalue()


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path.startswith("/to/"):
            self.answer(302, {"Location": self.path.removeprefix("/to/").replace("SELF", "") or "/"}, b"")
        elif self.path == "/around":
            self.answer(301, {"Location": "/around"}, b"")
        elif self.path == "/missing.png":
            self.answer(404, {}, b"no")
        elif self.path == "/chunks":  # no length is announced
            self.send_response(200)
            self.end_headers()
            for _ in range(100):
                self.wfile.write(bytes(1000))
        elif self.path == "/half":
            self.send_response(200)
            self.send_header("Content-Length", "2000")
            self.end_headers()
            self.wfile.write(bytes(1000))
        elif self.path == "/headers":  # without an end
            self.wfile.write(b"HTTP/1.0 200 OK\r\n")
            for _ in range(LONG):
                self.wfile.write(b"X: x\r\n")
                self.wfile.flush()
                time.sleep(0.05)
        elif self.path == "/drip":
            self.send_response(200)
            self.end_headers()
            for _ in range(LONG):
                self.wfile.write(b"x")
                self.wfile.flush()
                time.sleep(0.05)
        else:
            self.answer(200, {}, b"<html>" if self.path == "/page" else png())

    def answer(self, code: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(code)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Silence."""

    def handle(self) -> None:
        try:
            super().handle()
        except ConnectionError:  # who asked has heard enough
            self.close_connection = True


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as httpd:
        thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{httpd.server_port}"
        httpd.shutdown()
        thread.join()


def refusal(url: str, limits: UrlLimits | None = LIMITS) -> str:
    with pytest.raises(OtptError) as caught:
        open_image(url, urls=limits)
    assert caught.value.__cause__ is None
    return str(caught.value)


def test_an_address_is_an_image(server: str) -> None:
    np.testing.assert_array_equal(np.asarray(open_image(f"{server}/a.png")), PIXELS)
    assert open_with_digest(f"{server}/a.png")[1] == open_with_digest(PIXELS)[1]
    assert fetch_url(f"{server}/a.png") == png()
    for path in ("/to//a.png", f"/to/{server}/a.png", "/to//to//to//a.png"):
        np.testing.assert_array_equal(np.asarray(open_image(server + path)), PIXELS)


def test_what_goes_wrong_is_told_in_a_sentence(server: str) -> None:
    assert "the server answered 404 (Not Found)" in refusal(f"{server}/missing.png")
    assert "redirects" in refusal(f"{server}/around")
    assert "redirects" in refusal(f"{server}/to//a.png", UrlLimits(redirects=0))
    assert "file://" in refusal(f"{server}/to/file:///etc/passwd")
    assert "not an image in a known format" in refusal(f"{server}/page")
    assert "2000" in refusal(f"{server}/half")
    for path in ("a.png", "chunks"):
        assert "has more than 60 bytes" in refusal(f"{server}/{path}", UrlLimits(max_bytes=60))
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        assert "Cannot fetch 'http://127.0.0.1:" in refusal(f"http://127.0.0.1:{closed.getsockname()[1]}/a.png")
    assert "Cannot fetch 'http://[/'" in refusal("http://[/")


def test_a_server_that_drips_or_is_silent_does_not_outlast_the_deadline(server: str) -> None:
    started = time.monotonic()
    for path in ("drip", "headers"):
        assert "within 0.2 s" in refusal(f"{server}/{path}", UrlLimits(seconds=0.2))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert "within 0.2 s" in refusal(f"http://127.0.0.1:{silent.getsockname()[1]}/", UrlLimits(seconds=0.2))
    assert time.monotonic() - started < 60  # each of the servers would go on for longer


def test_addresses_can_be_refused(server: str) -> None:
    assert "URLs are not accepted here" in refusal(f"{server}/a.png", None)


def test_file_objects_are_read_from_their_start_and_left_where_they_stood(tmp_path: Path) -> None:
    data = png()
    buffer = io.BytesIO()
    buffer.write(data)
    for _ in range(2):
        np.testing.assert_array_equal(np.asarray(open_image(buffer)), PIXELS)
        assert buffer.tell() == len(data)
    reading, writing = os.pipe()
    with os.fdopen(writing, "wb") as pipe:
        pipe.write(data)
    with os.fdopen(reading, "rb") as pipe:  # which cannot be rewound
        np.testing.assert_array_equal(np.asarray(open_image(pipe)), PIXELS)
    path = tmp_path / "a.png"
    path.write_bytes(data)
    with path.open("rb") as file:
        np.testing.assert_array_equal(np.asarray(open_image(file)), PIXELS)
    for wrong, words in ((path.open("rb"), "closed file"), (io.StringIO("text"), "str, not bytes")):
        if "closed" in words:
            wrong.close()
        with pytest.raises(OtptError, match=words):
            open_image(wrong)
    with pytest.raises(OtptError, match="empty"):
        open_image(io.BytesIO())
