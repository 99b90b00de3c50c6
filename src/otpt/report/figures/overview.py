"""First pictures: over-confidence of each method over all images, and accuracy against calibration error."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from otpt.errors import OtptError
from otpt.metrics import clopper_pearson
from otpt.report.comparison import Side
from otpt.report.figures import style
from otpt.report.results import ResultKey, Results
from otpt.report.selection import plain_methods

Floats = npt.NDArray[np.float64]
Booleans = npt.NDArray[np.bool_]

LEAST_IMAGES = 30
"""Images of each bin of a pooled diagram, at least."""
_MOST_BINS = 10
_MOST_POINTS = 12
_MOST_ROWS = 200_000
_Z = 1.96


def draw_pooled(results: Results) -> Figure:
    """Draw one reliability diagram per method over the images of all data sets, in bins of equally many images."""
    methods = results.methods
    figure, axes = style.panels(len(methods), size=(2.2, 2.5), across=min(len(methods), 4), sharey=True)
    total = 0
    for panel, method in zip(axes, methods, strict=True):
        rows = [style.first_rows(results, dataset, method) for dataset in results.datasets]
        confidence = np.concatenate([part.confidences for part in rows])
        correct = np.concatenate([part.correct for part in rows])
        total = max(total, len(correct))
        _draw_pooled_panel(panel, confidence, correct, style.looks(methods)[method].colour)
        words, colour = _verdict(confidence, correct)
        panel.set_title(f"{style.short(method)}\n", fontsize=9, fontweight="bold")
        panel.annotate(words, (0.5, 1.03), xycoords="axes fraction", ha="center", fontsize=7.5, color=colour)
        panel.set_xlabel("confidence %")
    axes[0].set_ylabel("accuracy %")
    handles = [
        Line2D([], [], color=style.GREY, marker="o", label="accuracy of a bin, 95 % interval"),
        Line2D([], [], color=style.ink(), dashes=(4, 2), linewidth=0.8, label="calibrated"),
    ]
    style.legend(figure, handles)
    sets = f"{len(results.datasets)} data sets, " if len(results.datasets) > 1 else ""
    bins = _bin_count(total)
    note = style.note(results, one_seed=True, bins=False)
    style.footnote(
        figure,
        f"{sets}{total} images in {bins} bins of about {total // bins}; below the diagonal: over-confident; {note}",
    )
    return figure


def pooled_bins(confidence: Floats, correct: Booleans) -> list[tuple[float, float, float, float]]:
    """Return mean confidence, accuracy and its Clopper–Pearson interval of bins of equally many images.

    >>> [(round(c, 2), a) for c, a, _, _ in pooled_bins(np.linspace(0, 1, 60), np.arange(60) >= 30)]
    [(0.25, 0.0), (0.75, 1.0)]
    """
    order = np.argsort(confidence, kind="stable")
    bins = []
    for part in np.array_split(order, _bin_count(len(order))):
        right = int(correct[part].sum())
        bins.append((float(confidence[part].mean()), right / len(part), *clopper_pearson(right, len(part))))
    return bins


def _bin_count(images: int) -> int:
    return max(1, min(_MOST_BINS, images // LEAST_IMAGES))


def _draw_pooled_panel(axes: Axes, confidence: Floats, correct: Booleans, colour: str) -> None:
    """Draw the bins of a method, and the area between them and the diagonal."""
    x, y, low, high = (100 * np.array(values) for values in zip(*pooled_bins(confidence, correct), strict=True))
    axes.fill_between(x, y, x, where=y <= x, interpolate=True, color=style.VERMILION, alpha=0.25, linewidth=0)
    axes.fill_between(x, y, x, where=y >= x, interpolate=True, color=style.SKY, alpha=0.3, linewidth=0)
    axes.plot([0, 100], [0, 100], color=style.ink(), linewidth=0.8, dashes=(4, 2))
    axes.errorbar(x, y, [y - low, high - y], color=colour, marker="o", markersize=4, capsize=0, elinewidth=0.9)
    axes.set(xlim=(0, 102), ylim=(0, 102), xticks=[0, 50, 100], yticks=[0, 50, 100])


def _verdict(confidence: Floats, correct: Booleans) -> tuple[str, str]:
    """Return over- or under-confidence in words with a colour; within its 95 % interval of 0, it may be chance."""
    gaps = confidence - correct
    gap = float(gaps.mean())
    if abs(gap) <= _Z * float(gaps.std()) / np.sqrt(len(gaps)):
        return f"calibrated within chance ({100 * gap:+.1f})", style.GREEN
    over = gap > 0
    words = f"{'over' if over else 'under'}-confident by {100 * abs(gap):.1f} points"
    return words, style.VERMILION if over else style.BLUE


def draw_overview(results: Results | Mapping[str, Results]) -> Figure:
    """Draw accuracy against ECE with 95 % intervals, a point per method, averaged over data sets; a panel per model."""
    models = {results.model: results} if isinstance(results, Results) else dict(results)
    figure, axes = style.panels(len(models), size=(3.8, 2.9))
    shown = list(dict.fromkeys(method for each in models.values() for method in _shown_methods(each)))
    if not shown:
        raise OtptError("No method of the runs has images of all data sets; finish the run.")
    looks = style.looks(shown)
    has_intervals = True
    for panel, (model, of_model) in zip(axes, models.items(), strict=True):
        for method in _shown_methods(of_model):
            side = Side(of_model, tuple(_keys(of_model, method)), ("accuracy", "ece"))
            has_intervals = side.size <= _MOST_ROWS
            _draw_point(panel, side, looks[method], style.short(method), has_intervals)
        panel.set(xlabel="ECE % (lower is better)", ylabel="accuracy % (higher is better)")
        panel.set_xlim(0, None)
        panel.margins(0.15)
        if len(models) > 1:
            panel.set_title(style.short(model))
    handles = [
        Line2D([], [], color=looks[name].colour, marker=looks[name].marker, linestyle="none", label=style.short(name))
        for name in shown
    ]
    style.legend(figure, handles)
    first = next(iter(models.values()))
    over = f"average over {len(first.datasets)} data sets; " if len(first.datasets) > 1 else ""
    words = "lines: 95 % bootstrap intervals over images; " if has_intervals else ""
    style.footnote(figure, f"{over}{words}up and left is better; {style.note(first, ece=True)}")
    return figure


def _draw_point(axes: Axes, side: Side, look: style.Look, label: str, has_intervals: bool) -> None:
    """Draw accuracy and ECE of a method, with their intervals."""
    if has_intervals:
        resampled = side.resampled
        accuracy, ece = (resampled[name].interval() for name in ("accuracy", "ece"))
        x, y = 100 * resampled["ece"].estimate, 100 * resampled["accuracy"].estimate
        axes.plot([100 * ece.low, 100 * ece.high], [y, y], color=look.colour, linewidth=1.0, alpha=0.7)
        axes.plot([x, x], [100 * accuracy.low, 100 * accuracy.high], color=look.colour, linewidth=1.0, alpha=0.7)
    else:
        scores = [side.results.require_score(key) for key in side.keys]
        x, y = (100 * float(np.mean([score[name] for score in scores])) for name in ("ece", "accuracy"))
    axes.scatter([x], [y], s=46, color=look.colour, marker=look.marker, zorder=3, label=label)
    axes.annotate(label, (x, y), (6, 5), textcoords="offset points", fontsize=7)


def _shown_methods(results: Results) -> list[str]:
    """Return the methods that have images of every data set, without those of a sweep if there are others."""
    whole = [method for method in results.methods if _keys(results, method)]
    return (plain_methods(whole) or whole)[:_MOST_POINTS]


def _keys(results: Results, method: str) -> list[ResultKey]:
    """Return the keys of a method under one prompt, or none if it lacks images of a data set."""
    keys: list[ResultKey] = []
    for dataset in results.datasets:
        of_dataset = results.keys_of(dataset, method)
        of_dataset = [key for key in of_dataset if key.prompt == of_dataset[0].prompt]
        if not of_dataset or any(results.score(key) is None for key in of_dataset):
            return []
        keys += of_dataset
    return keys
