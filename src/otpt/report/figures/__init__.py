"""Every figure of the paper, and some more, from run folders.

    results = open_results([Path("runs/dtd")])
    save(draw("reliability", results), Path("reliability.svg"))

The kinds of figures are the keys of ``FIGURES``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from matplotlib.figure import Figure

from otpt.errors import unknown
from otpt.report.figures import bins, cosines, metrics
from otpt.report.figures.bins import draw_before_after
from otpt.report.figures.cosines import draw_similarity, pairwise_cosines
from otpt.report.figures.style import DPI, FORMATS, THEMES, check_format, narrow, save, styled
from otpt.report.results import Results

__all__ = [
    "DPI", "FIGURES", "FORMATS", "THEMES", "check_format", "draw", "draw_before_after", "draw_similarity",
    "pairwise_cosines", "save", "styled",
]  # fmt: skip

FIGURES: dict[str, Callable[..., Figure]] = {
    "reliability": bins.draw_reliability,
    "confidence": bins.draw_confidence,
    "risk-coverage": bins.draw_risk_coverage,
    "cosine": cosines.draw_cosine,
    "groups": cosines.draw_groups,
    "templates": cosines.draw_templates,
    "posthoc": metrics.draw_posthoc,
    "seeds": metrics.draw_seeds,
    "radar": metrics.draw_radar,
    "sweep": metrics.draw_sweep,
    "pareto": metrics.draw_pareto,
}
"""Kinds of figures, by name."""
_SWEEPS = ("sweep", "pareto")  # which show variants of a method, too
_USUAL = {  # methods that are shown by default, if the runs have one of them
    "cosine": ("tpt", "c-tpt", "o-tpt"),
    "groups": ("tpt", "c-tpt", "o-tpt"),
    "templates": ("zero-shot",),
    "posthoc": ("tpt", "c-tpt", "tpt+ts", "o-tpt"),
    "radar": ("c-tpt", "c-tpt+penalty", "o-tpt"),
}


def draw(
    kind: str,
    results: Results,
    *,
    datasets: Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
    prompt: str | None = None,
    theme: str = "light",
    **options: str | int | None,
) -> Figure:
    """Draw a figure of :data:`FIGURES`; ``options`` are those of its function, such as ``metric`` of a sweep."""
    if kind not in FIGURES:
        raise unknown("figure", kind, FIGURES)
    usual = results.methods if kind in _SWEEPS else _USUAL.get(kind, ())
    with styled(theme):
        return FIGURES[kind](narrow(results, datasets, methods, prompt, usual), **options)
