"""Bars of calibration errors: tuning with a regulariser against tuning and a correction afterwards."""

from __future__ import annotations

from statistics import mean

import numpy as np
from matplotlib.figure import Figure

from otpt.report.figures.selection import Selection
from otpt.report.figures.style import footnote, looks, new_figure, short


def draw_posthoc(selection: Selection) -> Figure:
    """ECE of each method on each data set, and the average over the data sets."""
    datasets, methods = selection.datasets, selection.methods
    groups = [*datasets, "average"] if len(datasets) > 1 else list(datasets)
    figure = new_figure(max(3.4, 1.0 + len(groups) * (0.25 + 0.14 * len(methods))), 2.8)
    axes = figure.subplots()
    width = 0.8 / len(methods)
    look = looks(methods)
    for k, method in enumerate(methods):
        values = [100 * selection.mean("ece", dataset, method) for dataset in datasets]
        values += [mean(values)] if len(datasets) > 1 else []
        axes.bar(
            np.arange(len(groups)) - 0.4 + (k + 0.5) * width,
            values,
            width,
            color=look[method].colour,
            edgecolor="white",
            hatch=look[method].hatch,
            linewidth=0.4,
            label=short(method),
        )
    axes.set_xticks(np.arange(len(groups)), [short(name, 18) for name in groups], rotation=25, ha="right")
    if len(datasets) > 1:
        axes.axvline(len(datasets) - 0.5, color="black", linewidth=0.6)
    axes.grid(visible=False, axis="x")
    axes.set(ylabel="ECE %", xlim=(-0.5, len(groups) - 0.5))
    figure.legend(loc="outside upper center", ncols=min(len(methods), 5))
    footnote(figure, selection.note())
    return figure
