"""Figures of metrics: bars, seeds, radar, sweeps and their Pareto front."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from otpt.errors import OtptError
from otpt.metrics import get_metric
from otpt.report.figures.style import Selection, footnote, ink, legend, looks, panel_grid, panels, paper, short
from otpt.report.papers import plain_methods, swept_settings


def draw_posthoc(selection: Selection) -> Figure:
    """Bars of ECE of each method on each data set and on average; with several seeds, their deviation."""
    values, errors = 100 * selection.mean("ece"), 100 * selection.deviation("ece")
    groups = list(selection.datasets)
    if len(groups) > 1:
        values, groups = values.assign(average=values.mean(axis=1)), [*groups, "average"]
    count = len(selection.methods)
    figure, ((axes,),) = panels(1, 1, size=(0.6 + len(groups) * (0.25 + 0.16 * count), 2.5))
    width, at = 0.8 / count, np.arange(len(groups))
    several = len(selection.results.seeds) > 1
    for k, (method, look) in enumerate(looks(selection.methods).items()):
        bars: dict[str, Any] = {"color": look.colour, "edgecolor": paper(), "hatch": look.hatch, "linewidth": 0.4}
        whiskers: dict[str, Any] = {"ecolor": ink(), "elinewidth": 0.8, "capsize": 2.0}
        over = errors.loc[method, groups].fillna(0.0) if several else None
        heights = values.loc[method, groups]
        axes.bar(
            at - 0.4 + (k + 0.5) * width, heights, width, yerr=over, error_kw=whiskers, label=short(method), **bars
        )
    turned: dict[str, Any] = {"rotation": 25, "ha": "right"} if len(groups) > 1 else {}
    axes.set_xticks(at, [short(name, 18) for name in groups], **turned)
    axes.grid(visible=False, axis="x")
    axes.set(ylabel="ECE %", xlim=(-0.5, len(groups) - 0.5))
    legend(figure)
    note = "error bars: sample standard deviation over seeds; " if several else ""
    footnote(figure, f"{note}{selection.note(ece=True)}")
    return figure


def draw_seeds(selection: Selection) -> Figure:
    """Accuracy above and ECE below with their standard deviation over seeds, data sets across."""
    datasets, methods, seeds = selection.datasets, selection.methods, selection.results.seeds
    if len(seeds) < 2:
        raise OtptError(
            f"The runs hold one seed, {seeds[0]}; a deviation needs two or more ('otpt evaluate … --seeds')."
        )
    figure, axes = panels(2, 1, size=(0.6 + len(datasets) * (0.4 + 0.16 * len(methods)), 1.9), sharex=True)
    step, frame, at = 0.8 / len(methods), selection.frame, np.arange(len(datasets))
    for (panel,), metric in zip(axes, ("accuracy", "ece"), strict=True):
        for k, (method, look) in enumerate(looks(methods).items()):
            own = frame[frame["method"] == method].pivot(index="dataset", columns="seed", values=metric)
            own = 100 * own.loc[datasets]
            place = at - 0.4 + (k + 0.5) * step
            style: dict[str, Any] = {"color": look.colour, "marker": look.marker, "linestyle": "none", "capsize": 2.5}
            panel.errorbar(place, own.mean(axis=1), own.std(axis=1), label=short(method), **style)
            spread = np.repeat(place + 0.3 * step, len(own.columns))  # next to the mean, which they would hide
            panel.scatter(spread, own.to_numpy().ravel(), s=6, color=ink(), alpha=0.55, linewidth=0, zorder=3)
        panel.set_ylabel(get_metric(metric).heading)
        panel.grid(visible=False, axis="x")
    axes[1][0].set_xticks(at, [short(name, 18) for name in datasets], rotation=25, ha="right")
    legend(figure)
    footnote(
        figure, f"bars: sample standard deviation over seeds; small points: single seeds; {selection.note(ece=True)}"
    )
    return figure


def draw_radar(selection: Selection) -> Figure:
    """ECE in percent of each method on each data set; all axes start at 0 and have the same scale."""
    datasets = selection.datasets
    if len(datasets) < 3:
        raise OtptError(
            f"A radar needs three data sets or more, but {len(datasets)} are chosen; use 'posthoc' for bars."
        )
    values = 100 * selection.mean("ece")
    angles = np.arange(len(datasets)) * 2 * math.pi / len(datasets)
    figure = Figure(figsize=(5.2, 5.2), layout="constrained")
    axes: Any = figure.add_subplot(projection="polar")
    axes.set_theta_offset(math.pi / 2)
    axes.set_theta_direction(-1)
    for method, look in looks(selection.methods).items():
        radius = values.loc[method].to_numpy()
        around, closed = np.append(angles, angles[0]), np.append(radius, radius[0])
        axes.plot(around, closed, color=look.colour, marker=look.marker, linestyle=look.dash, label=short(method))
        axes.fill(around, closed, color=look.colour, alpha=0.06)
    axes.set_ylim(0)
    axes.set_rlabel_position(math.degrees(angles[1] / 2))
    ranges = [f"{low:.2f} – {high:.2f}" for low, high in zip(values.min(), values.max(), strict=True)]
    axes.set_xticks(angles, [f"{short(name, 20)}\n{words}" for name, words in zip(datasets, ranges, strict=True)])
    axes.tick_params(axis="x", pad=12)
    legend(figure)
    words = "the same scale from 0 on every axis; smaller is better; below each name its smallest and largest ECE"
    footnote(figure, f"ECE in percent, {words}; {selection.note(ece=True)}")
    return figure


def draw_sweep(selection: Selection, *, metric: str = "ece", setting: str | None = None) -> Figure:
    """A metric against the values of a swept setting: a panel for each data set, a line for each method.

    Other settings that were swept give lines of their own; values of different magnitude are on a symmetric
    logarithmic axis, words at equal steps. The error bars are standard deviations over seeds.
    """
    found = get_metric(metric)
    table = _swept(selection)
    names = [name for name in table if name not in {"method", "base", "label"}]
    setting = setting or names[0]
    if setting not in names:
        raise OtptError(f"The runs do not sweep over {setting!r}; they sweep over {', '.join(names)}.")
    others = [name for name in names if name != setting]
    scale = 100 if found.unit == "%" else 1
    means, errors = scale * selection.mean(found.name), scale * selection.deviation(found.name)
    values = table[setting].dropna()
    numeric = values.dtype.kind in "if"
    steps = {value: at for at, value in enumerate(dict.fromkeys(values))}
    figure, axes = panel_grid(len(selection.datasets), size=(3.2, 2.6))
    lines = list(table[table[setting].notna()].groupby(["base", *others], sort=False, dropna=False))
    labels = [", ".join([key[0], *(f"{n}={v}" for n, v in zip(others, key[1:], strict=True))]) for key, _ in lines]
    style = looks([*labels, *plain_methods(selection.methods)])
    for panel, dataset in zip(axes, selection.datasets, strict=True):
        for label, (_, own) in zip(labels, lines, strict=True):
            x = own[setting] if numeric else own[setting].map(steps)
            y, error = means.loc[own["method"], dataset], errors.loc[own["method"], dataset].fillna(0.0)
            look = style[label]
            panel.errorbar(x, y, error, color=look.colour, marker=look.marker, capsize=2, label=short(label, 40))
        for method in plain_methods(selection.methods):
            panel.axhline(means.loc[method, dataset], color=style[method].colour, linestyle=":", label=short(method))
        if numeric:
            spread = values[values > 0]
            if len(spread) and spread.max() / spread.min() > 20:
                panel.set_xscale("symlog", linthresh=float(spread.min()))
            panel.set_xticks(sorted(set(values)), [f"{value:g}" for value in sorted(set(values))])
            panel.minorticks_off()
        else:
            panel.set_xticks(list(steps.values()), list(map(str, steps)))
        panel.set(xlabel="λ" if setting == "lambda" else setting, ylabel=found.heading)
        panel.set_title(short(dataset))
    legend(figure)
    better = {"higher": "higher is better; ", "lower": "lower is better; "}.get(str(found.best), "")
    bars = "error bars: standard deviation over seeds; " if len(selection.results.seeds) > 1 else ""
    footnote(figure, f"{better}{bars}{selection.note(ece='ece' in found.name)}")
    return figure


def draw_pareto(selection: Selection) -> Figure:
    """Accuracy against ECE: every value of a sweep as a point with its label; a line joins those that none beats."""
    table, singles = _swept(selection), plain_methods(selection.methods)
    accuracy, ece = 100 * selection.mean("accuracy"), 100 * selection.mean("ece")
    figure, axes = panel_grid(len(selection.datasets), size=(3.2, 2.8))
    style = looks([*dict.fromkeys(table["base"]), *singles])
    handles: dict[str, Any] = {}
    for panel, dataset in zip(axes, selection.datasets, strict=True):
        for base, own in table.groupby("base", sort=False):
            x, y = ece.loc[own["method"], dataset].to_numpy(), accuracy.loc[own["method"], dataset].to_numpy()
            colour, front = style[base].colour, pareto_front(y, x)
            points = panel.scatter(
                x, y, s=22, color=colour, marker=style[base].marker, zorder=3, label=f"{short(base)}, swept"
            )
            handles[str(points.get_label())] = points
            panel.plot(x[front], y[front], color=colour, linewidth=1.0)
            line = Line2D([], [], color=colour, linewidth=1.0, label=f"Pareto front of {short(base)}")
            handles[str(line.get_label())] = line
            order = np.argsort(x)
            for rank, at in enumerate(order):  # above and below in turn, so that neighbours do not overlap
                offset = (6, 3 if rank % 2 == 0 else -8)
                text = short(own["label"].iloc[at], 14)
                panel.annotate(text, (x[at], y[at]), offset, textcoords="offset points", fontsize=6)
        for method in singles:
            look, place = style[method], (ece.loc[method, dataset], accuracy.loc[method, dataset])
            ring: dict[str, Any] = {"color": paper(), "edgecolor": look.colour, "marker": look.marker}
            handles[method] = panel.scatter(*place, s=34, linewidth=1.3, zorder=4, label=short(method), **ring)
        panel.set(xlabel="ECE %", ylabel="accuracy %")
        panel.set_title(short(dataset))
        panel.margins(0.18)
    legend(figure, list(handles.values()))
    footnote(figure, f"up and left is better; {selection.note(ece=True)}")
    return figure


def pareto_front(accuracy: npt.NDArray[np.float64], ece: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Positions of the points that no other beats in both, highest accuracy first.

    >>> pareto_front(np.array([0.7, 0.8, 0.6]), np.array([0.1, 0.2, 0.3]))
    array([1, 0])
    """
    order = np.lexsort((ece, -accuracy))
    least = np.minimum.accumulate(ece[order])
    return order[np.append(True, ece[order][1:] < least[:-1])]


def _swept(selection: Selection) -> Any:
    table = swept_settings(selection.methods)
    if table.empty:
        raise OtptError(
            "The chosen methods hold no sweep, such as 'o-tpt[lambda=18]'; make a run with "
            "'otpt sweep … --set lambda=0,1,2,6,18,54'."
        )
    return table
