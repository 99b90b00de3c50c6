"""Bad and malicious requests: each is refused with a JSON error, and others are answered."""

from __future__ import annotations

import io
import random
import struct
import tempfile
import time
import zlib
from pathlib import Path
from typing import Any

import pytest
from oracles.pages.servers import Server, image_file, text_of
from PIL import Image

from .conftest import Local

pytestmark = pytest.mark.slow

LABELS = ["cat", "dog"]
GOOD = {"image": text_of(image_file(1)), "labels": LABELS, "method": "zero-shot"}
SEVERAL = {"image": GOOD["image"], "labels": LABELS, "multi_label": True}


def bomb() -> bytes:
    """A PNG of a few hundred bytes that announces 60,000 × 60,000 pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(bytes(100_000)))
        + chunk(b"IEND", b"")
    )


def truncated() -> bytes:
    """The first half of a JPEG."""
    data = image_file(2, size=(300, 200), form="JPEG")
    return data[: len(data) // 2]


def animation() -> bytes:
    """A GIF of 50 frames, of which only the first counts."""
    frames = [Image.new("RGB", (20, 20), (i, 0, 0)) for i in range(50)]
    file = io.BytesIO()
    frames[0].save(file, "GIF", save_all=True, append_images=frames[1:])
    return file.getvalue()


BAD: dict[str, tuple[int, Any]] = {
    "no JSON": (400, b"{"),
    "JSON that is no object": (422, []),
    "deeply nested JSON": (400, b"[" * 100_000),
    "not a number": (400, b'{"coverage": NaN}'),
    "no image": (422, {**GOOD, "image": None}),
    "two kinds of images": (422, {**GOOD, "images": [GOOD["image"]]}),
    "17 images": (422, {"images": [GOOD["image"]] * 17, "labels": LABELS}),
    "an unknown field": (422, {**GOOD, "path": "/etc/passwd"}),
    "a path as an image": (400, {**GOOD, "image": "/etc/passwd"}),
    "a file address as an image": (400, {**GOOD, "image": "file:///etc/passwd"}),
    "an address as an image": (422, {**GOOD, "image": "http://169.254.169.254/latest/meta-data"}),
    "a data URL without base64": (400, {**GOOD, "image": "data:image/png,abc"}),
    "text as an image": (422, {**GOOD, "image": text_of(b"not an image")}),
    "an empty image": (422, {**GOOD, "image": ""}),
    "a decompression bomb": (422, {**GOOD, "image": text_of(bomb())}),
    "a truncated image": (422, {**GOOD, "image": text_of(truncated())}),
    "one label by a method for several": (422, {**GOOD, "labels": ["cat"]}),
    "a heat map of one label": (422, {"image": GOOD["image"], "labels": ["cat"], "explain": True}),
    "a blank label": (422, {**GOOD, "labels": ["cat", " "]}),
    "a duplicate label": (422, {**GOOD, "labels": ["cat", "Cat"]}),
    "10,000 labels": (422, {**GOOD, "labels": [f"class {i}" for i in range(10_000)]}),
    "a label of 1 MB": (422, {**GOOD, "labels": ["cat", "x" * (1 << 20)]}),
    "a label of too many tokens": (422, {**GOOD, "labels": ["cat", "z1" * 100]}),
    "8,010 texts": (422, {**GOOD, "labels": [f"class {i}" for i in range(90)], "templates": ["a {}."] * 89}),
    "80 published templates": (422, {**GOOD, "labels": [str(i) for i in range(150)], "method": "templates-80"}),
    "a key twice": (400, b'{"labels": ["a", "b"], "labels": ["c", "d"]}'),
    "labels and a list": (422, {**GOOD, "classes": "animals"}),
    "a path as a class list": (422, {"image": GOOD["image"], "classes": "../../etc/passwd"}),
    "a path as a calibration": (422, {**GOOD, "calibration": "/etc/passwd"}),
    "a path as a model": (422, {**GOOD, "model": "../../model.pt"}),
    "a file as a method": (422, {**GOOD, "method": "/etc/evil.toml"}),
    "an unknown method": (422, {**GOOD, "method": "otp"}),
    "a stream method": (422, {**GOOD, "method": "tda"}),
    "a method with a network of its own": (422, {**GOOD, "method": "baple"}),
    "a method that needs a file": (422, {**GOOD, "method": "coop+tpt"}),
    "too many views": (422, {**GOOD, "views": 100_000}),
    "no views": (422, {**GOOD, "views": 0}),
    "one view of a method that needs more": (422, {**GOOD, "method": "zero", "views": 1}),
    "coverage without calibration": (422, {**GOOD, "coverage": 0.9}),
    "a calibration of other classes": (422, {**GOOD, "method": "tpt", "calibration": "animals"}),
    "a template without context": (422, {**GOOD, "prompt": "{}"}),
    "a template with two places": (422, {**GOOD, "prompt": "{} or {}"}),
    "templates for a method that tunes": (422, {**GOOD, "method": "tpt", "templates": ["a {}."]}),
    "an unknown score": (422, {**GOOD, "reject": "nonsense"}),
    "several labels by a method for one": (422, {**GOOD, "multi_label": True}),
    "several labels and groups": (
        422,
        {"image": GOOD["image"], "labels": LABELS, "multi_label": True, "groups": {"a": LABELS}},
    ),
    "several labels and a calibration": (
        422,
        {**GOOD, "method": None, "multi_label": True, "calibration": ["animals"]},
    ),
    "a group of no class": (422, {**GOOD, "groups": {"pet": ["fox"]}}),
    "groups that overlap": (422, {**GOOD, "labels": ["a", "b", "c"], "groups": {"x": ["a", "b"], "y": ["b", "c"]}}),
    "a group member that is a list": (422, {**GOOD, "groups": {"pet": [["cat"]]}}),
    "a group member that is an object": (422, {**GOOD, "groups": {"pet": [{}]}}),
    "an empty list of labels": (422, {**GOOD, "labels": []}),
    "an empty list of labels of an image": (422, {**GOOD, "labels": [[]]}),
    "a group of nothing": (422, {**GOOD, "groups": {"pet": {}}}),
    "two lists of labels for one image": (422, {**GOOD, "labels": [LABELS, LABELS]}),
    "a list of labels that holds a number": (422, {**GOOD, "labels": [["cat", 1]]}),
    "a heat map of another label": (422, {**GOOD, "explain": "fox"}),
    "a heat map of two images": (422, {**GOOD, "image": None, "images": [GOOD["image"]] * 2, "explain": True}),
    "classes by examples": (422, {**GOOD, "examples": {"ours": [GOOD["image"]]}}),
    "a huge seed": (422, {**GOOD, "seed": 1 << 70}),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_json(local: Local, name: str) -> None:
    status, content = BAD[name]
    given: dict[str, Any] = {"content": content} if isinstance(content, bytes) else {"json": content}
    with local.client(headers={"Content-Type": "application/json"}) as client:
        answer = client.post("/v1/predict", **given)
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert {"type", "message"} <= set(error) <= {"type", "message", "given", "expected", "hint"}
    assert all(error.values())
    assert len(answer.text) < 3000
    assert "Traceback" not in answer.text


def test_bad_forms(local: Local) -> None:
    inner = b"--in\r\nContent-Disposition: form-data; name=image\r\n\r\nx\r\n--in--\r\n"
    nested = (
        b'--out\r\nContent-Disposition: form-data; name="image"; filename="../../x.png"\r\n'
        b"Content-Type: multipart/mixed; boundary=in\r\n\r\n" + inner + b"\r\n--out\r\n"
        b'Content-Disposition: form-data; name="labels"\r\n\r\ncat,dog\r\n--out--\r\n'
    )
    form = "multipart/form-data; boundary=out"
    cases = [
        (nested, form, 422),  # the inner form is no image
        (nested, "multipart/form-data", 400),
        (nested, "multipart/form-data; boundary=" + "b" * 5000, 415),
        (b"--out\r\n\r\nno name\r\n--out--\r\n", form, 400),
        (b"\x00" * 1000, form, 400),
        (b"labels=cat", "application/x-www-form-urlencoded", 415),
        (b"<x/>", "text/xml", 415),
        (b"{}", "", 415),
    ]
    with local.client() as client:
        for body, kind, status in cases:
            answer = client.post("/v1/predict/form", content=body, headers={"Content-Type": kind} if kind else {})
            assert answer.status_code == status, (body[:60], kind[:60], answer.text)
            assert {"type", "message"} <= set(answer.json()["error"])
        one = [("image", image_file(1))]
        for files, data in (
            (one * 17, {"labels": "cat,dog"}),
            ([("file", image_file(1))], {"labels": "cat,dog"}),
            (one, {"labels": "cat,dog", "top": "many"}),
            (one, {"labels": '["cat", '}),
            (one, {"labels": "cat,dog", "path": "/etc/passwd"}),
        ):
            assert client.post("/v1/predict/form", files=files, data=data).status_code == 422, data
        for data in ({"labels": "[" * 100_000}, {"labels": "cat,dog", "groups": '{"a": ["cat"], "a": ["dog"]}'}):
            assert client.post("/v1/predict/form", files=one, data=data).status_code == 400, data


def test_a_large_body(local: Local) -> None:
    with local.client() as client:
        known = client.post("/v1/predict", content=bytes(17 << 20), headers={"Content-Type": "application/json"})
        parts = (bytes(1 << 20) for _ in range(18))
        unknown = client.post("/v1/predict", content=parts, headers={"Content-Type": "application/json"})
    assert known.status_code == unknown.status_code == 413
    assert known.json()["error"]["type"] == "body-too-large"


def test_uploads_stay_in_memory(local: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(_: object) -> None:
        raise AssertionError("an upload was written to the disk")

    monkeypatch.setattr(tempfile.SpooledTemporaryFile, "rollover", write)
    noise = Image.frombytes("RGB", (1000, 1000), random.Random(0).randbytes(3_000_000))
    file = io.BytesIO()
    noise.save(file, "PNG")
    assert len(file.getvalue()) > 2 << 20
    with local.client() as client:
        asked = {"labels": "cat,dog", "method": "zero-shot"}
        answer = client.post("/v1/predict/form", files=[("image", file.getvalue())], data=asked)
    assert answer.status_code == 200, answer.text


def test_each_image_has_its_own_error(local: Local) -> None:
    images = [text_of(each) for each in (image_file(1), bomb(), animation())]
    with local.client() as client:
        answer = client.post("/v1/predict", json={"images": images, "labels": LABELS, "method": "zero-shot"})
    first, second, third = answer.json()["results"]
    assert answer.status_code == 200
    assert "too many pixels" in second["error"]["message"]
    assert first["label"] in LABELS
    assert third["label"] in LABELS


def test_routes_that_do_not_exist(local: Local) -> None:
    with local.client() as client:
        for path in ("/nothing", "/v1/../../etc/passwd", "/page/../service.py", "/page/%2e%2e/service.py", "/docs"):
            answer = client.get(path)
            assert answer.status_code == 404, path
            assert answer.json()["error"]["type"] == "http"
        wrong = client.get("/v1/predict")
        assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")


def test_pages_of_other_sites(local: Local) -> None:
    with local.client() as client:
        site = client.post("/v1/predict", json=GOOD, headers={"Origin": "https://example.org"})
        name = client.post("/v1/predict", json=GOOD, headers={"Host": "rebound.example.org"})
        own = client.post("/v1/predict", json=GOOD, headers={"Origin": local.url})
    assert [each.status_code for each in (site, name, own)] == [403, 400, 200]
    assert not any("access-control" in header for header in own.headers)
    assert "default-src 'self'" in own.headers["content-security-policy"]


def test_the_log_holds_no_content(server: Server) -> None:
    label = "unmistakable label"
    with server.client() as client:
        assert client.post("/v1/predict", json={**GOOD, "labels": ["cat", label]}).status_code == 200
    deadline = time.monotonic() + 60
    while '"route": "/v1/predict"' not in Path(server.log).read_text(encoding="utf-8"):  # written after the response
        assert time.monotonic() < deadline
        time.sleep(0.02)
    log = Path(server.log).read_text(encoding="utf-8")
    assert label not in log
    assert text_of(image_file(1))[:40] not in log
    assert "Traceback" not in log
