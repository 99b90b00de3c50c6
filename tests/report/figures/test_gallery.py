"""The gallery of the documentation shows every kind of figure, in small files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from PIL import Image

from otpt.report.figures import FIGURES

DOCS = Path(__file__).resolve().parents[3] / "docs"


@pytest.mark.parametrize("kind", [*FIGURES, "similarity", "report"])
def test_every_figure_is_shown(kind: str) -> None:
    file = DOCS / "gallery" / f"{kind}.png"
    assert file.stat().st_size < 60_000
    with Image.open(file) as image:
        assert min(image.size) > 200
    page = (DOCS / "figures.md").read_text(encoding="utf-8")
    assert f"](gallery/{kind}.png)" in page
    assert kind == "report" or f"\n### {kind}\n" in page


def test_nothing_else_is_there() -> None:
    shown = set(re.findall(r"\]\(gallery/([^)]+)\)", (DOCS / "figures.md").read_text(encoding="utf-8")))
    assert shown == {path.name for path in (DOCS / "gallery").iterdir()}
