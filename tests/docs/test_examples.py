"""The examples of README, CONTRIBUTING and the pages run from top to bottom, without a download.

Python blocks of a page share a namespace; a text block right after one is what it prints. Lines of bash blocks that
start with ``otpt`` run as well. Backbones are replaced by a tiny random one, and evaluations take a few images.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import shutil
import warnings
from pathlib import Path

import pytest
from oracles.models.tiny import open_clip_local_dir, open_clip_safetensors, openai_archive
from PIL import Image, ImageDraw

from otpt.cli import main

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
REPLACED = ("ViT-B-16/openai", "random:ViT-B-32")
_BLOCK = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that the examples name."""
    folder = tmp_path_factory.mktemp("docs")
    image = Image.new("RGB", (240, 180), (135, 190, 235))
    pen = ImageDraw.Draw(image)
    pen.rectangle((0, 120, 240, 180), fill=(30, 90, 150))
    pen.polygon([(115, 30), (115, 112), (165, 112)], fill=(245, 245, 240))
    image.save(folder / "photo.jpg")
    (folder / "images").mkdir()
    image.transpose(Image.Transpose.FLIP_LEFT_RIGHT).save(folder / "images" / "other.png")
    (folder / "classes.txt").write_text("cat\ndog\nred panda\n", encoding="utf-8")
    open_clip_local_dir(folder / "tiny")
    openai_archive(folder / "ViT-B-16.pt")
    open_clip_safetensors(folder / "weights.safetensors")
    return folder


def _blocks(page: Path) -> list[tuple[str, str, str, str | None]]:
    """(language, title, source, output) of the fenced blocks of a page."""
    text = page.read_text(encoding="utf-8")
    found = list(_BLOCK.finditer(text))
    blocks = []
    for i, match in enumerate(found):
        after = found[i + 1] if i + 1 < len(found) else None
        shows = after is not None and after[1] == "text" and not text[match.end() : after.start()].strip()
        blocks.append((match[1], match[2].strip(), match[3], after[3] if after is not None and shows else None))
    return blocks


def _run_python(source: str, page: Path, namespace: dict[str, object]) -> str:
    for name in REPLACED:
        source = source.replace(f'"{name}"', '"tiny"')
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a calibration on a handful of images says that they are few
        exec(compile(source, page.name, "exec"), namespace)
    return printed.getvalue()


def _run_command(line: str) -> None:
    words = ["tiny" if word in REPLACED else word for word in shlex.split(line, comments=True)[1:]]
    if words[0] in ("predict", "evaluate", "sweep"):
        words += [] if "--backbone" in words else ["--backbone", "tiny"]
        words += ["--device", "cpu"]
    if words[0] in ("evaluate", "sweep"):
        words = [word for i, word in enumerate(words) if "--limit" not in (word, words[i - 1])]
        words += ["--limit", "6", "--no-cache", *([] if {"--views", "--budget"} & set(words) else ["--views", "8"])]
    assert main(words) == 0, line


@pytest.mark.usefixtures("registries")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_examples(page: Path, prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(prepared, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": page.stem}
    for language, title, source, output in _blocks(page):
        if title.startswith('title="'):  # a file of the reader's
            Path(title.split('"')[1]).write_text(source, encoding="utf-8")
        elif language == "python":
            printed = _run_python(source, page, namespace)
            assert output is None or printed == output, source
        elif language == "bash":
            for line in source.splitlines():
                if line.startswith("otpt "):
                    _run_command(line)
