"""Images by address: only from hosts that are allowed, and never from a private network."""

from __future__ import annotations

import http.server
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from otpt.serve import images as fetching
from otpt.serve.errors import RequestError
from otpt.serve.images import fetch, is_public

pytestmark = pytest.mark.slow


@pytest.fixture
def site() -> Iterator[tuple[int, list[str]]]:
    """A web server on the loopback: its port, and what was asked of it."""
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(f"{self.headers['Host']} {self.path}")
            if self.path == "/moved":
                self.send_response(302)
                self.send_header("Location", "/image")
                self.end_headers()
                return
            if self.path == "/drip":
                with suppress(ConnectionError):  # who asked has heard enough
                    for letter in b"HTTP/1.0 200 OK\r\n" + b"X: x\r\n" * 90:
                        self.wfile.write(bytes([letter]))
                        time.sleep(0.05)
                return
            self.send_response(200)
            if self.path == "/half":
                self.send_header("Content-Length", "20")
            self.end_headers()
            self.wfile.write(b"x" * (5000 if self.path == "/large" else 10))

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server.server_port, asked
    server.shutdown()
    thread.join()
    server.server_close()


def refused(
    url: str, hosts: tuple[str, ...] = ("127.0.0.1", "localhost", "images.example"), *, seconds: float = 30
) -> str:
    with pytest.raises(RequestError) as caught:
        fetch(url, hosts, max_bytes=1000, seconds=seconds)
    assert caught.value.status_code == 422
    return caught.value.detail


@pytest.mark.parametrize(
    "address",
    [
        *(
            "127.0.0.1",
            "127.8.8.8",
            "10.0.0.1",
            "172.16.0.1",
            "192.168.1.1",
            "169.254.169.254",
            "0.0.0.0",
            "100.64.0.1",
        ),
        *("224.0.0.1", "240.0.0.1", "255.255.255.255", "::1", "::", "fe80::1", "fe80::1%eth0", "fc00::1", "ff02::1"),
        *("::ffff:127.0.0.1", "::ffff:10.0.0.1", "2002:7f00:1::", "64:ff9b::a00:1"),
    ],
)
def test_private_addresses(address: str) -> None:
    assert not is_public(address)


def test_the_loopback_is_never_asked(site: tuple[int, list[str]]) -> None:
    port, asked = site
    for host in ("127.0.0.1", "localhost", "LOCALHOST.", "[::1]", "0177.0.0.1", "2130706433", "0x7f.1"):
        told = refused(f"http://{host}:{port}/image", (*("127.0.0.1", "localhost", "::1"), host))
        assert "private address" in told or "no address" in told
    assert asked == []


def test_hosts_that_nobody_allowed() -> None:
    assert "not fetched here" in refused("http://images.example/a.png", ())
    assert "not allowed" in refused("http://other.example/a.png")
    assert "not allowed" in refused("http://images.example.evil.example/a.png")
    assert "not allowed" in refused("http://images.example@evil.example/a.png")
    assert "name or password" in refused("http://user:password@images.example/a.png")
    assert "no valid address" in refused("http://images.example:99999999/a.png")
    assert "no valid address" in refused("http://[::1/a.png")


def test_a_name_with_one_private_address_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def both(*_: Any, **__: Any) -> list[Any]:
        return [(socket.AF_INET, 1, 6, "", (address, 80)) for address in ("8.8.8.8", "10.0.0.1")]

    monkeypatch.setattr(fetching.socket, "getaddrinfo", both)
    assert "10.0.0.1" in refused("http://images.example/a.png")


def test_the_connection_goes_to_the_address_that_was_checked(
    site: tuple[int, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    port, asked = site
    monkeypatch.setattr(fetching, "public_address", lambda *_: "127.0.0.1")
    url = f"http://images.example:{port}"
    assert fetch(f"{url}/image?size=1", ["images.example"], max_bytes=1000, seconds=30) == b"x" * 10
    assert asked == [f"images.example:{port} /image?size=1"]
    assert "redirects" in refused(f"{url}/moved")
    assert "more than 1,000 bytes" in refused(f"{url}/large")
    assert "20" in refused(f"{url}/half")
    assert len(asked) == 4


def test_a_server_that_sends_a_byte_now_and_then_does_not_outlast_the_deadline(
    site: tuple[int, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "public_address", lambda *_: "127.0.0.1")
    assert "0.3 s" in refused(f"http://images.example:{site[0]}/drip", seconds=0.3)
