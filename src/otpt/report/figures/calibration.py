"""Reliability before and after a calibration, side by side."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.figure import Figure

from otpt.metrics import ReliabilityBins
from otpt.report.figures.looks import looks
from otpt.report.figures.reliability import draw_bins, draw_counts
from otpt.report.figures.style import backed, panels, styled
from otpt.report.figures.words import short


def draw_before_after(bins: Mapping[str, ReliabilityBins], words: Mapping[str, str], method: str) -> Figure:
    """A panel for each of ``bins``, titled by its key, with a line or two of ``words`` in it."""
    with styled():
        figure, axes = panels(2, len(bins), size=(2.2, 1.3), most=8, sharex=True, height_ratios=[4, 1])
        look = looks([method])[method]
        for column, (name, own) in enumerate(bins.items()):
            draw_bins(axes[0][column], own, look)
            draw_counts(axes[1][column], own)
            axes[0][column].text(0.04, 0.94, words[name], va="top", fontsize=7, bbox=backed())
            axes[0][column].set_title(f"{short(method)}, {name}")
            axes[1][column].set_xlabel("confidence")
        axes[0][0].set_ylabel("accuracy")
        axes[1][0].set_ylabel("fraction", fontsize=6.5)
    return figure
