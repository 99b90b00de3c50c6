"""Attacks on a real process through its socket: each ends in time, and neighbours are answered."""

from __future__ import annotations

import http.server
import io
import json
import re
import signal
import socket
import struct
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest
from oracles.pages.servers import PATIENCE, Server, image_file, serving, text_of
from PIL import Image

pytestmark = pytest.mark.slow

GOOD: dict[str, Any] = {"image": text_of(image_file(1)), "labels": ["cat", "dog"]}
ARRIVAL, SECONDS = 2.0, 20.0
LARGE = 7000  # pixels of a side; 49 megapixels


@pytest.fixture(scope="module")
def attacked() -> Iterator[Server]:
    """A service with short deadlines, and no limit of texts."""
    limits = ["--arrival", str(ARRIVAL), "--seconds", str(SECONDS), "--max-texts", "1000000", "--max-pixels", "13"]
    with serving("--method", "zero-shot", "--views", "2", "--threads", "2", *limits) as server:
        yield server


def connect(server: Server) -> socket.socket:
    address = urlsplit(server.url)
    return socket.create_connection((address.hostname, address.port), PATIENCE)


def head(server: Server, *lines: str, route: str = "/v1/predict", kind: str = "application/json") -> bytes:
    """The headers of a request."""
    given = [f"POST {route} HTTP/1.1", f"Host: {urlsplit(server.url).netloc}", f"Content-Type: {kind}"]
    return ("\r\n".join([*given, *lines]) + "\r\n\r\n").encode()


def answers(server: Server) -> bool:
    """Whether a neighbour with another address is answered, as behind a proxy on this machine."""
    with server.client(headers={"X-Forwarded-For": "192.0.2.7"}) as client:
        return client.post("/v1/predict", json=GOOD).status_code == 200


def counter(server: Server, pattern: str) -> float:
    with server.client() as client:
        found = re.findall(rf"^{pattern} (\S+)$", client.get("/metrics").text, re.MULTILINE)
    return sum(map(float, found))


@pytest.mark.parametrize(
    ("count", "side", "most"),
    [(8, 3500, 350e6), pytest.param(16, LARGE, 1400e6, marks=pytest.mark.long)],
)
def test_large_images_are_decoded_within_a_budget(count: int, side: int, most: float) -> None:
    """Decoding takes about 22 bytes per pixel: 0.3 GB for one image of 12 megapixels, 1.1 GB for one of 49."""
    file = io.BytesIO()
    Image.new("RGB", (side, side), (1, 2, 3)).save(file, "PNG")
    pixels = str(side * side / 1e6 + 1)
    with serving("--method", "zero-shot", "--views", "2", "--threads", "2", "--max-pixels", pixels) as server:
        process, largest, waited = psutil.Process(server.process.pid), 0, 0.0
        assert answers(server)
        before = process.memory_info().rss
        with ThreadPoolExecutor(2) as pool, server.client() as client:
            body = {"images": [text_of(file.getvalue())] * count, "labels": ["cat", "dog"]}
            start = time.monotonic()
            sent = pool.submit(client.post, "/v1/predict", json=body)
            neighbour, begun = pool.submit(answers, server), time.monotonic()
            while not sent.done():
                largest = max(largest, process.memory_info().rss)
                time.sleep(0.005)
                if neighbour.done():
                    assert neighbour.result()
                    waited = max(waited, time.monotonic() - begun)
                    neighbour, begun = pool.submit(answers, server), time.monotonic()
            took = time.monotonic() - start
    print(f"memory {before / 1e6:.0f} MB, at most {largest / 1e6:.0f} MB; a neighbour waited {waited:.1f} s at most")
    assert sent.result().status_code == 200, sent.result().text
    assert largest - before < most
    assert waited < max(SECONDS, took / 2), took


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
    before = counter(attacked, "otpt_batch_images_sum")
    images = [text_of(image_file(i)) for i in range(16)]
    body = json.dumps({"images": images, "labels": ["a", "b"], "views": 64, "method": "tpt"}).encode()
    for _ in range(4):
        with connect(attacked) as client:
            client.sendall(head(attacked, f"Content-Length: {len(body)}") + body)
            time.sleep(0.1)
    end = time.monotonic() + SECONDS
    while counter(attacked, "otpt_queue_images") and time.monotonic() < end:
        time.sleep(0.05)
    assert counter(attacked, "otpt_queue_images") == 0
    assert answers(attacked)
    assert counter(attacked, "otpt_batch_images_sum") - before < 16, "of 64 images"


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


def test_slow_addresses_of_an_allowed_host() -> None:
    """A site on the loopback, which the service takes for a public one, answers when everything else is answered."""
    release = threading.Event()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            release.wait(PATIENCE)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(image_file(1))

        def log_message(self, *_: Any) -> None:
            pass

    site = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=site.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    public = "import otpt.serve.images as images\nimages.public_address = lambda *_: '127.0.0.1'"
    options = ["--method", "zero-shot", "--views", "2", "--allow-urls", "images.example"]
    try:
        with serving(*options, before=public) as server, ThreadPoolExecutor(40) as pool, server.client() as client:
            far = {**GOOD, "image": f"http://images.example:{site.server_port}/1.png"}
            stalled = [pool.submit(client.post, "/v1/predict", json=far) for _ in range(40)]
            end = time.monotonic() + PATIENCE
            while counter(server, "otpt_queue_images") < len(stalled):
                assert time.monotonic() < end
                time.sleep(0.02)
            assert answers(server)
            release.set()
            assert [each.result(PATIENCE).status_code for each in stalled] == [200] * len(stalled)
    finally:
        release.set()
        site.shutdown()
        thread.join()
        site.server_close()


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


def jpeg_of_many_segments() -> bytes:
    """Pillow joins them one by one: 4 MB take 10 s."""
    data = image_file(1, form="JPEG")
    return data[:2] + (b"\xff\xe1" + struct.pack(">H", 10) + b"Exif\0\0ab") * 350_000 + data[2:]


def jpeg_of_many_scans() -> bytes:
    """Each scan passes over all pixels: 12 megapixels a thousand times, in 0.2 MB."""
    file = io.BytesIO()
    Image.new("L", (3500, 3500)).save(file, "JPEG", progressive=True)
    data = file.getvalue()
    return data[:-2] + data[data.rindex(b"\xff\xc4", 0, data.rindex(b"\xff\xda")) : -2] * 1000 + data[-2:]


def icon_of_many_pixels() -> bytes:
    """An ICO of 16 × 16 pixels, whose PNG has 100 megapixels."""
    file = io.BytesIO()
    Image.new("L", (10_000, 10_000)).save(file, "PNG")
    png = file.getvalue()
    return struct.pack("<HHHBBBBHHII", 0, 1, 1, 16, 16, 0, 0, 1, 24, len(png), 22) + png


def nested(levels: int) -> dict[str, Any]:
    """Groups in groups."""
    found: Any = ["cat"]
    for level in range(levels):
        found = {f"group {level}": found}
    return dict(found)


MANY_GROUPS = {f"{i}": {f"{i} {k}": ["cat"] for k in range(90)} for i in range(90)}
NUMBERED = ",".join(f'"{i}":1' for i in range(300_000))
COSTLY: dict[str, Any] = {
    "a key twice among 300,000": (400, "{" + NUMBERED + ',"1":1}'),
    "300,000 unknown keys": (400, "{" + NUMBERED + "}"),
    "2,000,000 labels that are numbers": (400, '{"labels":[' + "1," * 2_000_000 + "1]}"),
    "100,000 labels that are numbers": (422, '{"labels":[' + "1," * 100_000 + '1],"image":""}'),
    "a key of 8 MB": (422, {**GOOD, "x" * (8 << 20): 1}),
    "a score's name of 8 MB": (422, {**GOOD, "reject": "x" * (8 << 20)}),
    "an address of 8 MB": (422, {**GOOD, "image": "http://" + "x" * (8 << 20)}),
    "8,190 groups": (422, {**GOOD, "groups": MANY_GROUPS}),
    "groups 300 deep": (422, {**GOOD, "groups": nested(300)}),
    "a million steps": (422, {**GOOD, "method": "tpt[steps=1000000]"}),
    "many scores": (422, {**GOOD, "labels": [f"class {i}" for i in range(2000)], "methods": ["zero-shot", "tpt"]}),
    "half a character in a label": (422, {**GOOD, "labels": ["cat", "\ud800"]}),
    "half a character in a key": (422, {**GOOD, "\udfff": 1}),
    "half a character in an image": (400, {**GOOD, "image": "\ud800"}),
    "a control character in a label": (422, {**GOOD, "labels": ["cat", "d\x1b[2Jog"]}),
    "a field of a format string": (422, {**GOOD, "prompt": "{0.__class__}"}),
}
FILES = [jpeg_of_many_segments, jpeg_of_many_scans, icon_of_many_pixels]


@pytest.mark.parametrize("name", COSTLY)
def test_small_requests_of_great_cost(attacked: Server, name: str) -> None:
    status, content = COSTLY[name]
    body = content if isinstance(content, str) else json.dumps(content)
    route = "/v1/compare" if "methods" in content else "/v1/predict"
    if "methods" in content:
        body = json.dumps({**content, "images": [GOOD["image"]] * 16, "image": None, "top": 2000})
    begun = time.monotonic()
    with attacked.client(headers={"Content-Type": "application/json"}) as client:
        answer = client.post(route, content=body.encode())
    assert answer.status_code == status, answer.text[:500]
    assert len(answer.text) < 3000
    assert time.monotonic() - begun < SECONDS / 2


@pytest.mark.parametrize("make", FILES, ids=lambda make: make.__name__)
def test_image_files_of_great_cost(attacked: Server, make: Any) -> None:
    process = psutil.Process(attacked.process.pid)
    before, body = process.memory_info().rss, {**GOOD, "image": text_of(make())}
    begun = time.monotonic()
    with attacked.client() as client:
        answer = client.post("/v1/predict", json=body)
    assert (answer.status_code, answer.json()["error"]["type"]) == (422, "image")
    assert time.monotonic() - begun < SECONDS / 4
    assert process.memory_info().rss - before < 100e6


def test_decoders_of_python(attacked: Server) -> None:
    """Punycode is decoded in quadratic time."""
    kind = "multipart/form-data; boundary=x; charset=punycode"
    body = b'--x\r\nContent-Disposition: form-data; name="labels"\r\n\r\n' + b"a" * 200_000 + b"-" + b"b9" * 100_000
    begun = time.monotonic()
    with attacked.client(headers={"Content-Type": kind}) as client:
        assert client.post("/v1/predict/form", content=body + b"\r\n--x--\r\n").status_code == 415
    assert time.monotonic() - begun < SECONDS / 4


def test_answers_that_nobody_reads(attacked: Server) -> None:
    """30 MB, more than the buffers of the system: the connection ends after a deadline."""
    with connect(attacked) as client:
        asked = f"GET /v1/methods HTTP/1.1\r\nHost: {urlsplit(attacked.url).netloc}\r\n\r\n".encode()
        client.settimeout(1)
        with suppress(OSError):  # the service stops to read, too
            for _ in range(1000):
                client.sendall(asked)
        port, end = client.getsockname()[1], time.monotonic() + SECONDS + 5 * ARRIVAL
        process = psutil.Process(attacked.process.pid)
        while port in [each.raddr.port for each in process.net_connections("tcp") if each.raddr]:
            assert time.monotonic() < end
            time.sleep(0.1)
    assert answers(attacked)


def test_head_and_the_description_of_the_token(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("0123456789abcdef")
    options = ["--method", "zero-shot", "--views", "1", "--token-file", str(tmp_path / "token")]
    with serving(*options) as server, server.client() as client:
        for path in ("/", "/healthz", "/readyz", "/page/main.js"):
            found, full = client.head(path), client.get(path)
            assert (found.status_code, found.content) == (200, b"")
            assert found.headers["content-length"] == full.headers["content-length"]
        assert client.head("/metrics").status_code == client.head("/v1/models").status_code == 401
        client.headers["Authorization"] = "Bearer 0123456789abcdef"
        assert client.head("/metrics").status_code == 200
        described = client.get("/openapi.json").json()
    (scheme,) = described["components"]["securitySchemes"].values()
    assert (scheme["type"], scheme["scheme"]) == ("http", "bearer")
    assert described["paths"]["/v1/predict"]["post"]["security"]


def test_very_many_texts_and_the_end(attacked: Server) -> None:
    """20,000 texts: neighbours are answered, and the process ends within the time of a request. The last test."""
    labels, templates = [f"class {i}" for i in range(200)], [f"a {i} of a {{}}." for i in range(100)]
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
