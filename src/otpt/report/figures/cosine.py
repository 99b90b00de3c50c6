"""The mean cosine similarity of the text features that each test image was predicted with."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from otpt.report.cosines import check_cosines, init_cosine
from otpt.report.figures.drawing.looks import looks
from otpt.report.figures.drawing.style import ink, panels, paper
from otpt.report.figures.drawing.words import footnote, short
from otpt.report.figures.selection import Selection

_MANY = 3000
"""Above this number of points, a vector file holds them as an image."""

_LARGEST, _SMALLEST = 18.0, 5.0
"""Areas of a point, of few images and of many."""


def draw_cosine(selection: Selection) -> Figure:
    """A line of panels for each data set: one point per image and method, their distribution, the initial value."""
    datasets, methods = selection.datasets, selection.methods
    figure, axes = panels(len(datasets), 2, size=(2.6, 2.1), sharey="row", width_ratios=[3, 1])
    look = looks(methods)
    for (points, marginal), dataset in zip(axes, datasets, strict=True):
        found = {
            method: check_cosines(selection.rows(dataset, method), selection.key(dataset, method)) for method in methods
        }
        values = np.concatenate([rows.mean_cosines for rows in found.values()])
        initial = init_cosine(selection.results, selection.key(dataset, methods[0]))
        edges = np.linspace(values.min(), values.max() + 1e-9, 41)
        for method, rows in found.items():
            points.scatter(
                rows.indices,
                rows.mean_cosines,
                s=float(np.clip(900 / len(rows), _SMALLEST, _LARGEST)),
                color=look[method].colour,
                marker=look[method].marker,
                edgecolor=paper(),  # keeps points in a heap apart; transparent ones would fade into the paper
                linewidth=0.2,
                rasterized=len(rows) > _MANY,
                label=f"{short(method)}, mean {rows.mean_cosines.mean():.4f}",
            )
            fractions = np.histogram(rows.mean_cosines, edges)[0] / len(rows)
            marginal.stairs(
                fractions, edges, orientation="horizontal", color=look[method].colour, fill=True, alpha=0.45
            )
            marginal.stairs(fractions, edges, orientation="horizontal", color=look[method].colour, linewidth=0.9)
        if initial is not None:
            points.axhline(initial, color=ink(), linewidth=1.0, dashes=(4, 2), label=f"initial prompt, {initial:.4f}")
            marginal.axhline(initial, color=ink(), linewidth=1.0, dashes=(4, 2))
        points.set(xlabel="test image", ylabel="mean cosine similarity")
        points.set_title(short(dataset))
        points.legend(loc="upper left", fontsize=6.5, ncols=2, bbox_to_anchor=(0, -0.22), markerscale=1.6)
        marginal.set_xlabel("fraction")
    footnote(figure, selection.note(one_seed=True, bins=False))
    return figure
