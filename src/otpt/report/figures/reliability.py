"""Reliability diagrams: what was claimed and what came true, bin by bin."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from otpt.metrics import ReliabilityBins, percent, reliability_bins_from_confidence
from otpt.report.figures.selection import Selection
from otpt.report.figures.style import BACKED, GREY, MAX_PANELS, PALE, VERMILION, Look, footnote, looks, panels, short


def draw_reliability(selection: Selection) -> Figure:
    """Methods down, data sets across; in each panel acc_m as bars, the gap to conf_m hatched, the counts below."""
    datasets, methods = selection.datasets, selection.methods
    # two axes per panel, diagram and counts
    figure, axes = panels(
        2 * len(methods),
        len(datasets),
        size=(1.9, 1.15),
        most=2 * MAX_PANELS,
        sharex=True,
        height_ratios=[4, 1] * len(methods),
    )
    look = looks(methods)
    for column, dataset in enumerate(datasets):
        for row, method in enumerate(methods):
            rows = selection.rows(dataset, method)
            results = selection.results
            bins = reliability_bins_from_confidence(
                rows.confidences, rows.correct, bins=results.bins, side=results.side
            )
            upper, lower = axes[2 * row][column], axes[2 * row + 1][column]
            draw_bins(upper, bins, look[method])
            draw_counts(lower, bins)
            metrics = selection.metrics(dataset, method, selection.seeds[0])
            words = f"ECE {percent(metrics.ece)}\nacc. {percent(metrics.accuracy)}"
            upper.text(0.04, 0.94, words, va="top", fontsize=7, bbox=BACKED)
            upper.set_title(short(dataset) if row == 0 else "")
            if column == 0:
                upper.set_ylabel(f"{short(method)}\naccuracy")
                lower.set_ylabel("fraction", fontsize=6.5)
            if row == len(methods) - 1:
                lower.set_xlabel("confidence")
    handles = [
        Patch(facecolor=GREY, label="accuracy of a bin"),
        Patch(facecolor="none", edgecolor=VERMILION, hatch="//////", label="gap: surer than right"),
        Patch(facecolor="none", edgecolor=GREY, hatch="......", label="gap: righter than sure"),
    ]
    figure.legend(handles=handles, loc="outside upper left", ncols=3)
    footnote(figure, selection.note(one_seed=True))
    return figure


def draw_bins(axes: Axes, bins: ReliabilityBins, look: Look) -> None:
    """Bars of accuracy with the gap to the confidence, and the line of perfect calibration."""
    filled = bins.counts > 0
    left, width = bins.edges[:-1][filled], np.diff(bins.edges)[filled]
    accuracy, gaps = bins.accuracy[filled], bins.gaps[filled]
    axes.bar(left, accuracy, width, align="edge", color=look.colour, edgecolor="white", linewidth=0.4, label="accuracy")
    for surer, colour, hatch in ((True, VERMILION, "//////"), (False, GREY, "......")):
        own = (gaps > 0) == surer
        axes.bar(
            left[own],
            gaps[own],
            width[own],
            bottom=accuracy[own],
            align="edge",
            color="none",
            edgecolor=colour,
            hatch=hatch,
            linewidth=0.5,
            label=f"gap {'above' if surer else 'below'}",
        )
    axes.plot([0, 1], [0, 1], color="black", linewidth=0.8, dashes=(4, 2))
    axes.set(xlim=(0, 1), ylim=(0, 1), xticks=[0, 0.5, 1], yticks=[0, 0.5, 1])


def draw_counts(axes: Axes, bins: ReliabilityBins) -> None:
    """The fraction of images in each bin."""
    fraction = bins.counts / bins.total
    axes.bar(bins.edges[:-1], fraction, np.diff(bins.edges), align="edge", color=PALE, edgecolor=GREY, linewidth=0.4)
    axes.set(ylim=(0, max(0.1, 1.1 * float(fraction.max()))))
    axes.locator_params(axis="y", nbins=2)
