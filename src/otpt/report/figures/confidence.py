"""Histograms of the confidence of correct and wrong predictions."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from otpt.metrics import reliability_bins
from otpt.report.figures.drawing.looks import GREY, VERMILION, looks
from otpt.report.figures.drawing.style import ink, panels, paper
from otpt.report.figures.drawing.words import footnote, legend, short
from otpt.report.figures.selection import Selection


def draw_confidence(selection: Selection) -> Figure:
    """Methods down, data sets across; correct and wrong predictions stacked, mean confidence and accuracy as lines."""
    datasets, methods = selection.datasets, selection.methods
    figure, axes = panels(len(methods), len(datasets), size=(2.2, 1.5), sharex=True, sharey="col")
    look = looks(methods)
    results = selection.results
    for column, dataset in enumerate(datasets):
        for row, method in enumerate(methods):
            panel = axes[row][column]
            rows = selection.rows(dataset, method)
            bins = reliability_bins(rows.confidences, rows.correct, n_bins=results.bins, side=results.side)
            total = bins.counts / bins.total
            right = np.where(bins.counts > 0, np.nan_to_num(bins.accuracy) * total, 0.0)
            left, width = bins.edges[:-1], np.diff(bins.edges)
            panel.bar(left, right, width, align="edge", color=look[method].colour, label="correct")
            panel.bar(
                left,
                total - right,
                width,
                bottom=right,
                align="edge",
                color=paper(),
                edgecolor=VERMILION,
                hatch="//////",
                linewidth=0.5,
                label="wrong",
            )
            confidence, accuracy = float(rows.confidences.mean()), float(rows.correct.mean())
            panel.axvline(confidence, color=ink(), linewidth=1.0, label="mean confidence")
            panel.axvline(accuracy, color=ink(), linewidth=1.0, dashes=(2, 2), label="accuracy")
            panel.set(xlim=(0, 1), xticks=[0, 0.5, 1])
            panel.set_title(short(dataset) if row == 0 else "")
            if column == 0:
                panel.set_ylabel(f"{short(method)}\nfraction of images")
            if row == len(methods) - 1:
                panel.set_xlabel("confidence")
    handles, names = axes[0][0].get_legend_handles_labels()
    known = dict(zip(names, handles, strict=True))
    known["correct"] = Patch(facecolor=GREY)  # each line of panels has its own colour
    legend(figure, list(known.values()), list(known))
    footnote(figure, selection.note(one_seed=True))
    return figure
