"""Accuracy against calibration error over the values of a swept setting, with the Pareto front."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from otpt.errors import OtptError
from otpt.report.figures.drawing.curves import pareto_front
from otpt.report.figures.drawing.looks import GREY, looks
from otpt.report.figures.drawing.style import panels_in_rows, paper
from otpt.report.figures.drawing.words import footnote, label_points, legend, short
from otpt.report.figures.selection import Selection, ordinary
from otpt.report.sweeps import swept


def draw_pareto(selection: Selection) -> Figure:
    """A panel for each data set: every value of λ as a point with its label; a line joins those that none beats."""
    sweeps = swept(selection.methods)
    if not sweeps:
        raise OtptError(
            "The chosen methods hold no sweep, such as 'o-tpt[lambda=18]'; make a run with "
            "'otpt sweep … --set lambda=0,1,2,6,18,54'."
        )
    singles = ordinary(selection.methods)
    figure, axes = panels_in_rows(len(selection.datasets), size=(3.0, 2.6))
    look = looks([*sweeps, *singles])
    fronts = 0
    labelled = []
    for panel, dataset in zip(axes, selection.datasets, strict=True):
        labels: list[str] = []
        places: list[tuple[float, float]] = []
        beside: list[tuple[float, float]] = []  # what the labels keep clear of as well
        for base, values in sweeps.items():
            accuracy, ece = _points(selection, dataset, [method for _, method in values])
            front = pareto_front(accuracy, ece)
            colour, marker = look[base].colour, look[base].marker
            if len(front) > 1:
                beside += _along(ece[front], accuracy[front])
                panel.plot(ece[front], accuracy[front], color=colour, linewidth=1.0, label="_front")
                fronts += 1
            panel.scatter(ece, accuracy, s=22, color=colour, marker=marker, label=f"{short(base)}, swept", zorder=3)
            labels += [short(value, 14) for value, _ in values]
            places += zip(ece.tolist(), accuracy.tolist(), strict=True)
        for method in singles:
            accuracy, ece = _points(selection, dataset, [method])
            panel.scatter(
                ece, accuracy, s=34, color=paper(), edgecolor=look[method].colour, marker=look[method].marker,
                linewidth=1.3, label=short(method), zorder=4,
            )  # fmt: skip
            beside.append((float(ece[0]), float(accuracy[0])))
        panel.set(xlabel="ECE %", ylabel="accuracy %")
        panel.set_title(short(dataset))
        panel.margins(0.18)
        labelled.append((panel, places, labels, beside))
    handles, names = axes[0].get_legend_handles_labels()
    if fronts:
        handles.append(Line2D([], [], color=GREY, linewidth=1.0))
        names.append("Pareto front of the sweep")
    legend(figure, handles, names)
    footnote(figure, f"up and left is better; {selection.note(ece=True)}")
    for panel, places, labels, beside in labelled:  # once the layout is known
        label_points(panel, places, labels, beside)
    return figure


def _points(selection: Selection, dataset: str, methods: list[str]) -> tuple[np.ndarray, np.ndarray]:
    accuracy = [100 * selection.mean("accuracy", dataset, method) for method in methods]
    return np.array(accuracy), np.array([100 * selection.mean("ece", dataset, method) for method in methods])


def _along(x: np.ndarray, y: np.ndarray, steps: int = 24) -> list[tuple[float, float]]:
    """Points on the line through (x, y), ``steps`` from each to the next."""
    at = np.linspace(0, len(x) - 1, steps * (len(x) - 1) + 1)
    return list(zip(*(np.interp(at, np.arange(len(x)), each).tolist() for each in (x, y)), strict=True))
