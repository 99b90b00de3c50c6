"""Tutorials run from top to bottom: Python blocks and ``otpt`` commands in order, in one folder, with ``pocket``.

Evaluations take a few images and views here; what a text block shows after Python is what it prints.
"""

from __future__ import annotations

import contextlib
import io
import shlex
from pathlib import Path

import pytest
from oracles.pages.docs_pages import TUTORIALS, all_blocks

from otpt.cli import main

pytestmark = pytest.mark.slow

FEW = ("--views", "8", "--no-cache", "--device", "cpu")
IMAGES = "6"


def _run(line: str) -> str:
    _, *words = shlex.split(line)
    if words[0] == "evaluate":
        words += [*FEW, *(["--limit", IMAGES] if "--limit" in words else [])]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert main(words) == 0, line
    return printed.getvalue()


@pytest.mark.usefixtures("registries")
@pytest.mark.filterwarnings("ignore")  # a temperature of two dozen images may end at its bound, and says so
@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_tutorial(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": page.stem}
    ran = 0
    for block in all_blocks(page):
        if block.language == "python":
            if block.title.startswith('title="'):  # a file of the reader's
                Path(block.title.split('"')[1]).write_text(block.source, encoding="utf-8")
                continue
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile(block.source, page.name, "exec"), namespace)
            if block.output is not None:
                assert printed.getvalue() == block.output, block.source
            ran += 1
        elif block.language == "bash":
            for line in block.source.splitlines():
                assert line.startswith("otpt "), f"{line!r} is not run; use sh for what cannot be"
                assert _run(line).strip()
                ran += 1
    assert ran >= 3


def test_every_topic_has_its_tutorial() -> None:
    names = {page.stem for page in TUTORIALS}
    assert names >= {
        "first-prediction",
        "own-images",
        "compare-methods",
        "calibrate",
        "add-a-method",
        "cluster",
        "service",
    }
