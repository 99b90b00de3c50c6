"""Every figure of the paper, and some more, from run folders.

results = open_results([Path("runs/dtd")])
save(draw("reliability", select(results)), Path("reliability.svg"))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from otpt.errors import unknown
from otpt.report.figures.confidence import draw_confidence
from otpt.report.figures.cosine import draw_cosine
from otpt.report.figures.curves import pairwise_cosines
from otpt.report.figures.groups import draw_groups
from otpt.report.figures.pareto import draw_pareto
from otpt.report.figures.posthoc import draw_posthoc
from otpt.report.figures.radar import draw_radar
from otpt.report.figures.reliability import draw_reliability
from otpt.report.figures.risk_coverage import draw_risk_coverage
from otpt.report.figures.seeds import draw_seeds
from otpt.report.figures.selection import Selection, ordinary, select
from otpt.report.figures.similarity import PromptTexts, draw_similarity
from otpt.report.figures.style import FORMATS, check_format, save, styled
from otpt.report.figures.templates import draw_templates

__all__ = [
    "FIGURES",
    "FORMATS",
    "FigureKind",
    "PromptTexts",
    "Selection",
    "check_format",
    "draw",
    "draw_similarity",
    "pairwise_cosines",
    "save",
    "select",
    "styled",
]


@dataclass(frozen=True)
class FigureKind:
    """A kind of figure that is made from runs.

    Attributes:
        usual: from the methods of the runs to those that are shown unless others are asked for.
    """

    summary: str
    draw: Callable[..., Figure]
    usual: Callable[[Sequence[str]], list[str]] = ordinary


def _those(*names: str) -> Callable[[Sequence[str]], list[str]]:
    """Of the named methods those that are there; all plain ones if none is."""
    return lambda methods: [name for name in names if name in methods] or ordinary(methods)


FIGURES = {
    "reliability": FigureKind("accuracy against confidence, with gap and counts", draw_reliability),
    "confidence": FigureKind("histograms of the confidence, right and wrong", draw_confidence),
    "radar": FigureKind("ECE over three or more data sets", draw_radar, _those("c-tpt", "c-tpt+penalty", "o-tpt")),
    "cosine": FigureKind(
        "mean cosine similarity of the class texts for each picture", draw_cosine, _those("tpt", "c-tpt", "o-tpt")
    ),
    "groups": FigureKind(
        "accuracy and ECE in two groups of pictures, by TPT's similarity", draw_groups, _those("tpt", "c-tpt", "o-tpt")
    ),
    "templates": FigureKind(
        "ECE against mean cosine similarity over many templates", draw_templates, _those("zero-shot")
    ),
    "posthoc": FigureKind(
        "bars of ECE, with a temperature afterwards among them", draw_posthoc, _those("tpt", "c-tpt", "tpt+ts", "o-tpt")
    ),
    "pareto": FigureKind("accuracy against ECE over the values of a sweep", draw_pareto, list),
    "seeds": FigureKind("accuracy and ECE with their deviation over seeds", draw_seeds),
    "risk-coverage": FigureKind("wrong answers if only the surest are given", draw_risk_coverage),
}


def draw(kind: str, selection: Selection, **options: int) -> Figure:
    """A figure of the kind; ``options`` are those of its function."""
    if kind not in FIGURES:
        raise unknown("figure", kind, FIGURES)
    with styled():
        return FIGURES[kind].draw(selection, **options)
