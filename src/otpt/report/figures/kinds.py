"""The kinds of figures that are made from runs. Light: a kind is imported when it is drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from otpt.errors import unknown
from otpt.report.figures.selection import Selection, ordinary

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class FigureKind:
    """A kind of figure that is made from runs.

    Attributes:
        usual: from the methods of the runs to those that are shown by default.
    """

    summary: str
    usual: Callable[[Sequence[str]], list[str]] = ordinary


def _those(*names: str) -> Callable[[Sequence[str]], list[str]]:
    """Of the named methods those that are there; all plain ones if none is."""
    return lambda methods: [name for name in names if name in methods] or ordinary(methods)


FIGURES = {
    "reliability": FigureKind("accuracy against confidence, with gap, intervals and counts"),
    "confidence": FigureKind("histograms of the confidence of correct and wrong predictions"),
    "radar": FigureKind("ECE over three or more data sets", _those("c-tpt", "c-tpt+penalty", "o-tpt")),
    "cosine": FigureKind(
        "mean cosine similarity between the text features used for each image", _those("tpt", "c-tpt", "o-tpt")
    ),
    "groups": FigureKind(
        "accuracy and ECE in two groups of images, by TPT's similarity", _those("tpt", "c-tpt", "o-tpt")
    ),
    "templates": FigureKind("ECE against mean cosine similarity over many templates", _those("zero-shot")),
    "posthoc": FigureKind(
        "bars of ECE, including post-hoc temperature scaling", _those("tpt", "c-tpt", "tpt+ts", "o-tpt")
    ),
    "pareto": FigureKind("accuracy against ECE for the values of a sweep", list),
    "seeds": FigureKind("accuracy and ECE with their standard deviation over seeds"),
    "risk-coverage": FigureKind("error rate when only the most confident predictions are kept"),
}
"""Kinds of figures, by name."""


def draw(kind: str, selection: Selection, *, theme: str = "light", **options: int) -> Figure:
    """A figure of the kind; ``options`` are those of its function, ``draw_KIND`` of the module of its name."""
    if kind not in FIGURES:
        raise unknown("figure", kind, FIGURES)
    from otpt.report.figures.drawing.style import styled

    name = kind.replace("-", "_")
    function: Callable[..., Figure] = getattr(import_module(f"otpt.report.figures.{name}"), f"draw_{name}")
    with styled(theme):
        return function(selection, **options)
