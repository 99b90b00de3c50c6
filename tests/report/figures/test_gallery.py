"""The gallery of the documentation shows every kind of figure, in small files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from PIL import Image

from otpt.report.figures import FIGURES

pytestmark = pytest.mark.slow

DOCS = Path(__file__).resolve().parents[3] / "docs"


@pytest.mark.parametrize("kind", [*FIGURES, "similarity", "report"])
def test_every_figure_is_shown(kind: str) -> None:
    """Light on a light page, dark on a dark one; the page once."""
    page = (DOCS / "figures.md").read_text(encoding="utf-8")
    for name in ("report.png",) if kind == "report" else (f"{kind}.png#only-light", f"{kind}-dark.png#only-dark"):
        assert f"](gallery/{name})" in page
        file = DOCS / "gallery" / name.partition("#")[0]
        assert file.stat().st_size < 60_000
        with Image.open(file) as image:
            assert min(image.size) > 200
    assert kind == "report" or f"\n### {kind}\n" in page


def test_nothing_else_is_there() -> None:
    shown = set(re.findall(r"\]\(gallery/([^)#]+)", (DOCS / "figures.md").read_text(encoding="utf-8")))
    assert shown == {path.name for path in (DOCS / "gallery").iterdir()}
