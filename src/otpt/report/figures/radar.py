"""The radar of calibration errors: one axis per data set, one outline per method, one scale for all."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from otpt.errors import OtptError
from otpt.metrics import percent
from otpt.report.figures.drawing.looks import looks
from otpt.report.figures.drawing.style import backed, faint, new_figure
from otpt.report.figures.drawing.words import footnote, legend, short
from otpt.report.figures.selection import Selection

_RINGS = 5
"""Rings at most."""


def draw_radar(selection: Selection) -> Figure:
    """ECE of each method on each data set in percent; all axes start at 0 and have the same scale."""
    datasets, methods = selection.datasets, selection.methods
    if len(datasets) < 3:
        raise OtptError(
            f"A radar needs three data sets or more, but {len(datasets)} are chosen; use 'posthoc' for bars."
        )
    values = 100 * np.array([[selection.mean("ece", dataset, method) for dataset in datasets] for method in methods])
    angles = np.arange(len(datasets)) * 2 * math.pi / len(datasets)
    figure = new_figure(5.2, 5.2)
    axes: Any = figure.add_subplot(projection="polar")  # a PolarAxes
    axes.set_theta_offset(math.pi / 2)
    axes.set_theta_direction(-1)
    for method, radius in zip(methods, values, strict=True):
        look = looks(methods)[method]
        around, closed = np.append(angles, angles[0]), np.append(radius, radius[0])
        axes.plot(around, closed, color=look.colour, marker=look.marker, linestyle=look.dash, label=short(method))
        axes.fill(around, closed, color=look.colour, alpha=0.06)
    rings = [ring for ring in MaxNLocator(_RINGS).tick_values(0, float(values.max()) or 1.0) if ring > 0]
    axes.set(ylim=(0, rings[-1]))
    # halfway between the first two axes, where no marker can lie
    axes.set_rgrids(rings, [f"{ring:g}" for ring in rings], angle=math.degrees(angles[1] / 2), fontsize=6.5)
    for ring in axes.get_yticklabels():
        ring.set(bbox=backed(), color=faint(), ha="center", va="center")
    ranges = [f"{percent(own.min() / 100)} – {percent(own.max() / 100)}" for own in values.T]
    names = [f"{short(dataset, 20)}\n{words}" for dataset, words in zip(datasets, ranges, strict=True)]
    axes.set_xticks(angles, names, fontsize=8)
    axes.tick_params(axis="x", pad=12)
    axes.spines["polar"].set_visible(False)
    legend(figure, *axes.get_legend_handles_labels())
    footnote(
        figure,
        "ECE in percent, the same scale from 0 on every axis; smaller is better; below each name its smallest and "
        f"largest ECE; {selection.note(ece=True)}",
    )
    return figure
