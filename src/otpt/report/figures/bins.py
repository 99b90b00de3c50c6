"""Figures of confidence: reliability diagrams, histograms, risk–coverage curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from scipy.stats import binomtest

from otpt.metrics import ReliabilityBins, aurc, percent, reliability_bins
from otpt.report.figures import style
from otpt.report.results import Results
from otpt.runs import Rows

Floats = npt.NDArray[np.float64]


class Hatching(NamedTuple):
    """Colour and hatch of an area without filling."""

    colour: str
    hatch: str

    def patch(self, label: str) -> Patch:
        """Return a patch for the legend."""
        return Patch(facecolor="none", label=label, edgecolor=self.colour, hatch=self.hatch, linewidth=_HATCH_WIDTH)


_HATCH_WIDTH = 0.5
_OVER = Hatching(style.VERMILION, "//////")


def make_bins(results: Results, rows: Rows) -> ReliabilityBins:
    """Return the bins of the ECE."""
    return reliability_bins(rows.confidences, rows.correct, n_bins=results.n_bins, side=results.side)


def draw_reliability(results: Results) -> Figure:
    """Draw reliability diagrams: accuracy per bin, hatched gaps to the confidence, fractions of images below."""
    cells, across = _cells(results)
    figure, axes = style.panels(len(cells), size=(2.3, 2.9), across=across)
    lower = []
    for panel, (dataset, method) in zip(axes, cells, strict=True):
        key = results.first_key(dataset, method)
        bins = make_bins(results, results.rows(key))
        score = results.require_score(key)
        words = f"ECE {percent(score['ece'])}, accuracy {percent(score['accuracy'])}, {bins.total} images"
        colour = style.looks(results.methods)[method].colour
        lower.append(draw_bins(panel, bins, colour, f"{style.short(method)}, {style.short(dataset)}", words))
    _finish(figure, axes, lower, across)
    style.footnote(figure, f"Wilson intervals; {style.note(results, one_seed=True, ece=True)}")
    return figure


def draw_before_after(bins: Mapping[str, ReliabilityBins], words: Mapping[str, str], method: str) -> Figure:
    """Draw reliability before and after a calibration, one panel per ``bins`` with a title line of ``words``."""
    figure, axes = style.panels(len(bins), size=(2.3, 2.9))
    colour = style.looks([method])[method].colour
    lower = []
    for panel, (name, bins_of_panel) in zip(axes, bins.items(), strict=True):
        lower.append(draw_bins(panel, bins_of_panel, colour, f"{style.short(method)}, {name}", words[name]))
    _finish(figure, axes, lower, len(bins))
    labels = max(bins_of_panel.total for bins_of_panel in bins.values())
    style.footnote(figure, f"Wilson intervals; {labels} labelled images, each by a map that was fitted without it")
    return figure


def draw_bins(axes: Axes, bins: ReliabilityBins, colour: str, title: str = "", words: str = "") -> Axes:
    """Draw bars of accuracy with intervals, gaps and the diagonal; return the panel of image fractions below."""
    filled = bins.counts > 0
    left, width = bins.edges[:-1][filled], np.diff(bins.edges)[filled]
    accuracy, n = bins.accuracy[filled], bins.counts[filled]
    bars = axes.bar(left, accuracy, width, align="edge", color=colour, edgecolor=style.paper(), linewidth=0.4)
    for bar, count in zip(bars, n, strict=True):  # the fainter, the fewer images
        bar.set_alpha(0.25 + 0.75 * float(np.sqrt(count / n.max())))
    for is_drawn, marks in ((bins.gaps > 0, _OVER), (bins.gaps <= 0, _under())):
        axes.stairs(
            np.where(is_drawn, bins.accuracy + bins.gaps, np.nan),
            bins.edges,
            baseline=np.where(is_drawn, bins.accuracy, np.nan),
            fill=True,
            facecolor="none",
            edgecolor=marks.colour,
            hatch=marks.hatch,
            linewidth=_HATCH_WIDTH,
        )
    ranges = [
        binomtest(round(a * count), count).proportion_ci(method="wilson") for a, count in zip(accuracy, n, strict=True)
    ]
    axes.vlines(left + width / 2, *zip(*ranges, strict=True), color=style.ink(), linewidth=0.7, zorder=3)
    axes.plot([0, 1], [0, 1], color=style.ink(), linewidth=0.8, dashes=(4, 2))
    axes.set(xlim=(0, 1), ylim=(0, 1), xticks=[0, 0.5, 1], yticks=[0, 0.5, 1])
    axes.set_title(f"{title}\n" if title else "", fontsize=8)
    axes.annotate(words, (0.5, 1.03), xycoords="axes fraction", ha="center", fontsize=6.5, color=style.faint())
    axes.tick_params(labelbottom=False)
    lower = axes.inset_axes((0, -0.27, 1, 0.22), sharex=axes)
    fraction = bins.counts / bins.total
    lower.stairs(fraction, bins.edges, fill=True, color="#B0B0B0")
    lower.set(ylim=(0, max(0.1, 1.1 * float(fraction.max()))))
    lower.locator_params(axis="y", nbins=2)
    return lower


def draw_confidence(results: Results) -> Figure:
    """Draw confidence histograms of correct and wrong predictions with mean confidence and accuracy."""
    cells, across = _cells(results)
    figure, axes = style.panels(len(cells), size=(2.2, 1.7), across=across, sharey=True)
    for panel, (dataset, method) in zip(axes, cells, strict=True):
        rows = style.first_rows(results, dataset, method)
        bins = make_bins(results, rows)
        left, width = bins.edges[:-1], np.diff(bins.edges)
        total = bins.counts / bins.total
        right = np.nan_to_num(bins.accuracy) * total
        panel.bar(left, right, width, align="edge", color=style.looks(results.methods)[method].colour)
        panel.bar(
            left,
            total - right,
            width,
            bottom=right,
            align="edge",
            color=style.paper(),
            edgecolor=_OVER.colour,
            hatch=_OVER.hatch,
            linewidth=_HATCH_WIDTH,
        )
        panel.axvline(float(rows.confidences.mean()), color=style.ink(), linewidth=1.0)
        panel.axvline(float(rows.correct.mean()), color=style.ink(), linewidth=1.0, dashes=(2, 2))
        panel.set(xlim=(0, 1), xticks=[0, 0.5, 1])
        panel.set_title(f"{style.short(method)}\n{style.short(dataset)}", fontsize=8)
    _label_edges(axes, across, "confidence", "fraction of images")
    style.legend(
        figure,
        [
            Patch(facecolor=style.GREY, label="correct"),
            _OVER.patch("wrong"),
            Line2D([], [], color=style.ink(), linewidth=1.0, label="mean confidence"),
            Line2D([], [], color=style.ink(), linewidth=1.0, dashes=(2, 2), label="accuracy"),
        ],
    )
    style.footnote(figure, style.note(results, one_seed=True))
    return figure


def draw_risk_coverage(results: Results) -> Figure:
    """Draw risk–coverage curves, one panel per data set, with the AURC in the legend."""
    figure, axes = style.panels(len(results.datasets), size=(3.0, 2.6))
    for panel, dataset in zip(axes, results.datasets, strict=True):
        for method, look in style.looks(results.methods).items():
            rows = style.first_rows(results, dataset, method)
            coverage, risk = risk_coverage(rows.confidences, rows.correct)
            label = f"{style.short(method)}, AURC {percent(aurc(rows.confidences, rows.correct))}"
            panel.plot(100 * coverage, 100 * risk, color=look.colour, linestyle=look.dash, label=label)
        panel.set(xlabel="coverage: predictions kept %", ylabel="risk: wrong among them %", title=style.short(dataset))
        panel.set(xlim=(0, 100), ylim=(0, None))
        panel.legend(fontsize=6.5)
    style.footnote(figure, f"lower is better; {style.note(results, one_seed=True, bins=False)}")
    return figure


def risk_coverage(confidence: Floats, correct: npt.NDArray[np.bool_]) -> tuple[Floats, Floats]:
    """Return coverage and risk by decreasing confidence; ties are one step.

    >>> coverage, risk = risk_coverage(np.array([0.9, 0.5, 0.5]), np.array([True, False, True]))
    >>> coverage.round(3), risk.round(3)
    (array([0.333, 1.   ]), array([0.   , 0.333]))
    """
    order = np.argsort(-confidence, kind="stable")
    sure, wrong = confidence[order], ~correct[order]
    last = np.append(sure[1:] != sure[:-1], True)
    answered = np.arange(1, len(sure) + 1)
    return answered[last] / len(sure), np.cumsum(wrong)[last] / answered[last]


def _cells(results: Results) -> tuple[list[tuple[str, str]], int]:
    """Return (data set, method) of each panel and the number of panels in a row."""
    datasets, methods = results.datasets, results.methods
    if len(datasets) == 1:
        return [(datasets[0], method) for method in methods], 4 if len(methods) % 4 == 0 else 3
    if len(methods) >= len(datasets):
        return [(dataset, method) for dataset in datasets for method in methods], len(methods)
    return [(dataset, method) for method in methods for dataset in datasets], len(datasets)


def _label_edges(axes: Sequence[Axes], across: int, x: str, y: str) -> None:
    """Label the first panel of each row, and the last of each column."""
    for at, panel in enumerate(axes):
        if at % across == 0:
            panel.set_ylabel(y)
        if at + across >= len(axes):
            panel.set_xlabel(x)


def _finish(figure: Figure, axes: Sequence[Axes], lower: Sequence[Axes], across: int) -> None:
    """Scale the fractions of images in the lower panels alike, label the edges, add the legend."""
    top = max(panel.get_ylim()[1] for panel in lower)
    for panel in lower:
        panel.set_ylim(0, top)
    _label_edges(axes, across, "", "accuracy")
    _label_edges(lower, across, "confidence", "fraction")
    interval = Line2D(
        [], [], color=style.ink(), linewidth=0.9, marker="|", markersize=9, linestyle="none", label="its 95 % interval"
    )
    style.legend(
        figure,
        [
            Patch(facecolor=style.GREY, label="accuracy (the fainter, the fewer images)"),
            interval,
            _OVER.patch("gap: over-confident"),
            _under().patch("gap: under-confident"),
        ],
    )


def _under() -> Hatching:
    return Hatching(style.faint(), "......")
