"""Accuracy and calibration error in the two groups of images that TPT's mean cosine similarity makes."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from otpt.errors import OtptError
from otpt.report.cosines import SPLITS, Groups, group_rows, group_value, init_cosine, two_groups
from otpt.report.figures.selection import Selection
from otpt.report.figures.style import footnote, looks, panels, short

_METRICS = {"accuracy": "accuracy %", "ece": "ECE %"}


def draw_groups(selection: Selection) -> Figure:
    """Data sets down; across, accuracy and ECE for the split at the median and for the one at the initial value."""
    datasets, methods = selection.datasets, selection.methods
    if "tpt" not in selection.results.methods:
        raise OtptError("The groups are made by the similarity of 'tpt', which the runs do not hold; add it to a run.")
    known = all(init_cosine(selection.results, selection.key(d, "tpt")) is not None for d in datasets)
    splits = SPLITS if known else SPLITS[:1]
    figure, axes = panels(len(datasets), 2 * len(splits), size=(1.9, 2.0))
    for line, dataset in zip(axes, datasets, strict=True):
        for s, split in enumerate(splits):
            groups = two_groups(selection.results, selection.key(dataset, "tpt"), split=split)
            for k, (metric, title) in enumerate(_METRICS.items()):
                panel = line[2 * s + k]
                _draw_bars(panel, selection, dataset, groups, metric)
                panel.set_title(
                    f"{title}, split at the {'median' if split == 'median' else 'initial value'}", fontsize=7.5
                )
        line[0].set_ylabel(short(dataset))
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside upper left", ncols=min(len(methods), 5))
    without = "" if known else "; the runs hold no initial value ('zero-shot')"
    footnote(figure, f"split by TPT's mean cosine similarity of each image{without}; {selection.note(one_seed=True)}")
    return figure


def _draw_bars(panel: Axes, selection: Selection, dataset: str, groups: Groups, metric: str) -> None:
    """Two groups of bars, one bar per method; an empty group has none."""
    methods, results = selection.methods, selection.results
    look = looks(methods)
    width = 0.8 / len(methods)
    for k, method in enumerate(methods):
        rows = group_rows(results, selection.key(dataset, method), groups)
        values = [group_value(results, rows, metric, own) for own in (groups.above, ~groups.above)]
        heights = [np.nan if value is None else 100 * value for value in values]
        panel.bar(
            np.arange(2) - 0.4 + (k + 0.5) * width,
            heights,
            width,
            color=look[method].colour,
            hatch=look[method].hatch,
            edgecolor="white",
            linewidth=0.4,
            label=short(method),
        )
    count = int(groups.above.sum())
    names = [f"> {groups.threshold:.3f}\n{count}", f"≤ {groups.threshold:.3f}\n{len(groups.above) - count}"]
    panel.set_xticks([0, 1], names)
    panel.grid(visible=False, axis="x")
