"""Every figure of the paper, and some more, from run folders.

    results = open_results([Path("runs/dtd")])
    save(draw("reliability", results), Path("reliability.svg"))

The kinds of figures are the keys of ``FIGURES``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from otpt.errors import unknown
from otpt.report.figures import bins, cosines, metrics  # noqa: F401 (they register their figures)
from otpt.report.figures.bins import draw_before_after
from otpt.report.figures.cosines import draw_similarity, pairwise_cosines
from otpt.report.figures.style import DPI, FIGURES, FORMATS, THEMES, FigureKind, check_format, narrow, save, styled
from otpt.report.results import Results

__all__ = [
    "DPI", "FIGURES", "FORMATS", "THEMES", "FigureKind", "check_format", "draw", "draw_before_after", "draw_similarity",
    "pairwise_cosines", "save", "styled",
]  # fmt: skip


def draw(
    kind: str,
    results: Results,
    *,
    datasets: Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
    prompt: str | None = None,
    theme: str = "light",
    **options: Any,
) -> Figure:
    """Draw a figure of :data:`FIGURES`; ``options`` are those of its function, such as ``metric`` of a sweep."""
    if kind not in FIGURES:
        raise unknown("figure", kind, FIGURES)
    found = FIGURES[kind]
    usual = results.methods if found.variants else found.methods
    with styled(theme):
        shown = narrow(results, datasets=datasets, methods=methods, prompt=prompt, usual=usual)
        return found.draw(shown, **options)
