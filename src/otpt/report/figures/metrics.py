"""Figures of metrics: bars, seeds, radar, sweeps and their Pareto front."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.projections.polar import PolarAxes

from otpt.errors import OtptError
from otpt.metrics import get_metric
from otpt.report.figures import style
from otpt.report.results import Results
from otpt.report.selection import plain_methods, swept_settings


def draw_posthoc(results: Results) -> Figure:
    """Draw the ECE of each method on each data set and on average, with deviations over seeds."""
    groups = results.datasets if len(results.datasets) == 1 else [*results.datasets, "average"]
    has_seeds = len(results.seeds) > 1
    values = style.over_seeds(results, "ece")[groups]
    errors = style.over_seeds(results, "ece", "std")[groups].fillna(0.0)
    figure, (axes,) = style.panels(1, size=(0.6 + len(groups) * (0.25 + 0.16 * len(values)), 2.5))
    style.bars(axes, values.T, errors.T if has_seeds else None)
    titles = [style.short(name, 18) for name in groups]
    if len(groups) > 1:
        axes.set_xticks(range(len(groups)), titles, rotation=25, ha="right")
    else:
        axes.set_xticks(range(len(groups)), titles)
    axes.set(ylabel="ECE %", xlim=(-0.5, len(groups) - 0.5))
    style.legend(figure)
    words = "error bars: sample standard deviation over seeds; " if has_seeds else ""
    style.footnote(figure, f"{words}{style.note(results, ece=True)}")
    return figure


def draw_seeds(results: Results) -> Figure:
    """Draw accuracy and ECE with standard deviations over seeds, by data set."""
    datasets, methods, seeds = results.datasets, results.methods, results.seeds
    if len(seeds) < 2:
        raise OtptError(
            f"The runs hold one seed, {seeds[0]}; a deviation needs two or more ('otpt evaluate … --seeds')."
        )
    size = 0.6 + len(datasets) * (0.4 + 0.16 * len(methods)), 1.9
    figure, axes = style.panels(2, size=size, across=1, sharex=True)
    step, at = 0.8 / len(methods), np.arange(len(datasets))
    for panel, metric in zip(axes, ("accuracy", "ece"), strict=True):
        for k, (method, look) in enumerate(style.looks(methods).items()):
            scores = results.select(method=method).pivot_table(metric, "dataset", "seed")
            scores = 100 * scores.loc[datasets]
            place = at - 0.4 + (k + 0.5) * step
            panel.errorbar(
                place,
                scores.mean(axis=1),
                scores.std(axis=1),
                color=look.colour,
                marker=look.marker,
                linestyle="none",
                capsize=2.5,
                label=style.short(method),
            )
            spread = np.repeat(place + 0.3 * step, len(scores.columns))  # next to the mean, which they would hide
            panel.scatter(spread, scores.to_numpy().ravel(), s=6, color=style.ink(), alpha=0.55, linewidth=0, zorder=3)
        panel.set_ylabel(get_metric(metric).heading)
        panel.grid(visible=False, axis="x")
    axes[1].set_xticks(at, [style.short(name, 18) for name in datasets], rotation=25, ha="right")
    style.legend(figure)
    words = "bars: sample standard deviation over seeds; small points: single seeds"
    style.footnote(figure, f"{words}; {style.note(results, ece=True)}")
    return figure


def draw_radar(results: Results) -> Figure:
    """Draw a radar chart of the ECE of each method on each data set; all axes share a scale from 0."""
    datasets = results.datasets
    if len(datasets) < 3:
        raise OtptError(
            f"A radar needs three data sets or more, but {len(datasets)} are chosen; use 'posthoc' for bars."
        )
    values = style.over_seeds(results, "ece")[datasets]
    angles = np.arange(len(datasets)) * 2 * math.pi / len(datasets)
    figure = Figure(figsize=(5.2, 5.2), layout="constrained")
    axes = figure.add_subplot(projection="polar")
    assert isinstance(axes, PolarAxes)
    axes.set_theta_offset(math.pi / 2)
    axes.set_theta_direction(-1)
    for method, look in style.looks(results.methods).items():
        radius = values.loc[method].to_numpy()
        around, closed = np.append(angles, angles[0]), np.append(radius, radius[0])
        axes.plot(around, closed, color=look.colour, marker=look.marker, linestyle=look.dash, label=style.short(method))
        axes.fill(around, closed, color=look.colour, alpha=0.06)
    axes.set_ylim(0)
    axes.set_rlabel_position(math.degrees(angles[1] / 2))
    ranges = [f"{low:.2f} – {high:.2f}" for low, high in zip(values.min(), values.max(), strict=True)]
    axes.set_xticks(angles, [f"{style.short(name, 20)}\n{words}" for name, words in zip(datasets, ranges, strict=True)])
    axes.tick_params(axis="x", pad=6)
    for label, angle in zip(axes.get_xticklabels(), angles, strict=True):  # beside the circle, not across it
        right = math.sin(angle)
        label.set_horizontalalignment("center" if abs(right) < 0.2 else "left" if right > 0 else "right")
    style.legend(figure)
    words = "the same scale from 0 on every axis; smaller is better; below each name its smallest and largest ECE"
    style.footnote(figure, f"ECE in percent, {words}; {style.note(results, ece=True)}")
    return figure


def draw_sweep(results: Results, *, metric: str = "ece", setting: str | None = None) -> Figure:
    """Draw a metric against a swept setting, one panel per data set and one line per method.

    Other settings that were swept give lines of their own; values of different magnitude are on a symmetric
    logarithmic axis, words at equal steps. The error bars are standard deviations over seeds.
    """
    shown = get_metric(metric)
    table = _swept(results)
    names = [name for name in table if name not in {"method", "base", "label"}]
    setting = setting or names[0]
    if setting not in names:
        raise OtptError(f"The runs do not sweep over {setting!r}; they sweep over {', '.join(names)}.")
    held_fixed = [name for name in names if name != setting]
    averages, errors = (style.over_seeds(results, shown.name, how) for how in ("mean", "std"))
    values = table[setting].dropna()
    numeric = values.dtype.kind in "if"
    steps = {value: at for at, value in enumerate(dict.fromkeys(values))}
    figure, axes = style.panels(len(results.datasets), size=(3.2, 2.6))
    lines = list(table[table[setting].notna()].groupby(["base", *held_fixed], sort=False, dropna=False))
    labels = []
    for (base, *fixed), _ in lines:
        labels.append(_line_label(base, held_fixed, fixed))
    marks = style.looks([*labels, *plain_methods(results.methods)])
    for panel, dataset in zip(axes, results.datasets, strict=True):
        for label, (_, variants) in zip(labels, lines, strict=True):
            x = variants[setting] if numeric else variants[setting].map(steps)
            y = averages.loc[variants["method"], dataset]
            error = errors.loc[variants["method"], dataset].fillna(0.0)
            look = marks[label]
            panel.errorbar(x, y, error, color=look.colour, marker=look.marker, capsize=2, label=style.short(label, 40))
        for method in plain_methods(results.methods):
            colour, label = marks[method].colour, style.short(method)
            panel.axhline(averages.loc[method, dataset], color=colour, linestyle=":", label=label)
        if numeric:
            spread = values[values > 0]
            if len(spread) and spread.max() / spread.min() > 20:
                panel.set_xscale("symlog", linthresh=float(spread.min()))
            panel.set_xticks(sorted(set(values)), [f"{value:g}" for value in sorted(set(values))])
            panel.minorticks_off()
        else:
            panel.set_xticks(list(steps.values()), list(map(str, steps)))
        panel.set(xlabel=_symbol(setting), ylabel=shown.heading, title=style.short(dataset))
    style.legend(figure)
    better = {"higher": "higher is better; ", "lower": "lower is better; "}.get(str(shown.best), "")
    bars = "error bars: standard deviation over seeds; " if len(results.seeds) > 1 else ""
    style.footnote(figure, f"{better}{bars}{style.note(results, ece='ece' in shown.name)}")
    return figure


def draw_heatmap(results: Results, *, metric: str = "ece") -> Figure:
    """Draw a metric against two swept settings as coloured cells with numbers, one panel per data set and method."""
    shown = get_metric(metric)
    table = _swept(results)
    settings = [name for name in table if name not in {"method", "base", "label"}]
    several = [name for name in settings if table[name].nunique() > 1]
    if len(several) < 2:
        raise OtptError(
            f"A heat map needs two swept settings, and the runs sweep over {', '.join(several or settings)}; make a "
            "run with 'otpt sweep … --sweep views=8,32 lambda=1,6,18', or draw 'sweep'."
        )
    rows, columns, *further = several
    averages = style.over_seeds(results, shown.name)
    panels = [
        (dataset, keys, variants)
        for dataset in results.datasets
        for keys, variants in table.dropna(subset=several).groupby(["base", *further], sort=False)
    ]
    size = (1.1 + 0.62 * table[columns].nunique(), 0.9 + 0.42 * table[rows].nunique())
    figure, axes = style.panels(len(panels), size=(max(size[0], 2.4), max(size[1], 1.6)))
    values = averages.loc[table["method"], results.datasets].to_numpy()
    limits = float(np.nanmin(values)), float(np.nanmax(values))
    for panel, (dataset, keys, variants) in zip(axes, panels, strict=True):
        cells = variants.assign(value=averages.loc[variants["method"], dataset].to_numpy())
        grid = cells.pivot_table("value", rows, columns, sort=True)
        _draw_grid(panel, grid, limits, higher=shown.best == "higher")
        panel.set(xlabel=_symbol(columns), ylabel=_symbol(rows))
        fixed = [f"{name}={value}" for name, value in zip(further, keys[1:], strict=True)]
        panel.set_title(", ".join([style.short(keys[0]), style.short(dataset), *fixed]), fontsize=8)
    best = {"higher": "higher is better", "lower": "lower is better"}.get(str(shown.best), "")
    words = "; ".join(filter(None, [shown.heading, best, "bold: best of a panel"]))
    style.footnote(figure, f"{words}; {style.note(results, ece='ece' in shown.name)}")
    return figure


def _draw_grid(axes: Axes, grid: pd.DataFrame, limits: tuple[float, float], *, higher: bool) -> None:
    """Draw the cells of a heat map with their numbers; darker is worse."""
    values = grid.to_numpy()
    low, high = limits
    shade = (values - low) / max(high - low, 1e-12)
    shade = 1 - shade if higher else shade
    axes.imshow(shade, cmap="YlOrBr", vmin=0, vmax=1.25, aspect="auto")
    best = np.nanmin(np.round(shade, 9))
    for (row, column), value in np.ndenumerate(values):
        if np.isfinite(value):
            weight = "bold" if round(float(shade[row, column]), 9) == best else "normal"
            axes.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=7, color="black", weight=weight)
    axes.set_xticks(range(len(grid.columns)), [_tick(value) for value in grid.columns])
    axes.set_yticks(range(len(grid.index)), [_tick(value) for value in grid.index])
    axes.grid(visible=False)


def _line_label(base: str, settings: Sequence[str], values: Sequence[object]) -> str:
    """Return the label of a line: its method, and its values of the settings that the method has."""
    parts = [base]
    for name, value in zip(settings, values, strict=True):
        if isinstance(value, str):
            parts.append(f"{_symbol(name)}={value}")
        elif isinstance(value, (int, float)) and not math.isnan(value):
            parts.append(f"{_symbol(name)}={value:g}")
    return ", ".join(parts)


def _symbol(setting: str) -> str:
    return "λ" if setting == "lambda" else setting


def _tick(value: object) -> str:
    return f"{value:g}" if isinstance(value, (int, float, np.number)) else str(value)


_HEIGHTS = (3, -8, 11, -16)
"""Heights of labels above their points."""


def draw_pareto(results: Results) -> Figure:
    """Draw accuracy against ECE for each value of a sweep, with the Pareto front."""
    table, singles = _swept(results), plain_methods(results.methods)
    accuracy, ece = style.over_seeds(results, "accuracy"), style.over_seeds(results, "ece")
    figure, axes = style.panels(len(results.datasets), size=(3.2, 2.8))
    marks = style.looks([*dict.fromkeys(table["base"]), *singles])
    for panel, dataset in zip(axes, results.datasets, strict=True):
        for base, variants in table.groupby("base", sort=False):
            x = ece.loc[variants["method"], dataset].to_numpy()
            y = accuracy.loc[variants["method"], dataset].to_numpy()
            look, front, name = marks[base], pareto_front(y, x), style.short(base)
            panel.scatter(x, y, s=22, color=look.colour, marker=look.marker, zorder=3, label=f"{name}, swept")
            panel.plot(x[front], y[front], color=look.colour, linewidth=1.0, label=f"Pareto front of {name}")
            for rank, at in enumerate(np.argsort(x)):  # at four heights in turn, so that neighbours do not overlap
                offset = (6, _HEIGHTS[rank % len(_HEIGHTS)])
                text = style.short(variants["label"].iloc[at], 14)
                panel.annotate(text, (x[at], y[at]), offset, textcoords="offset points", fontsize=6)
        for method in singles:
            look = marks[method]
            panel.scatter(
                ece.loc[method, dataset],
                accuracy.loc[method, dataset],
                s=34,
                color=style.paper(),
                edgecolor=look.colour,
                marker=look.marker,
                linewidth=1.3,
                zorder=4,
                label=style.short(method),
            )
        panel.set(xlabel="ECE %", ylabel="accuracy %", title=style.short(dataset))
        panel.margins(0.18)
    style.legend(figure)
    style.footnote(figure, f"up and left is better; {style.note(results, ece=True)}")
    return figure


def pareto_front(accuracy: npt.NDArray[np.float64], ece: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Return the indices of the Pareto-optimal points, highest accuracy first.

    >>> pareto_front(np.array([0.7, 0.8, 0.6]), np.array([0.1, 0.2, 0.3]))
    array([1, 0])
    """
    order = np.lexsort((ece, -accuracy))
    least = np.minimum.accumulate(ece[order])
    return order[np.append(True, ece[order][1:] < least[:-1])]


def _swept(results: Results) -> pd.DataFrame:
    table = swept_settings(results.methods)
    if table.empty:
        raise OtptError(
            "The chosen methods hold no sweep, such as 'o-tpt[lambda=18]'; make a run with "
            "'otpt sweep … --sweep lambda=0,1,2,6,18,54'."
        )
    return table
