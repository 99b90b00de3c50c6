"""Reliability before and after a calibration, side by side."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.figure import Figure

from otpt.metrics import ReliabilityBins
from otpt.report.figures.drawing.looks import looks
from otpt.report.figures.drawing.style import faint, one_scale, panels, styled
from otpt.report.figures.drawing.words import footnote, short
from otpt.report.figures.reliability import draw_bins, draw_counts, explain_bins


def draw_before_after(bins: Mapping[str, ReliabilityBins], words: Mapping[str, str], method: str) -> Figure:
    """A panel for each of ``bins``, titled by its key, with a line of ``words`` above it."""
    with styled():
        figure, axes = panels(2, len(bins), size=(2.3, 1.4), most=8, sharex=True, height_ratios=[4, 1])
        look = looks([method])[method]
        for column, (name, own) in enumerate(bins.items()):
            draw_bins(axes[0][column], own, look)
            draw_counts(axes[1][column], own)
            axes[0][column].annotate(
                words[name], (0.5, 1.03), xycoords="axes fraction", ha="center", fontsize=6.5, color=faint()
            )
            axes[0][column].set_title(f"{short(method)}, {name}", pad=14)
            axes[1][column].set_xlabel("confidence")
        one_scale(axes[1])
        axes[0][0].set_ylabel("accuracy")
        axes[1][0].set_ylabel("fraction", fontsize=6.5)
        explain_bins(figure)
        labels = max(own.total for own in bins.values())
        footnote(figure, f"Wilson intervals; {labels} labelled images, each by a map that was fitted without it")
    return figure
