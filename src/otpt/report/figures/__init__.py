"""Figures of run folders.

    results = open_results([Path("runs/dtd")])
    save(draw("reliability", results), Path("reliability.svg"))

:func:`figure_names` lists the kinds of figures. Installed packages register others, see :mod:`otpt.plugins`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from otpt.errors import unknown
from otpt.plugins import load_installed_plugins, restorable
from otpt.report.figures import bins, cosines, metrics, overview
from otpt.report.figures.bins import draw_before_after
from otpt.report.figures.cosines import draw_similarity, pairwise_cosines
from otpt.report.figures.decision import draw_operating_points
from otpt.report.figures.overview import draw_overview
from otpt.report.figures.style import DPI, FORMATS, THEMES, check_format, narrow, save, styled
from otpt.report.results import Results

__all__ = [
    "DPI", "FORMATS", "THEMES", "check_format", "draw", "draw_before_after", "draw_operating_points", "draw_overview",
    "draw_similarity", "figure_names", "pairwise_cosines", "register_figure", "save", "styled",
]  # fmt: skip


@dataclass(frozen=True)
class _Kind:
    """A kind of figure; see :func:`register_figure`."""

    draw: Callable[..., Figure]
    methods: tuple[str, ...] = ()
    variants: bool = False


_FIGURES: dict[str, _Kind] = restorable(
    {
        "reliability": _Kind(bins.draw_reliability),
        "pooled": _Kind(overview.draw_pooled),
        "overview": _Kind(overview.draw_overview),
        "confidence": _Kind(bins.draw_confidence),
        "risk-coverage": _Kind(bins.draw_risk_coverage),
        "cosine": _Kind(cosines.draw_cosine, methods=("tpt", "c-tpt", "o-tpt")),
        "templates": _Kind(cosines.draw_templates, methods=("zero-shot",)),
        "posthoc": _Kind(metrics.draw_posthoc, methods=("tpt", "c-tpt", "tpt+ts", "o-tpt")),
        "seeds": _Kind(metrics.draw_seeds),
        "radar": _Kind(metrics.draw_radar, methods=("c-tpt", "c-tpt+penalty", "o-tpt")),
        "sweep": _Kind(metrics.draw_sweep, variants=True),
        "heatmap": _Kind(metrics.draw_heatmap, variants=True),
        "pareto": _Kind(metrics.draw_pareto, variants=True),
    }
)


def register_figure(
    name: str, draw: Callable[..., Figure], *, methods: Sequence[str] = (), variants: bool = False
) -> None:
    """Register a kind of figure.

    Args:
        name: name for :func:`draw` and ``otpt plot``.
        draw: function of the selected :class:`~otpt.report.Results`, and of options of its own as keywords.
        methods: methods that are shown by default, if the runs have one of them; without them, all.
        variants: whether the variants of a sweep are shown by default, too.
    """
    _FIGURES[name] = _Kind(draw, tuple(methods), variants)


def figure_names() -> list[str]:
    """Return the names of all kinds of figures, including those of installed packages."""
    load_installed_plugins("reports")
    return list(_FIGURES)


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
    """Draw a figure of results.

    Args:
        kind: one of :func:`figure_names`.
        results: runs of one model.
        datasets: names of data sets; None for all.
        methods: names of methods; None for those of the kind.
        prompt: prompt of all methods; None for the first one.
        theme: one of :data:`THEMES`.
        options: options of the kind's function, such as ``metric`` of a sweep.
    """
    names = figure_names()
    if kind not in names:
        raise unknown("figure", kind, names)
    figure = _FIGURES[kind]
    usual = results.methods if figure.variants else figure.methods
    with styled(theme):
        return figure.draw(narrow(results, datasets, methods, prompt, usual), **options)
