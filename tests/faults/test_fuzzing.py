"""Structured fuzzing of images, checkpoints, data sets and requests: an answer, or one sentence.

Valid files are mutated byte by byte and by structure (lengths, repeated and deleted blocks, values of other types) and
read in forked processes with bounded memory. ``OTPT_FAULT_CASES`` sets the number of cases; a failure names its case.
"""

from __future__ import annotations

import base64
import csv
import io
import json
import os
import random
import resource
import struct
import tarfile
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from faults.conftest import CASES
from faults.processes import run
from oracles.models.tiny import open_clip_local_dir, openai_archive
from PIL import Image

import otpt
from otpt.data import load_dataset
from otpt.errors import OtptError
from otpt.images import open_image

pytestmark = [pytest.mark.long, pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")]

MEMORY = 6 << 30  # bytes that a case may have in addition to those of the parent
FORMATS = ("PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF", "PPM", "TGA", "ICO", "EPS", "JPEG2000", "DDS", "PCX", "SGI")
TEXTS = ("", "..", "../x", "/etc/passwd", "\0", "\ud800", "x" * 5000, "NaN", "-1", "1e999", "{0..9}", "𝕏", "a\nb")


def mutated(data: bytes, chosen: random.Random) -> bytes:
    """The data with one to four changes."""
    found = bytearray(data)
    for _ in range(chosen.randint(1, 4)):
        size = len(found)
        here, there = chosen.randrange(size + 1), chosen.randrange(size + 1)
        length = chosen.choice((1, 2, 4, 8, 64, 1024))
        kind = chosen.randrange(7)
        if kind == 0 and size:
            found[here % size] ^= 1 << chosen.randrange(8)
        elif kind == 1:
            del found[here:]
        elif kind == 2:  # a length or an offset
            number = chosen.choice((0, 1, 0x7FFFFFFF, 0xFFFFFFFF, size, size - 1))
            found[here : here + 4] = struct.pack(chosen.choice("<>") + "I", max(number, 0))
        elif kind == 3:
            found[here:here] = found[there : there + length]
        elif kind == 4:
            del found[here : here + length]
        elif kind == 5:
            found[here : here + length] = chosen.randbytes(length)
        else:
            found[here:here] = struct.pack("<Q", 2 ** chosen.randrange(64))
    return bytes(found)


def mutated_json(value: Any, chosen: random.Random) -> Any:
    """The value with one part replaced by something of another type or size."""
    strange = (None, True, -1, 0, 2**63, 1e308, [], {}, [[]], *TEXTS)
    if isinstance(value, dict) and value and chosen.random() < 0.9:
        key = chosen.choice(sorted(value))
        if chosen.random() < 0.1:
            return {name: each for name, each in value.items() if name != key}
        return {**value, key: mutated_json(value[key], chosen)}
    if isinstance(value, list) and value and chosen.random() < 0.7:
        index = chosen.randrange(len(value))
        return [*value[:index], mutated_json(value[index], chosen), *value[index + 1 :]]
    return chosen.choice(strange)


def attempt(read: Callable[[], Any], case: object) -> None:
    """Read: an answer or one sentence is fine."""
    sentence = ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            read()
    except OtptError as error:
        sentence = str(error)
    if sentence and not (sentence.isprintable() and len(sentence.split()) > 3):
        raise AssertionError(f"case {case}: {sentence!r}")


def bounded(work: Callable[[], Any]) -> None:
    """Work with bounded memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[0]) if Path("/proc/self/statm").exists() else 0
    limit = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    work()


def check(work: Callable[[], Any], folder: Path, case: object) -> None:
    ended = run(lambda: bounded(work), folder / "printed.txt")
    assert ended.code == 0, f"case {case}: {ended.code} {ended.printed[-3000:]}"


@pytest.mark.parametrize("kind", FORMATS)
def test_images(kind: str, tmp_path: Path) -> None:
    buffer = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 256, (24, 24, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(buffer, kind)

    def read_all() -> None:
        for case in range(50 * CASES):
            data = mutated(buffer.getvalue(), random.Random(f"{kind} {case}"))
            attempt(partial(open_image, data), case)

    check(read_all, tmp_path, kind)


def some_checkpoints(folder: Path) -> list[Path]:
    openai_archive(folder / "openai.pt")
    open_clip_local_dir(folder / "local")
    torch.save({"state_dict": {"visual.proj": torch.ones(2, 2)}}, folder / "plain.pt")
    return [folder / "openai.pt", folder / "plain.pt", folder / "local" / "open_clip_model.safetensors"]


@pytest.mark.parametrize("number", range(3))
def test_checkpoints(number: int, tmp_path: Path) -> None:
    path = some_checkpoints(tmp_path)[number]
    data = path.read_bytes()
    head, tail = (data[:20_000], data[20_000:]) if path.suffix == ".safetensors" else (data[-40_000:], b"")
    for case in range(2 * CASES):
        changed = mutated(head, random.Random(f"{path.name} {case}"))
        path.write_bytes(changed + tail if path.suffix == ".safetensors" else data[:-40_000] + changed)
        check(partial(attempt, partial(otpt.load_backbone, path), case), tmp_path, case)


def test_model_folders(tmp_path: Path) -> None:
    open_clip_local_dir(tmp_path / "model")
    path = tmp_path / "model" / "open_clip_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    for case in range(2 * CASES):
        path.write_text(json.dumps(mutated_json(config, random.Random(case))), encoding="utf-8")
        check(partial(attempt, partial(otpt.load_backbone, f"local-dir:{path.parent}"), case), tmp_path, case)


def table(folder: Path, chosen: random.Random) -> Path:
    values = [*TEXTS, "a.jpg", "cat", "0", "1"]
    rows = [{"path": chosen.choice(values), "label": chosen.choice(values)} for _ in range(chosen.randint(0, 4))]
    if chosen.random() < 0.5:
        rows = [{key: value.encode("utf-8", "replace").decode() for key, value in row.items()} for row in rows]
        pq.write_table(
            pa.Table.from_pylist(rows, pa.schema([("path", pa.string()), ("label", pa.string())])), folder / "a.parquet"
        )
        path = folder / "a.parquet"
    else:
        path = folder / "a.csv"
        with path.open("w", newline="", encoding="utf-8", errors="surrogatepass") as file:
            writer = csv.DictWriter(file, ["path", "label"])
            writer.writeheader()
            writer.writerows(rows)
    if chosen.random() < 0.5:
        path.write_bytes(mutated(path.read_bytes(), chosen))
    return path


def tar(folder: Path, chosen: random.Random) -> Path:
    path = folder / "a.tar"
    with tarfile.open(path, "w") as file:
        for i in range(chosen.randint(0, 3)):
            for suffix in ("jpg", "cls", "json"):
                content = chosen.choice([b"", b"0", b"[", b"{}", b'{"label": 1}', bytes(1000)])
                member = tarfile.TarInfo(chosen.choice([f"{i}.{suffix}", f"../{i}.{suffix}", f"/{i}.{suffix}"]))
                member.type = chosen.choice([tarfile.REGTYPE, tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.DIRTYPE])
                member.size = len(content) if member.type == tarfile.REGTYPE else 0
                file.addfile(member, io.BytesIO(content))
    path.write_bytes(mutated(path.read_bytes(), chosen))
    return path


@pytest.mark.parametrize("make", [table, tar])
def test_data_sets(make: Callable[[Path, random.Random], Path], tmp_path: Path) -> None:
    def read_all() -> None:
        for case in range(10 * CASES):
            attempt(partial(load_dataset, str(make(tmp_path, random.Random(case)))), case)

    check(read_all, tmp_path, make.__name__)


def test_method_files(tmp_path: Path) -> None:
    text = b"[methods.mine]\nobjectives = {entropy = 1.0, orthogonality = 18.0}\nsteps = 2\nselected = 0.1\nlr = 5e-3\n"

    def read_all() -> None:
        for case in range(50 * CASES):
            (tmp_path / "a.toml").write_bytes(mutated(text, random.Random(case)))
            attempt(partial(otpt.load_methods, tmp_path / "a.toml"), case)

    check(read_all, tmp_path, "method files")


def test_requests(tmp_path: Path) -> None:
    """No request fails the service, and every error is JSON."""
    from fastapi.testclient import TestClient

    from otpt.serve import Limits, Service, create_app

    buffer = io.BytesIO()
    Image.new("RGB", (16, 16)).save(buffer, "PNG")
    body = {
        "image": base64.b64encode(buffer.getvalue()).decode(),
        "labels": ["cat", "dog"],
        "method": "zero-shot",
        "seed": 1,
        "top": 1,
        "template": "a photo of a",
    }
    service = Service(
        {"pocket": otpt.load_backbone("pocket", device="cpu")}, views=2, limits=Limits(), method="zero-shot"
    )
    with TestClient(create_app(service), base_url="http://127.0.0.1", raise_server_exceptions=False) as client:
        for case in range(20 * CASES):
            chosen = random.Random(case)
            if chosen.random() < 0.7:
                text = json.dumps(mutated_json(body, chosen)).encode()
            else:
                text = mutated(json.dumps(body).encode(), chosen)
            path = chosen.choice(["/v1/predict", "/v1/compare", "/models/pocket"])
            answer = client.post(path, content=text, headers={"content-type": "application/json"})
            assert answer.status_code < 500, (case, answer.text)
            answer.json()
