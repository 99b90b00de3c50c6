"""Every figure of the paper, and some more, from run folders.

    results = open_results([Path("runs/dtd")])
    save(draw("reliability", results), Path("reliability.svg"))

The kinds of figures are the keys of ``FIGURES``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from otpt.errors import unknown
from otpt.report.figures.bins import draw_before_after, draw_confidence, draw_reliability, draw_risk_coverage
from otpt.report.figures.cosines import draw_cosine, draw_groups, draw_similarity, draw_templates, pairwise_cosines
from otpt.report.figures.metrics import draw_pareto, draw_posthoc, draw_radar, draw_seeds, draw_sweep
from otpt.report.figures.style import DPI, FORMATS, THEMES, Selection, check_format, save, select, styled
from otpt.report.results import Results

__all__ = [
    "DPI", "FIGURES", "FORMATS", "THEMES", "FigureKind", "Selection", "check_format", "draw", "draw_before_after",
    "draw_similarity", "pairwise_cosines", "save", "select", "styled",
]  # fmt: skip


@dataclass(frozen=True)
class FigureKind:
    """A kind of figure: its function and the methods that it shows by default, all plain ones if the runs have none."""

    summary: str
    draw: Callable[..., Figure]
    methods: tuple[str, ...] = ()
    variants: bool = False
    """Show variants of a sweep, too."""


FIGURES = {
    "reliability": FigureKind("accuracy against confidence, with gap, intervals and counts", draw_reliability),
    "confidence": FigureKind("histograms of the confidence of correct and wrong predictions", draw_confidence),
    "radar": FigureKind("ECE over three or more data sets", draw_radar, ("c-tpt", "c-tpt+penalty", "o-tpt")),
    "cosine": FigureKind(
        "mean cosine similarity between the text features of each prediction", draw_cosine, ("tpt", "c-tpt", "o-tpt")
    ),
    "groups": FigureKind(
        "accuracy and ECE in two groups of images, by TPT's similarity", draw_groups, ("tpt", "c-tpt", "o-tpt")
    ),
    "templates": FigureKind("ECE against mean cosine similarity over many templates", draw_templates, ("zero-shot",)),
    "posthoc": FigureKind(
        "bars of ECE, including post-hoc temperature scaling", draw_posthoc, ("tpt", "c-tpt", "tpt+ts", "o-tpt")
    ),
    "sweep": FigureKind("a metric against the values of a swept setting", draw_sweep, variants=True),
    "pareto": FigureKind("accuracy against ECE for the values of a sweep", draw_pareto, variants=True),
    "seeds": FigureKind("accuracy and ECE with their standard deviation over seeds", draw_seeds),
    "risk-coverage": FigureKind("error rate when only the most confident predictions are kept", draw_risk_coverage),
}
"""Kinds of figures, by name."""


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
        return found.draw(select(results, datasets=datasets, methods=methods, prompt=prompt, usual=usual), **options)
