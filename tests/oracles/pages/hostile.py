"""Hostile requests made from the schema of requests, the registry of methods and the formats of images."""

from __future__ import annotations

import io
import json
import random
import struct
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

from oracles.pages.servers import image_file, text_of
from PIL import Image

from otpt.decoders import SERVED_FORMATS
from otpt.errors import OtptError
from otpt.methods import get_method, known_parts
from otpt.serve.schemas import CompareRequest, HubRequest, PredictRequest

LABELS = ["cat", "dog", "owl"]
NUMBERS = [0, -1, 1, 2, 64, 65, 2**31, 2**63, 10**30, -(10**30), 0.5, 1e-300, 1e308, -0.0]
TEXTS = [
    "",
    " ",
    "\x00",
    "\x1b[2J",
    "\ud800",
    "\u202ecat",
    "{}",
    "{0}",
    "{a.__class__}",
    "%s%n",
    "$(id)",
    "../../etc/passwd",
]
TEXTS += ["a" * 201, "é" * 3000, "$\\input{/etc/passwd}$", "=1+1", "<script>", "nan", "1e400", "file:///etc/passwd"]
OTHERS: list[Any] = [None, True, False, [], {}, [[]], [None], {"a": {"a": {"a": []}}}, [1, "a"], ["cat"] * 3000]
EXTREME = ("0", "-1", "1e-300", "1e308", "64", "1000000000", "1" + "0" * 30, "on", "", "x", "nan", "/etc/passwd")


class Hostile(NamedTuple):
    """A request: its route, and JSON or the fields and the file of a form."""

    route: str
    content: bytes
    form: dict[str, str] | None = None
    file: bytes = b""


def damaged(data: bytes, rng: random.Random) -> bytes:
    """A file with some of its first bytes replaced, cut off, or repeated."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        place = rng.randrange(min(len(changed), rng.choice((32, 128, 4096))))
        value = rng.choice((b"\xff\xff\xff\xff", b"\0\0\0\0", b"\x7f\xff", b"\x80", rng.randbytes(2), b"\0\1\0\0"))
        changed[place : place + len(value)] = value
    if rng.random() < 0.2:
        del changed[rng.randrange(len(changed)) :]
    if rng.random() < 0.1:
        changed *= rng.randint(2, 50)
    return bytes(changed)


def tiff_with_a_tile(side: int) -> bytes:
    """A TIFF of 16 × 16 pixels, in one tile of side × side."""
    packed = zlib.compress(bytes(1000))
    tags = [(256, 16), (257, 16), (258, 8), (259, 8), (262, 1), (277, 1)]
    offset = 8 + 2 + 12 * (len(tags) + 4) + 4
    entries = b"".join(struct.pack("<HHIHH", tag, 3, 1, value, 0) for tag, value in tags)
    for tag, value in ((322, side), (323, side), (324, offset), (325, len(packed))):
        entries += struct.pack("<HHII", tag, 4, 1, value)
    return b"II*\0" + struct.pack("<IH", 8, len(tags) + 4) + entries + struct.pack("<I", 0) + packed


def larger_than_its_header(wanted: tuple[int, int] = (4, 4), size: tuple[int, int] = (3000, 2000)) -> bytes:
    """An AVIF whose header says 4 × 4 pixels, and whose frame has six million."""
    file = io.BytesIO()
    Image.new("RGB", size, (9, 99, 199)).save(file, "AVIF", quality=10)
    data = bytearray(file.getvalue())
    place = data.index(b"ispe") + 8
    data[place : place + 8] = struct.pack(">II", *wanted)
    return bytes(data)


def images() -> list[bytes]:
    """Files of all formats, also of those that are refused, and known attacks."""
    forms = (*SERVED_FORMATS, "ICO", "PPM", "TGA", "PCX", "SGI", "JPEG2000", "DDS", "ICNS", "PDF", "EPS")
    found = []
    for number, form in enumerate(forms):
        try:
            found.append(image_file(number, form=form))
        except (OSError, KeyError, ValueError):
            continue
    frames = [Image.new("RGB", (20, 20), (i, 0, 0)) for i in range(30)]
    for form in ("GIF", "WEBP", "TIFF", "AVIF"):
        file = io.BytesIO()
        frames[0].save(file, form, save_all=True, append_images=frames[1:])
        found.append(file.getvalue())
    return [*found, *(tiff_with_a_tile(side) for side in (512, 4096, 46336)), larger_than_its_header()]


def settings() -> list[str]:
    """Methods with an extreme value of each of their settings."""
    found = []
    for part in known_parts():
        for name in (part, f"tpt+{part}"):
            try:
                method = get_method(name)
            except OtptError:
                continue
            numbers = [*method.defaults, *method.input_settings, "steps", "learning-rate", "weight", "views"]
            found += [f"{name}[{number.replace('_', '-')}={value}]" for number in numbers for value in EXTREME]
    return found


def value_of(schema: dict[str, Any], rng: random.Random) -> Any:
    """A value of a field: of its type or of another one, mostly at the edges."""
    choices = [schema, *schema.get("anyOf", [])]
    enums = [word for choice in choices for word in choice.get("enum", [])]
    kind = rng.randrange(5)
    if kind == 0 and enums:
        return rng.choice(enums)
    if kind == 1:
        return rng.choice(OTHERS)
    return rng.choice([*NUMBERS, *TEXTS])


def requests(seed: int, count: int) -> Iterator[Hostile]:
    """Yield hostile requests, the same for the same seed."""
    rng = random.Random(seed)
    files, methods = images(), settings()
    good = text_of(image_file(1))
    schemas = {
        "/v1/predict": PredictRequest.model_json_schema()["properties"],
        "/v1/compare": CompareRequest.model_json_schema()["properties"],
        "/models/pocket": HubRequest.model_json_schema()["properties"],
    }
    for _ in range(count):
        route = rng.choice([*schemas, "/v1/predict", "/v1/compare"])
        body: dict[str, Any] = {"image": good, "labels": LABELS, "views": rng.choice((1, 2, 8))}
        if route == "/v1/compare":
            body["methods"] = ["zero-shot"]
        if route == "/models/pocket":
            body = {"inputs": good, "parameters": {"candidate_labels": LABELS}}
        attack = rng.choice(("fields", "fields", "method", "method", "image", "image", "image", "size"))
        if attack == "fields":
            for name in rng.sample(sorted(schemas[route]), min(rng.randint(1, 3), len(schemas[route]))):
                body[name] = value_of(schemas[route][name], rng)
        elif attack == "method" and route != "/models/pocket":
            chosen = [rng.choice(methods) for _ in range(rng.randint(1, 3))]
            body["methods" if route == "/v1/compare" else "method"] = chosen if route == "/v1/compare" else chosen[0]
        elif attack == "image":
            file = rng.choice(files)
            file = file if rng.random() < 0.2 else damaged(file, rng)
            if rng.random() < 0.3 and route != "/models/pocket":
                fields = {key: json.dumps(value) for key, value in body.items() if key != "image"}
                yield Hostile(f"{route}/form", b"", fields, file)
                continue
            body["inputs" if route == "/models/pocket" else "image"] = text_of(file)
        elif route != "/models/pocket":
            labels = [f"class {rng.random()}" for _ in range(rng.choice((1, 300, 2000, 5000)))]
            body |= {"labels": labels, "views": rng.choice((1, 64, 1000)), "reject": rng.choice((True, False))}
            body |= {"top": rng.choice((5, 10**6)), "explain": rng.choice((True, False))}
            name = rng.choice(("zero-shot", "tpt", "tpt[steps=16]", "templates-80", "gs-bias[bias-steps=30000]"))
            body |= {"methods": [name]} if route == "/v1/compare" else {"method": name}
            if rng.random() < 0.3:
                body["images"] = [body.pop("image")] * rng.choice((2, 16, 17))
        text = json.dumps(body, allow_nan=True)
        content = text.encode()
        if rng.random() < 0.03:
            content = damaged(content, rng)
        yield Hostile(route, content)
