"""Figures of confidence: reliability diagrams, histograms, risk–coverage curves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from scipy.stats import binomtest

from otpt.metrics import ReliabilityBins, aurc, percent, reliability_bins
from otpt.report.figures.style import (
    GREY,
    MAX_PANELS,
    VERMILION,
    Selection,
    faint,
    footnote,
    ink,
    legend,
    looks,
    panel_grid,
    panels,
    paper,
    short,
)
from otpt.report.results import Results
from otpt.runs import Rows

Floats = npt.NDArray[np.float64]


def make_bins(results: Results, rows: Rows) -> ReliabilityBins:
    """The bins of the ECE of these rows."""
    return reliability_bins(rows.confidences, rows.correct, n_bins=results.n_bins, side=results.side)


def draw_reliability(selection: Selection) -> Figure:
    """Accuracy of each bin as bars, the gap to the confidence hatched, the fraction of images below.

    The methods of one data set are in rows of three or four; of several data sets the longer list goes across.
    """
    cells, (rows, columns) = _arranged(selection)
    figure, axes = _paired_panels(rows, columns)
    for at, (dataset, method) in enumerate(cells):
        row, column = divmod(at, columns)
        bins = make_bins(selection.results, selection.rows(dataset, method))
        upper, lower = axes[2 * row][column], axes[2 * row + 1][column]
        score = selection.results.score(selection.key(dataset, method))
        words = f"ECE {percent(score['ece'])}, accuracy {percent(score['accuracy'])}, {bins.total} images"
        colour = looks(selection.methods)[method].colour
        draw_bins(upper, lower, bins, colour, f"{short(method)}, {short(dataset)}", words)
        if column == 0:
            upper.set_ylabel("accuracy")
            lower.set_ylabel("fraction", fontsize=6.5)
    _finish(figure, axes, len(cells), columns)
    footnote(figure, f"Wilson intervals; {selection.note(one_seed=True, ece=True)}")
    return figure


def draw_before_after(bins: Mapping[str, ReliabilityBins], words: Mapping[str, str], method: str) -> Figure:
    """Reliability before and after a calibration: a panel for each of ``bins``, with a line of ``words`` above it."""
    figure, axes = _paired_panels(1, len(bins))
    for column, (name, own) in enumerate(bins.items()):
        colour = looks([method])[method].colour
        draw_bins(axes[0][column], axes[1][column], own, colour, f"{short(method)}, {name}", words[name])
    axes[0][0].set_ylabel("accuracy")
    _finish(figure, axes, len(bins), len(bins))
    labels = max(own.total for own in bins.values())
    footnote(figure, f"Wilson intervals; {labels} labelled images, each by a map that was fitted without it")
    return figure


def draw_bins(axes: Axes, counts: Axes, bins: ReliabilityBins, colour: str, title: str, words: str) -> None:
    """Bars of accuracy with intervals and gaps, the diagonal, and the fraction of images in each bin."""
    filled = bins.counts > 0
    left, width = bins.edges[:-1][filled], np.diff(bins.edges)[filled]
    accuracy, n = bins.accuracy[filled], bins.counts[filled]
    bars = axes.bar(left, accuracy, width, align="edge", color=colour, edgecolor=paper(), linewidth=0.4)
    for bar, count in zip(bars, n, strict=True):  # the fainter, the fewer images
        bar.set_alpha(0.25 + 0.75 * float(np.sqrt(count / n.max())))
    ends = bins.accuracy + bins.gaps
    for own, edge, hatch in ((bins.gaps > 0, VERMILION, "//////"), (bins.gaps <= 0, faint(), "......")):
        gap, base = np.where(own, ends, np.nan), np.where(own, bins.accuracy, np.nan)
        axes.stairs(
            gap, bins.edges, baseline=base, fill=True, facecolor="none", edgecolor=edge, hatch=hatch, linewidth=0.5
        )
    ranges = [
        binomtest(round(a * count), count).proportion_ci(method="wilson") for a, count in zip(accuracy, n, strict=True)
    ]
    axes.vlines(left + width / 2, *zip(*ranges, strict=True), color=ink(), linewidth=0.7, zorder=3)
    axes.plot([0, 1], [0, 1], color=ink(), linewidth=0.8, dashes=(4, 2))
    axes.set(xlim=(0, 1), ylim=(0, 1), xticks=[0, 0.5, 1], yticks=[0, 0.5, 1])
    axes.set_title(f"{title}\n", fontsize=8)
    axes.annotate(words, (0.5, 1.03), xycoords="axes fraction", ha="center", fontsize=6.5, color=faint())
    fraction = bins.counts / bins.total
    counts.stairs(fraction, bins.edges, fill=True, color="#B0B0B0")
    counts.set(ylim=(0, max(0.1, 1.1 * float(fraction.max()))))
    counts.locator_params(axis="y", nbins=2)


def draw_confidence(selection: Selection) -> Figure:
    """Histograms of confidence: correct and wrong predictions stacked, mean confidence and accuracy as lines."""
    cells, (rows, columns) = _arranged(selection)
    figure, axes = panels(rows, columns, size=(2.2, 1.7), sharex=True, sharey=True)
    for at, (dataset, method) in enumerate(cells):
        panel = axes[at // columns][at % columns]
        own = selection.rows(dataset, method)
        bins = make_bins(selection.results, own)
        total, left, width = bins.counts / bins.total, bins.edges[:-1], np.diff(bins.edges)
        right = np.nan_to_num(bins.accuracy) * total
        panel.bar(left, right, width, align="edge", color=looks(selection.methods)[method].colour)
        wrong: dict[str, Any] = {"color": paper(), "edgecolor": VERMILION, "hatch": "//////", "linewidth": 0.5}
        panel.bar(left, total - right, width, bottom=right, align="edge", **wrong)
        panel.axvline(float(own.confidences.mean()), color=ink(), linewidth=1.0)
        panel.axvline(float(own.correct.mean()), color=ink(), linewidth=1.0, dashes=(2, 2))
        panel.set(xlim=(0, 1), xticks=[0, 0.5, 1])
        panel.set_title(f"{short(method)}\n{short(dataset)}", fontsize=8)
        if at % columns == 0:
            panel.set_ylabel("fraction of images")
        if at + columns >= len(cells):
            panel.set_xlabel("confidence")
    for at in range(len(cells), rows * columns):
        axes[at // columns][at % columns].set_visible(False)
    legend(
        figure,
        [
            Patch(facecolor=GREY, label="correct"),
            Patch(facecolor="none", edgecolor=VERMILION, hatch="//////", label="wrong"),
            Line2D([], [], color=ink(), linewidth=1.0, label="mean confidence"),
            Line2D([], [], color=ink(), linewidth=1.0, dashes=(2, 2), label="accuracy"),
        ],
    )
    footnote(figure, selection.note(one_seed=True))
    return figure


def draw_risk_coverage(selection: Selection) -> Figure:
    """A panel for each data set, a curve for each method, the area under it in the legend."""
    figure, axes = panel_grid(len(selection.datasets), size=(3.0, 2.6))
    for panel, dataset in zip(axes, selection.datasets, strict=True):
        for method, look in looks(selection.methods).items():
            own = selection.rows(dataset, method)
            coverage, risk = risk_coverage(own.confidences, own.correct)
            label = f"{short(method)}, AURC {percent(aurc(own.confidences, own.correct))}"
            panel.plot(100 * coverage, 100 * risk, color=look.colour, linestyle=look.dash, label=label)
        panel.set(xlabel="coverage: predictions kept %", ylabel="risk: wrong among them %", xlim=(0, 100))
        panel.set_ylim(0)
        panel.set_title(short(dataset))
        panel.legend(fontsize=6.5)
    footnote(figure, f"lower is better; {selection.note(one_seed=True, bins=False)}")
    return figure


def risk_coverage(confidence: Floats, correct: npt.NDArray[np.bool_]) -> tuple[Floats, Floats]:
    """Fraction of images that are answered, and of errors among them, most confident first; ties are one step.

    >>> coverage, risk = risk_coverage(np.array([0.9, 0.5, 0.5]), np.array([True, False, True]))
    >>> coverage.round(3), risk.round(3)
    (array([0.333, 1.   ]), array([0.   , 0.333]))
    """
    order = np.argsort(-confidence, kind="stable")
    sure, wrong = confidence[order], ~correct[order]
    last = np.append(sure[1:] != sure[:-1], True)
    answered = np.arange(1, len(sure) + 1)
    return answered[last] / len(sure), np.cumsum(wrong)[last] / answered[last]


def _arranged(selection: Selection) -> tuple[list[tuple[str, str]], tuple[int, int]]:
    """(data set, method) of each panel, and the rows and columns of the grid."""
    datasets, methods = selection.datasets, selection.methods
    if len(datasets) == 1:
        columns = min(len(methods), 4 if len(methods) % 4 == 0 else 3)
        return [(datasets[0], method) for method in methods], (-(-len(methods) // columns), columns)
    if len(methods) >= len(datasets):
        return [(dataset, method) for dataset in datasets for method in methods], (len(datasets), len(methods))
    return [(dataset, method) for method in methods for dataset in datasets], (len(methods), len(datasets))


def _paired_panels(rows: int, columns: int) -> tuple[Figure, list[list[Axes]]]:
    """Panels with a narrow one below each."""
    return panels(2 * rows, columns, size=(2.3, 1.45), most=2 * MAX_PANELS, sharex=True, height_ratios=[4, 1] * rows)


def _finish(figure: Figure, axes: list[list[Axes]], count: int, columns: int) -> None:
    """One scale of the fractions, labels below, unused panels hidden, the legend."""
    lower = [axes[2 * (at // columns) + 1][at % columns] for at in range(count)]
    top = max(panel.get_ylim()[1] for panel in lower)
    for at, panel in enumerate(lower):
        panel.set_ylim(0, top)
        if at + columns >= count:
            panel.set_xlabel("confidence")
            panel.tick_params(labelbottom=True)
    for at in range(count, len(axes) // 2 * columns):
        for panel in (axes[2 * (at // columns)][at % columns], axes[2 * (at // columns) + 1][at % columns]):
            panel.set_visible(False)
    interval: dict[str, Any] = {"color": ink(), "linewidth": 0.9, "marker": "|", "markersize": 9, "linestyle": "none"}
    legend(
        figure,
        [
            Patch(facecolor=GREY, label="accuracy (the fainter, the fewer images)"),
            Line2D([], [], **interval, label="its 95 % interval"),
            Patch(facecolor="none", edgecolor=VERMILION, hatch="//////", label="gap: over-confident"),
            Patch(facecolor="none", edgecolor=faint(), hatch="......", label="gap: under-confident"),
        ],
    )
