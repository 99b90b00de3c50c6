"""The O-TPT paper's figure of two groups of images."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from otpt.metrics import get_metric
from otpt.report import Results
from otpt.report.figures import style
from otpt_papers.groups import split_groups, splits_of

FEW = 100
"""Images below which the ECE of a group is marked: of 100, a calibrated model shows 10 % and more with 20 bins."""
METRICS = ("accuracy", "ece")


def draw_groups(results: Results) -> Figure:
    """Draw accuracy and ECE of the two groups of images split by TPT's similarity, one row per data set."""
    results = results.narrow(results.select(seed=results.seeds[0]))
    splits = splits_of(results, results.keys_of())
    columns = [(split, metric) for split in splits for metric in METRICS]
    figure, axes = style.panels(len(results.datasets) * len(columns), size=(2.1, 2.2), across=len(columns))
    has_few = False
    for at, dataset in enumerate(results.datasets):
        line = axes[at * len(columns) : (at + 1) * len(columns)]
        for panel, (split, metric) in zip(line, columns, strict=True):
            has_few |= _draw_panel(panel, results, dataset, split, metric)
        for k in range(len(METRICS)):  # the same scale for each metric
            top = max(panel.get_ylim()[1] for panel in line[k :: len(METRICS)])
            for panel in line[k :: len(METRICS)]:
                panel.set_ylim(0, top)
        line[0].set_ylabel(style.short(dataset))
    style.legend(figure)
    words = "" if len(splits) > 1 else "; the runs hold no initial value ('zero-shot')"
    if has_few:
        words += f"; * fewer than {FEW} images: such an ECE is mostly noise, so its bars are faint"
    style.footnote(
        figure, f"split by TPT's mean cosine similarity of each image{words}; {style.note(results, one_seed=True)}"
    )
    return figure


def _draw_panel(panel: Axes, results: Results, dataset: str, split: str, metric: str) -> bool:
    """Draw bars of a metric in both groups; return whether a group has too few images for it."""
    frame = split_groups(results, dataset, split)
    groups = [frame[frame["dataset"] == f"{dataset}:group {number}"] for number in (1, 2)]
    sizes = [group["images"].iloc[0] for group in groups]
    is_small = [metric == "ece" and 0 < size < FEW for size in sizes]
    heights = pd.DataFrame([100 * group.groupby("method")[metric].mean() for group in groups])[results.methods]
    for drawn in style.bars(panel, heights):
        for bar, faded in zip(drawn, is_small, strict=True):
            bar.set_alpha(0.35 if faded else 1.0)
    threshold = frame["threshold"].iloc[0]
    names = []
    for sign, size, faded in zip(">≤", sizes, is_small, strict=True):
        names.append(f"{sign} {threshold:.3f}\n{size} images{' *' if faded else ''}")
    panel.set_xticks([0, 1], names)
    at_value = "median" if split == "median" else "initial value"
    panel.set_title(f"{get_metric(metric).heading}, split at the {at_value}", fontsize=7.5)
    return any(is_small)
