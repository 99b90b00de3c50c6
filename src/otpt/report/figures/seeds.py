"""Deviation over seeds: each seed as a point, mean and sample standard deviation beside it."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from otpt.errors import OtptError
from otpt.report.figures.drawing.looks import looks
from otpt.report.figures.drawing.style import ink, new_figure
from otpt.report.figures.drawing.words import footnote, legend, short
from otpt.report.figures.selection import Selection


def draw_seeds(selection: Selection) -> Figure:
    """Accuracy above and ECE below, data sets across."""
    datasets, methods, seeds = selection.datasets, selection.methods, selection.seeds
    if len(seeds) < 2:
        raise OtptError(
            f"The runs hold one seed, {seeds[0]}; a deviation needs two or more ('otpt evaluate … --seeds')."
        )
    figure = new_figure(1.0 + len(datasets) * (0.4 + 0.16 * len(methods)), 4.2)
    axes = figure.subplots(2, 1, sharex=True)
    look = looks(methods)
    step = 0.8 / len(methods)
    for panel, metric, name in zip(axes, ("accuracy", "ece"), ("accuracy %", "ECE %"), strict=True):
        for k, method in enumerate(methods):
            values = 100 * np.array(
                [[getattr(selection.metrics(d, method, seed), metric) for seed in seeds] for d in datasets]
            )
            at = np.arange(len(datasets)) - 0.4 + (k + 0.5) * step
            panel.errorbar(
                at,
                values.mean(axis=1),
                values.std(axis=1, ddof=1),
                color=look[method].colour,
                marker=look[method].marker,
                linestyle="none",
                capsize=2.5,
                elinewidth=1.0,
                label=short(method),
            )
            beside = np.repeat(at + 0.3 * step, len(seeds))  # not on the mean, which they would hide
            panel.scatter(beside, values.ravel(), s=6, color=ink(), alpha=0.55, linewidth=0, zorder=3)
        panel.set_ylabel(name)
        panel.grid(visible=False, axis="x")
    axes[1].set_xticks(np.arange(len(datasets)), [short(name, 18) for name in datasets], rotation=25, ha="right")
    axes[1].set_xlim(-0.5, len(datasets) - 0.5)
    legend(figure, *axes[0].get_legend_handles_labels())
    footnote(
        figure,
        f"bars: sample standard deviation over seeds; small points: single seeds; {selection.note(ece=True)}",
    )
    return figure
