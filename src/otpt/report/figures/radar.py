"""The radar of calibration errors: one axis per data set, one outline per method."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from otpt.errors import OtptError
from otpt.metrics import percent
from otpt.report.figures.selection import Selection
from otpt.report.figures.style import BACKED, footnote, looks, new_figure, short

_INNER = 0.25
"""Where the smallest ECE of an axis lies; the largest lies at 1."""


def draw_radar(selection: Selection) -> Figure:
    """ECE of each method on each data set; every axis runs from the smallest to the largest ECE on it."""
    datasets, methods = selection.datasets, selection.methods
    if len(datasets) < 3:
        raise OtptError(
            f"A radar needs three data sets or more, but {len(datasets)} are chosen; use 'posthoc' for bars."
        )
    values = np.array([[selection.mean("ece", dataset, method) for dataset in datasets] for method in methods])
    low, high = values.min(axis=0), values.max(axis=0)
    span = np.where(high > low, high - low, 1.0)
    radii = _INNER + (1.0 - _INNER) * (values - low) / span
    angles = np.arange(len(datasets)) * 2 * math.pi / len(datasets)
    figure = new_figure(5.2, 5.0)
    axes: Any = figure.add_subplot(projection="polar")  # a PolarAxes
    axes.set_theta_offset(math.pi / 2)
    axes.set_theta_direction(-1)
    for method, radius in zip(methods, radii, strict=True):
        look = looks(methods)[method]
        around, closed = np.append(angles, angles[0]), np.append(radius, radius[0])
        axes.plot(around, closed, color=look.colour, marker=look.marker, linestyle=look.dash, label=short(method))
        axes.fill(around, closed, color=look.colour, alpha=0.06)
    for angle, smallest, largest in zip(angles, low, high, strict=True):
        for radius, value in ((_INNER, smallest), (1.0, largest)):
            words = percent(value)
            axes.text(angle, radius - 0.09, words, ha="center", va="center", fontsize=6.5, bbox=BACKED, zorder=4)
    axes.set(ylim=(0, 1.08), yticks=[_INNER, 1.0], yticklabels=[])
    axes.set_xticks(angles, [short(dataset, 20) for dataset in datasets], fontsize=8)
    axes.tick_params(axis="x", pad=8)
    axes.spines["polar"].set_visible(False)
    figure.legend(loc="outside upper center", ncols=min(len(methods), 4))
    footnote(
        figure, f"ECE in percent, each axis from its smallest to its largest; further in is better; {selection.note()}"
    )
    return figure
