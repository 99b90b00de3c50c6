"""The checks of ``make lint`` find what they are for: dead links and anchors, misspelt words."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
from oracles.pages.docs_pages import DOCS, ROOT


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_dead_links_and_anchors_of_a_site(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "guide").mkdir()
    (tmp_path / "guide" / "index.html").write_text('<h2 id="here">x</h2><a href="../#top">up</a><a href="#here">h</a>')
    (tmp_path / "index.html").write_text(
        '<p id="top"><a href="guide/#here">good</a> <a href="https://example.org/x">elsewhere</a>'
        '<a href="guide/#gone">no anchor</a> <img src="none.png"> <a href="https:///x">no host</a>'
    )
    assert script("links").main([str(tmp_path)]) == 1
    found = capsys.readouterr().out.splitlines()
    assert len(found) == 3
    assert "'guide/#gone' leads to an anchor that index.html does not have" in found[0]
    assert "'none.png' leads to" in found[1]
    assert "has no host" in found[2]


def test_dead_links_of_markdown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "README.md"
    page.write_text("# A title, with `code`\n\n[good](#a-title-with-code) [bad](#title) [none](none.md) `[x](y.md)`\n")
    assert script("links").main([str(page)]) == 1
    assert [line.split(": ")[1].split(" ")[0] for line in capsys.readouterr().out.splitlines()] == [
        "'#title'",
        "'none.md'",
    ]


def test_links_of_the_repository() -> None:
    files = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    assert script("links").main(list(map(str, files))) == 0


def test_spelling(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    checker = script("spelling")
    assert checker.american()["behavior"] == "behaviour"
    page = tmp_path / "page.md"
    page.write_text("The colour of images: lamda, optimize, FPT.\n")
    assert checker.main([str(page)]) == 0, capfd.readouterr().out
    page.write_text("We recieve pictures of other behavior.\n")
    assert checker.main([str(page)]) != 0
    found = capfd.readouterr().out
    assert [word in found for word in ("receive", "images", "behaviour")] == [True, True, True]
