"""Attacks on a real process through its socket: each ends in time, and neighbours are answered."""

from __future__ import annotations

import io
import json
import re
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest
from oracles.pages.servers import PATIENCE, Server, image_file, serving, text_of
from PIL import Image

pytestmark = pytest.mark.slow

GOOD = {"image": text_of(image_file(1)), "labels": ["cat", "dog"]}
ARRIVAL, SECONDS = 2.0, 20.0


@pytest.fixture(scope="module")
def attacked() -> Iterator[Server]:
    """A service with short deadlines, and no limit of texts."""
    limits = ["--arrival", str(ARRIVAL), "--seconds", str(SECONDS), "--max-texts", "1000000", "--max-pixels", "13"]
    with serving("--method", "zero-shot", "--views", "2", "--threads", "2", *limits) as server:
        yield server


def connect(server: Server) -> socket.socket:
    address = urlsplit(server.url)
    return socket.create_connection((address.hostname, address.port), PATIENCE)


def head(server: Server, *lines: str) -> bytes:
    """The headers of a request."""
    given = ["POST /v1/predict HTTP/1.1", f"Host: {urlsplit(server.url).netloc}", "Content-Type: application/json"]
    return ("\r\n".join([*given, *lines]) + "\r\n\r\n").encode()


def answers(server: Server) -> bool:
    """Whether a neighbour is answered."""
    with server.client() as client:
        return client.post("/v1/predict", json=GOOD).status_code == 200


def counter(server: Server, pattern: str) -> float:
    with server.client() as client:
        found = re.findall(rf"^{pattern} (\S+)$", client.get("/metrics").text, re.MULTILINE)
    return sum(map(float, found))


def test_large_images_are_decoded_within_a_budget(attacked: Server) -> None:
    """Eight images of 12 megapixels: 576 MB together as Pillow holds them."""
    file = io.BytesIO()
    Image.new("RGB", (4000, 3000), (1, 2, 3)).save(file, "PNG")
    process, largest = psutil.Process(attacked.process.pid), 0
    before = process.memory_info().rss
    with ThreadPoolExecutor(1) as pool, attacked.client() as client:
        body = {"images": [text_of(file.getvalue())] * 8, "labels": ["cat", "dog"]}
        sent = pool.submit(client.post, "/v1/predict", json=body)
        while not sent.done():
            largest = max(largest, process.memory_info().rss)
            time.sleep(0.005)
    assert sent.result().status_code in (200, 503), sent.result().text
    assert largest - before < 300e6


def test_announced_bodies_that_do_not_come(attacked: Server) -> None:
    """32 × 16 MiB are all the memory of the default limits."""
    sockets = [connect(attacked) for _ in range(40)]
    for each in sockets:
        each.sendall(head(attacked, f"Content-Length: {16 << 20}") + b"{")
    assert answers(attacked)
    for each in sockets:
        assert each.recv(100).startswith(b"HTTP/1.1 408 ")  # after the deadline of the body
        each.close()


def test_clients_that_hang_up_are_not_computed(attacked: Server) -> None:
    before = counter(attacked, r"otpt_images_total\S*")
    images = [text_of(image_file(i)) for i in range(16)]
    body = json.dumps({"images": images, "labels": ["a", "b"], "views": 64}).encode()
    for _ in range(4):
        with connect(attacked) as client:
            client.sendall(head(attacked, f"Content-Length: {len(body)}") + body)
            time.sleep(0.1)
    end = time.monotonic() + SECONDS
    while counter(attacked, "otpt_queue_images") and time.monotonic() < end:
        time.sleep(0.05)
    assert counter(attacked, "otpt_queue_images") == 0
    assert answers(attacked)
    assert counter(attacked, r"otpt_images_total\S*") - before < 64


def test_a_slow_second_request_of_a_connection(attacked: Server) -> None:
    body = json.dumps(GOOD).encode()
    with connect(attacked) as client:
        client.sendall(head(attacked, f"Content-Length: {len(body)}") + body)
        assert client.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
        begun, line = time.monotonic(), b"GET /healthz HTTP/1.1\r\n"
        client.settimeout(0.3)
        while time.monotonic() < begun + 10 * ARRIVAL:
            try:
                client.sendall(line)
                if client.recv(1 << 16) == b"":
                    break
            except TimeoutError:
                pass
            except OSError:
                break
            line = b"X: x\r\n"
        assert time.monotonic() - begun < 5 * ARRIVAL


def test_two_lengths_and_damaged_chunks(attacked: Server) -> None:
    with connect(attacked) as client:
        client.sendall(head(attacked, "Content-Length: 2", "Transfer-Encoding: chunked") + b"0\r\n\r\n")
        data = b""
        while part := client.recv(1 << 16):  # until it is closed
            data += part
        assert data.startswith(b"HTTP/1.1 400 ")
    for chunks in (b"zz\r\n", b'5\r\n{"a":\r\nzz\r\n', b"-1\r\n{}\r\n"):
        with connect(attacked) as client:
            client.sendall(head(attacked, "Transfer-Encoding: chunked") + chunks)
            assert client.recv(1 << 16)[:13] in (b"", b"HTTP/1.1 400 ")
    log = Path(attacked.log).read_text(encoding="utf-8")
    assert "Traceback" not in log
    assert '"level": "error"' not in log


def test_very_many_texts_and_the_end(attacked: Server) -> None:
    """40,000 texts: neighbours are answered, and the process ends within the time of a request. The last test."""
    labels, templates = [f"class {i}" for i in range(400)], [f"a {i} of a {{}}." for i in range(100)]
    with ThreadPoolExecutor(1) as pool, attacked.client() as client:
        sent = pool.submit(client.post, "/v1/predict", json={**GOOD, "labels": labels, "templates": templates})
        time.sleep(1)
        begun = time.monotonic()
        assert answers(attacked)
        assert client.get("/readyz").status_code == 200
        assert time.monotonic() - begun < SECONDS
        attacked.process.send_signal(signal.SIGTERM)
        assert sent.result(PATIENCE).status_code in (200, 503)
        assert attacked.process.wait(3 * SECONDS) == 0
