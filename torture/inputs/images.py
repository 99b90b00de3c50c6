"""Images: files in all formats that Pillow writes, damaged or with headers that lie; arrays of any shape and type."""

from __future__ import annotations

import io
import os
import random
import struct
import zlib
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from otpt.images import open_image
from otpt.images.opening import open_with_digest
from torture.inputs.kinds import Input, Kind
from torture.inputs.mutations import damaged, text

_FORMATS = (
    ("PNG", "RGB"), ("PNG", "RGBA"), ("PNG", "P"), ("PNG", "I;16"), ("PNG", "1"), ("JPEG", "RGB"), ("JPEG", "L"),
    ("JPEG", "CMYK"), ("GIF", "P"), ("WEBP", "RGB"), ("WEBP", "RGBA"), ("TIFF", "RGB"), ("TIFF", "F"), ("TIFF", "I"),
    ("BMP", "RGB"), ("PPM", "RGB"), ("TGA", "RGB"), ("ICO", "RGBA"), ("ICNS", "RGBA"), ("PCX", "RGB"), ("SGI", "RGB"),
    ("DDS", "RGBA"), ("IM", "RGB"), ("MSP", "1"), ("XBM", "1"), ("SPIDER", "F"), ("EPS", "RGB"), ("PDF", "RGB"),
    ("JPEG2000", "RGB"), ("AVIF", "RGB"), ("QOI", "RGB"), ("MPO", "RGB"), ("BLP", "P"),
)  # fmt: skip


@cache
def _samples() -> list[tuple[str, bytes]]:
    """A small image in each format that this Pillow writes; animations and metadata too."""
    found = []
    values = np.random.default_rng(0).integers(0, 256, (24, 24, 4), dtype=np.uint8)
    base = Image.fromarray(values)
    for kind, mode in _FORMATS:
        image = base.convert("I").convert("I;16") if mode == "I;16" else base.convert("L" if mode in "FI" else mode)
        buffer = io.BytesIO()
        try:
            (image.convert(mode) if mode in "FI" else image).save(buffer, kind)
        except (OSError, KeyError, ValueError):  # this Pillow was built without it
            continue
        found.append((f"{kind} {mode}", buffer.getvalue()))
    frames = [base.convert("P"), base.rotate(90).convert("P"), base.rotate(180).convert("P")]
    for kind in ("GIF", "WEBP", "PNG", "TIFF"):
        buffer = io.BytesIO()
        frames[0].convert("RGB").save(buffer, kind, save_all=True, append_images=[f.convert("RGB") for f in frames[1:]])
        found.append((f"animated {kind}", buffer.getvalue()))
    exif = Image.Exif()
    exif.update({0x0112: 6, 0x010E: "x" * 2000, 0x8769: {0x9286: b"y" * 5000}})
    buffer = io.BytesIO()
    base.convert("RGB").save(buffer, "JPEG", exif=exif)
    found.append(("JPEG with EXIF", buffer.getvalue()))
    return found


def _png(width: int, height: int, rows: bytes) -> bytes:
    """A PNG that says it has so many pixels, whatever it has."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def _exif_bomb(rng: random.Random) -> bytes:
    """A JPEG whose EXIF points at itself, or says that it holds more than there is."""
    entries = [
        struct.pack(
            ">HHII",
            rng.choice((0x0112, 0x8769, 0x8825, 0xA005, rng.getrandbits(16))),
            rng.choice((1, 2, 3, 4, 5, 7, 12, 99)),
            rng.choice((1, 2**16, 2**31, 2**32 - 1)),
            rng.choice((0, 8, 26, 2**31, 2**32 - 1)),
        )
        for _ in range(rng.randrange(1, 40))
    ]
    count = rng.choice((len(entries), 65535))
    tiff = b"MM\x00*" + struct.pack(">I", 8) + struct.pack(">H", count) + b"".join(entries) + struct.pack(">I", 8)
    block = b"Exif\x00\x00" + tiff
    plain = next(data for name, data in _samples() if name == "JPEG RGB")
    return plain[:2] + b"\xff\xe1" + struct.pack(">H", len(block) + 2) + block + plain[2:]


def _file(rng: random.Random) -> tuple[bytes, str]:
    choice = rng.random()
    if choice < 0.80:
        name, data = rng.choice(_samples())
        data, done = damaged(rng, data)
        return data, f"{name}: {done}"
    if choice < 0.88:
        side = (0, 1, 64, 13_000, 65_500, 2**20, 2**31 - 1, 2**32 - 1)
        width, height = rng.choice(side), rng.choice(side)
        return _png(width, height, b"\x00" * rng.choice((0, 10, 10**5))), f"PNG header of {width}×{height}"
    if choice < 0.95:
        return _exif_bomb(rng), "EXIF bomb"
    if choice < 0.97:
        (name, data), (other, end) = rng.choice(_samples()), rng.choice(_samples())
        at = rng.randrange(len(data))
        return data[:at] + end[rng.randrange(len(end)) :], f"{name} then {other}"
    return rng.randbytes(rng.choice((0, 1, 16, 4096))), "noise"


def _image(rng: random.Random, given: Path) -> Input:
    data, detail = _file(rng)
    way = rng.choice(("bytes", "path", "file object"))
    if way == "bytes":
        return Input(f"{detail}, as bytes", lambda: open_image(data))
    if way == "file object":
        return Input(f"{detail}, as a file object", lambda: open_with_digest(io.BytesIO(data), key="file"))
    path = given / rng.choice(("a.jpg", "a.png", "a", "a.tiff", "ü\u202e.gif"))
    path.write_bytes(data)
    return Input(f"{detail}, as a file", lambda: open_image(path))


def _special(rng: random.Random, given: Path) -> Input:
    """A path that is not a file."""
    (given / "folder.jpg").mkdir()
    (given / "loop.jpg").symlink_to(given / "loop.jpg")
    (given / "dangling.jpg").symlink_to(given / "nothing")
    os.mkfifo(given / "pipe.jpg")
    name = rng.choice(("folder.jpg", "loop.jpg", "dangling.jpg", "pipe.jpg", text(rng), text(rng)))
    whole = f"{given}/{name}" if rng.random() < 0.8 else name
    return Input(f"the path {ascii(name)[:60]}", lambda: open_image(whole))


def _array(rng: random.Random, given: Path) -> Input:
    import torch

    shape = tuple(rng.choice((0, 1, 2, 3, 4, 5, 17)) for _ in range(rng.randrange(0, 6)))
    kind = rng.choice("bBhHiIlLqQefdgFD?OSUMm")
    with np.errstate(all="ignore"):
        values: Any = np.array(rng.choice((0, 1, 0.5, -1, 255, 1e9)), np.float64)
        array: Any = np.full(shape, values).astype(kind if kind not in "Mm" else f"{kind}8[s]")
    if rng.random() < 0.2 and array.dtype.kind == "f" and array.size:
        array.flat[rng.randrange(array.size)] = rng.choice((np.nan, np.inf, -np.inf))
    if rng.random() < 0.3 and array.dtype.kind in "fiub?" and array.dtype.char not in "gHILQ":
        array = torch.from_numpy(array).to(rng.choice((torch.bfloat16, torch.float32, torch.uint8)))
    if rng.random() < 0.1:
        wrong: Any = rng.choice((None, 3, [1], {"a": 1}, object, io.StringIO("x"), Image.new("RGB", (0, 3)), ...))
        return Input(f"a {type(wrong).__name__}", lambda: open_image(wrong))
    return Input(f"an array {shape} of {kind}", lambda: open_image(array))


KINDS = [
    Kind("image files", _image, _samples),
    Kind("image paths", _special, _samples),
    Kind("image arrays", _array),
]
