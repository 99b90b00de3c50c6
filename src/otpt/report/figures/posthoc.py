"""Bars of calibration errors: tuning with a regulariser against tuning and a correction afterwards."""

from __future__ import annotations

from statistics import mean

import numpy as np
from matplotlib.figure import Figure

from otpt.report.figures.drawing.looks import looks
from otpt.report.figures.drawing.style import ink, new_figure, paper
from otpt.report.figures.drawing.words import footnote, legend, short
from otpt.report.figures.selection import Selection


def draw_posthoc(selection: Selection) -> Figure:
    """ECE of each method on each data set and on average; with several seeds, their deviation as error bars."""
    datasets, methods = selection.datasets, selection.methods
    groups = [*datasets, "average"] if len(datasets) > 1 else list(datasets)
    figure = new_figure(1.0 + len(groups) * (0.25 + 0.16 * len(methods)), 2.8)
    axes = figure.subplots()
    width = 0.8 / len(methods)
    look = looks(methods)
    several = len(selection.seeds) > 1
    for k, method in enumerate(methods):
        values = [100 * selection.mean("ece", dataset, method) for dataset in datasets]
        values += [mean(values)] if len(datasets) > 1 else []
        over = [[dataset] for dataset in datasets] + ([list(datasets)] if len(datasets) > 1 else [])
        errors = [100 * (selection.deviation("ece", each, method) or 0.0) for each in over]
        axes.bar(
            np.arange(len(groups)) - 0.4 + (k + 0.5) * width,
            values,
            width,
            yerr=errors if several else None,
            error_kw={"ecolor": ink(), "elinewidth": 0.8, "capsize": 2.0, "capthick": 0.8},
            color=look[method].colour,
            edgecolor=paper(),
            hatch=look[method].hatch,
            linewidth=0.4,
            label=short(method),
        )
    if len(groups) == 1:
        axes.set_xticks([0], [short(groups[0], 36)])
    else:
        axes.set_xticks(np.arange(len(groups)), [short(name, 18) for name in groups], rotation=25, ha="right")
        axes.axvline(len(datasets) - 0.5, color=ink(), linewidth=0.6)
    axes.grid(visible=False, axis="x")
    axes.set(ylabel="ECE %", xlim=(-0.5, len(groups) - 0.5))
    # bars with error bars are registered as two containers of one label
    named = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    legend(figure, list(named.values()), list(named))
    whiskers = "error bars: sample standard deviation over seeds; " if several else ""
    footnote(figure, f"{whiskers}{selection.note(ece=True)}")
    return figure
