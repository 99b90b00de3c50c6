"""Accuracy against calibration error over the values of a swept setting, with the Pareto front."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from otpt.errors import OtptError
from otpt.report.figures.curves import pareto_front
from otpt.report.figures.selection import Selection, ordinary
from otpt.report.figures.style import footnote, grid_of, looks, panels, short
from otpt.report.sweeps import swept


def draw_pareto(selection: Selection) -> Figure:
    """A panel for each data set: every value of λ as a point with its name, those that none beats joined by a line."""
    sweeps = swept(selection.methods)
    if not sweeps:
        raise OtptError(
            "The chosen methods hold no sweep, such as 'o-tpt[lambda=18]'; make a run with "
            "'otpt sweep … --set lambda=0,1,2,6,18,54'."
        )
    singles = ordinary(selection.methods)
    rows, columns = grid_of(len(selection.datasets), across=3)
    figure, axes = panels(rows, columns, size=(3.0, 2.6))
    flat = [panel for line in axes for panel in line]
    look = looks([*sweeps, *singles])
    for panel, dataset in zip(flat, selection.datasets, strict=False):
        for base, values in sweeps.items():
            accuracy, ece = _points(selection, dataset, [method for _, method in values])
            front = pareto_front(accuracy, ece)
            colour, marker = look[base].colour, look[base].marker
            panel.plot(ece[front], accuracy[front], color=colour, linewidth=1.0, label="_front")
            panel.scatter(ece, accuracy, s=22, color=colour, marker=marker, label=f"{short(base)}, swept", zorder=3)
            for (value, _), x, y in zip(values, ece, accuracy, strict=True):
                panel.annotate(short(value, 14), (x, y), xytext=(3, 3), textcoords="offset points", fontsize=6)
        for method in singles:
            accuracy, ece = _points(selection, dataset, [method])
            panel.scatter(
                ece, accuracy, s=34, color="white", edgecolor=look[method].colour, marker=look[method].marker,
                linewidth=1.3, label=short(method), zorder=4,
            )  # fmt: skip
        panel.set(xlabel="ECE %", ylabel="accuracy %")
        panel.set_title(short(dataset))
        panel.margins(0.12)
    for panel in flat[len(selection.datasets) :]:
        panel.set_visible(False)
    handles, labels = flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=min(len(labels), 5))
    footnote(figure, f"up and left is better; the line joins the values that no other beats; {selection.note()}")
    return figure


def _points(selection: Selection, dataset: str, methods: list[str]) -> tuple[np.ndarray, np.ndarray]:
    accuracy = [100 * selection.mean("accuracy", dataset, method) for method in methods]
    return np.array(accuracy), np.array([100 * selection.mean("ece", dataset, method) for method in methods])
