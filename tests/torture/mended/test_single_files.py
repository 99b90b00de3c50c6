"""Faults that the campaign found in images, method files and plugins, each with the smallest input that showed it."""

from __future__ import annotations

import io
import subprocess
from pathlib import Path

import pytest
from PIL import Image

from otpt.errors import OtptError
from otpt.files import read_json
from otpt.images import open_image
from otpt.methods.inits.attributes import read_attributes
from otpt.methods.names.registry import get_method, load_methods
from otpt.methods.plugins import load_plugin

pytestmark = pytest.mark.slow

DEEP = "[" * 200_000


def test_postscript_is_not_given_to_ghostscript(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow starts gs for an EPS file, which runs the file's program: an image from the web started a process."""
    buffer = io.BytesIO()
    Image.new("RGB", (2, 2)).save(buffer, "EPS")
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("a process was started"))
    for source in (buffer.getvalue(), Image.open(buffer)):
        with pytest.raises(OtptError, match=r"EPS is a program .* convert it"):
            open_image(source)


@pytest.mark.parametrize("name", ["mine.so", "mine.pyc"])
def test_a_compiled_plugin_is_refused(name: str, tmp_path: Path) -> None:
    """The loader of compiled modules raised an ImportError of its own."""
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(OtptError, match=r"is not a Python file; expected FILE\.py"):
        load_plugin(tmp_path / name)


def test_a_plugin_whose_path_has_a_null_is_told() -> None:
    with pytest.raises(OtptError, match="Cannot read the plugin"):
        load_plugin("a\0b.py")


def test_deeply_nested_files(tmp_path: Path) -> None:
    for name, read in (("a.toml", load_methods), ("b.toml", read_attributes), ("c.json", read_attributes)):
        path = tmp_path / name
        path.write_text(f"a = {DEEP}" if name.endswith("toml") else DEEP, encoding="utf-8")
        with pytest.raises(OtptError):
            read(path)
    with pytest.raises(OtptError, match="not JSON"):
        read_json(tmp_path / "c.json", "file")


def test_a_path_with_a_null_is_told() -> None:
    with pytest.raises(OtptError):
        get_method("a\0b.toml")
