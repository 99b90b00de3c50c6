"""Reliability diagrams: accuracy against confidence, bin by bin, with how much each bin can be trusted."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from otpt.metrics import ReliabilityBins, percent, reliability_bins
from otpt.report.figures.drawing.curves import Floats, Integers, wilson_interval
from otpt.report.figures.drawing.looks import GREY, VERMILION, Look, looks
from otpt.report.figures.drawing.style import MAX_PANELS, faint, ink, one_scale, pale, panels, paper
from otpt.report.figures.drawing.words import footnote, legend, short
from otpt.report.figures.selection import Selection

_FAINTEST = 0.25
"""Opacity of a bar whose bin holds next to nothing."""


def draw_reliability(selection: Selection) -> Figure:
    """Methods down, data sets across; in each panel acc_m as bars, the gap to conf_m hatched, the counts below."""
    datasets, methods = selection.datasets, selection.methods
    # two axes per panel, diagram and counts
    figure, axes = panels(
        2 * len(methods),
        len(datasets),
        size=(2.4, 1.4),
        most=2 * MAX_PANELS,
        sharex=True,
        height_ratios=[4, 1] * len(methods),
    )
    look = looks(methods)
    for column, dataset in enumerate(datasets):
        for row, method in enumerate(methods):
            rows = selection.rows(dataset, method)
            results = selection.results
            bins = reliability_bins(rows.confidences, rows.correct, n_bins=results.bins, side=results.side)
            upper, lower = axes[2 * row][column], axes[2 * row + 1][column]
            draw_bins(upper, bins, look[method])
            draw_counts(lower, bins)
            metrics = selection.metrics(dataset, method, selection.seeds[0])
            words = f"ECE {percent(metrics.ece)}, accuracy {percent(metrics.accuracy)}, {bins.total} images"
            upper.annotate(words, (0.5, 1.03), xycoords="axes fraction", ha="center", fontsize=6.5, color=faint())
            upper.set_title(short(dataset) if row == 0 else "", pad=14)
            if column == 0:
                upper.set_ylabel(f"{short(method)}\naccuracy")
                lower.set_ylabel("fraction", fontsize=6.5)
            if row == len(methods) - 1:
                lower.set_xlabel("confidence")
        one_scale([axes[2 * row + 1][column] for row in range(len(methods))])
    explain_bins(figure)
    footnote(figure, f"Wilson intervals; {selection.note(one_seed=True, ece=True)}")
    return figure


def explain_bins(figure: Figure) -> None:
    """The legend of what :func:`draw_bins` draws."""
    handles = [
        Patch(facecolor=GREY, label="accuracy (the fainter, the fewer images)"),
        Line2D(
            [], [], color=ink(), linewidth=0.9, marker="|", markersize=9, linestyle="none", label="its 95 % interval"
        ),
        Patch(facecolor="none", edgecolor=VERMILION, hatch="//////", label="gap: over-confident"),
        Patch(facecolor="none", edgecolor=faint(), hatch="......", label="gap: under-confident"),
    ]
    legend(figure, handles, [str(handle.get_label()) for handle in handles])


def draw_bins(axes: Axes, bins: ReliabilityBins, look: Look) -> None:
    """Bars of accuracy with interval and gap to the confidence, and the line of perfect calibration."""
    filled = bins.counts > 0
    left, width = bins.edges[:-1][filled], np.diff(bins.edges)[filled]
    accuracy, gaps, counts = bins.accuracy[filled], bins.gaps[filled], bins.counts[filled]
    bars = axes.bar(
        left, accuracy, width, align="edge", color=look.colour, edgecolor=paper(), linewidth=0.4, label="accuracy"
    )
    for bar, alpha in zip(bars, opacities(counts), strict=True):
        bar.set_alpha(float(alpha))
    for over, colour, hatch in ((True, VERMILION, "//////"), (False, faint(), "......")):
        own = (gaps > 0) == over
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
            label=f"{'over' if over else 'under'}-confident",
        )
    low, high = wilson_interval(accuracy * counts, counts)
    axes.vlines(left + width / 2, low, high, color=ink(), linewidth=0.7, zorder=3, label="interval")
    axes.plot([0, 1], [0, 1], color=ink(), linewidth=0.8, dashes=(4, 2))
    axes.set(xlim=(0, 1), ylim=(0, 1), xticks=[0, 0.5, 1], yticks=[0, 0.5, 1])


def opacities(counts: Integers) -> Floats:
    """(M,) how strongly each bar is drawn: 1 for the fullest bin, by the root of the count down to a quarter."""
    return np.asarray(_FAINTEST + (1 - _FAINTEST) * np.sqrt(counts / counts.max()), dtype=np.float64)


def draw_counts(axes: Axes, bins: ReliabilityBins) -> None:
    """The fraction of images in each bin."""
    fraction = bins.counts / bins.total
    axes.bar(bins.edges[:-1], fraction, np.diff(bins.edges), align="edge", color=pale(), edgecolor=GREY, linewidth=0.4)
    axes.set(ylim=(0, max(0.1, 1.1 * float(fraction.max()))))
    axes.locator_params(axis="y", nbins=2)
