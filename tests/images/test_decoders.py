"""Decoding in processes of their own: the same pixels, and no file that takes more than an image of its size needs."""

from __future__ import annotations

import io
import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
from PIL import Image

from otpt.decoders import SERVED_FORMATS, Decoders, DecodingLimits, _Process
from otpt.errors import OtptError
from otpt.images import open_with_digest

pytestmark = pytest.mark.skipif(not hasattr(os, "pwrite"), reason="the limits are those of Unix")

MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16", "YCbCr")


@pytest.fixture(scope="module")
def decoders() -> Iterator[Decoders]:
    with Decoders(1, DecodingLimits(SERVED_FORMATS, 1_000_000)) as made:
        yield made


def file_of(form: str, mode: str = "RGB", size: tuple[int, int] = (61, 47)) -> bytes:
    colours = np.random.default_rng(0).integers(0, 256, (9, 12, 3), np.uint8)
    picture = Image.fromarray(colours).resize(size)
    if mode == "I;16":
        picture = Image.fromarray(np.asarray(picture.convert("L")).astype(np.uint16) * 257)
    else:
        picture = picture.convert(mode)
    file = io.BytesIO()
    picture.save(file, form)
    return file.getvalue()


def tiff_with_a_tile(side: int) -> bytes:
    """A TIFF of 16 × 16 pixels, in one tile of side × side."""
    packed = zlib.compress(bytes(1000))
    tags = [(256, 16), (257, 16), (258, 8), (259, 8), (262, 1), (277, 1)]
    offset = 8 + 2 + 12 * (len(tags) + 4) + 4
    entries = b"".join(struct.pack("<HHIHH", tag, 3, 1, value, 0) for tag, value in tags)
    for tag, value in ((322, side), (323, side), (324, offset), (325, len(packed))):
        entries += struct.pack("<HHII", tag, 4, 1, value)
    return b"II*\0" + struct.pack("<IH", 8, len(tags) + 4) + entries + struct.pack("<I", 0) + packed


def test_pixels_are_those_of_this_process(decoders: Decoders, tmp_path: Path) -> None:
    compared = 0
    for form in SERVED_FORMATS:
        for mode in MODES:
            try:
                data = file_of(form, mode)
            except (OSError, ValueError):  # the format does not have the mode
                continue
            image, digest = decoders.decode(data)
            expected, of_here = open_with_digest(data)
            assert (image.size, image.tobytes(), digest) == (expected.size, expected.tobytes(), of_here), (form, mode)
            compared += 1
    assert compared > 25
    path = tmp_path / "a.png"
    path.write_bytes(file_of("PNG"))
    assert decoders.open(path)[1] == decoders.open(Image.open(path))[1] == open_with_digest(path)[1]


def test_the_same_sentence_as_in_this_process(tmp_path: Path) -> None:
    with Decoders(1) as decoders:
        for data in (b"", b"no image", file_of("PNG")[:200], b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"):
            path = tmp_path / "damaged.png"
            path.write_bytes(data)
            sentences = []
            for function in (decoders.open, open_with_digest):
                with pytest.raises(OtptError) as caught:
                    function(path)
                sentences.append(str(caught.value))
            assert sentences[0] == sentences[1]


@pytest.mark.parametrize("side", [2048, 8192, 46336])
def test_a_tile_larger_than_its_image(decoders: Decoders, side: int) -> None:
    for function in (decoders.size, decoders.decode):
        with pytest.raises(OtptError, match=f"{side}×{side}"):
            function(tiff_with_a_tile(side))


def test_memory_and_time_of_a_decoder_are_limited(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Decoders that take what they like, in place of what the next list of attacks has."""
    greedy = "import otpt.decoders as d\ndef take(*_):\n    {}\nd.open_checked = take\n"
    for code, expected in (
        ("x = [bytes(10_000_000) for _ in range(200)]", "more memory"),
        ("\n    while True: pass", "processor time|too long"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "damaged"),
    ):
        (tmp_path / "greedy.py").write_text(greedy.format(code))
        monkeypatch.setattr("otpt.decoders._HEADER_SECONDS", 0.5)
        monkeypatch.setattr("otpt.decoders._PRELOADED", "greedy")
        monkeypatch.syspath_prepend(str(tmp_path))
        with Decoders(1) as decoders:
            with pytest.raises(OtptError, match=expected):
                decoders.size(file_of("PNG"))
            monkeypatch.setattr("otpt.decoders._PRELOADED", "")
            with Decoders(1) as others:
                assert others.size(file_of("PNG")) == (61, 47)


def test_a_process_that_died_is_replaced(decoders: Decoders) -> None:
    assert decoders.size(file_of("PNG")) == (61, 47)
    process = decoders._idle.get()
    assert isinstance(process, _Process)
    process._process.kill()
    process._process.wait()
    decoders._idle.put(process)
    assert decoders.size(file_of("PNG")) == (61, 47)


def test_processes_end_with_their_pool() -> None:
    decoders = Decoders(2)
    decoders.size(file_of("PNG"))
    (child,) = [c for c in psutil.Process().children() if "otpt.decoders" in str(c.cmdline()) and _of(c, decoders)]
    decoders.close()
    assert not child.is_running()


def _of(child: psutil.Process, decoders: Decoders) -> bool:
    idle = [process for process in decoders._idle.queue if process is not None]
    return child.pid in [process._process.pid for process in idle]


def test_a_sparse_file_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "sparse.png"
    with path.open("wb") as file:
        file.truncate(3 << 30)
    with pytest.raises(OtptError, match="3,221,225,472"):
        open_with_digest(path)
