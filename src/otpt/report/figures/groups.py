"""Accuracy and calibration error in the two groups of images that TPT's mean cosine similarity makes."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from otpt.report.cosines import BY, SPLITS, Groups, check_groups, group_rows, group_value, init_cosine, two_groups
from otpt.report.figures.drawing.looks import looks
from otpt.report.figures.drawing.style import one_scale, panels, paper
from otpt.report.figures.drawing.words import footnote, legend, short
from otpt.report.figures.selection import Selection

FEW = 100
"""Images below which the ECE of a group is marked: of 100, a perfectly calibrated model shows 10 % and more with
20 bins."""

_METRICS = {"accuracy": "accuracy %", "ece": "ECE %"}


def draw_groups(selection: Selection) -> Figure:
    """Data sets down; across, accuracy and ECE for the split at the median and for the one at the initial value."""
    datasets = selection.datasets
    check_groups(selection.results)
    known = all(init_cosine(selection.results, selection.key(d, BY)) is not None for d in datasets)
    splits = SPLITS if known else SPLITS[:1]
    marked = False
    figure, axes = panels(len(datasets), 2 * len(splits), size=(2.1, 2.2))
    for line, dataset in zip(axes, datasets, strict=True):
        for s, split in enumerate(splits):
            groups = two_groups(selection.results, selection.key(dataset, BY), split=split)
            for k, (metric, title) in enumerate(_METRICS.items()):
                panel = line[2 * s + k]
                marked |= _draw_bars(panel, selection, dataset, groups, metric)
                panel.set_title(
                    f"{title}, split at the {'median' if split == 'median' else 'initial value'}", fontsize=7.5
                )
        for k in range(len(_METRICS)):
            one_scale(line[k :: len(_METRICS)])
        line[0].set_ylabel(short(dataset))
    legend(figure, *axes[0][0].get_legend_handles_labels())
    without = "" if known else "; the runs hold no initial value ('zero-shot')"
    few = f"; * fewer than {FEW} images: such an ECE is mostly noise, so its bars are faint" if marked else ""
    note = f"split by TPT's mean cosine similarity of each image{without}{few}; {selection.note(one_seed=True)}"
    footnote(figure, note)
    return figure


def _draw_bars(panel: Axes, selection: Selection, dataset: str, groups: Groups, metric: str) -> bool:
    """Two groups of bars, one bar per method; an empty group has none. Whether a group was marked as too small."""
    methods, results = selection.methods, selection.results
    look = looks(methods)
    width = 0.8 / len(methods)
    above = int(groups.above.sum())
    counts = (above, len(groups.above) - above)
    few = [metric == "ece" and 0 < count < FEW for count in counts]
    for k, method in enumerate(methods):
        rows = group_rows(results, selection.key(dataset, method), groups)
        values = [group_value(results, rows, metric, own) for own in (groups.above, ~groups.above)]
        heights = [np.nan if value is None else 100 * value for value in values]
        bars = panel.bar(
            np.arange(2) - 0.4 + (k + 0.5) * width,
            heights,
            width,
            color=look[method].colour,
            hatch=look[method].hatch,
            edgecolor=paper(),
            linewidth=0.4,
            label=short(method),
        )
        for bar, faded in zip(bars, few, strict=True):
            bar.set_alpha(0.35 if faded else 1.0)
    names = [
        f"{sign} {groups.threshold:.3f}\n{count} image{'' if count == 1 else 's'}{' *' if faded else ''}"
        for sign, count, faded in zip(">≤", counts, few, strict=True)
    ]
    panel.set_xticks([0, 1], names)
    panel.grid(visible=False, axis="x")
    return any(few)
