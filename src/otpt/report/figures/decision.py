"""Figure of operating points: risk against coverage, with the thresholds on it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy import special

from otpt.calibration import OperatingPoint, Point
from otpt.metrics.inputs import Values, check_confidence
from otpt.report.figures import style
from otpt.report.figures.bins import Floats, risk_coverage

_TICKS = (10, 20, 40, 60, 80, 100)
_MOST_RISK = 1.25


def draw_operating_points(
    confidence: Values, correct: Values, points: Sequence[OperatingPoint], *, title: str = "", theme: str = "light"
) -> Figure:
    """Draw the risk–coverage curve of labelled images with the thresholds of operating points.

    Args:
        confidence: confidences (N,).
        correct: whether each prediction is correct (N,).
        points: operating points (:func:`otpt.calibration.operating_points`).
        title: line above the figure.
        theme: "light" or "dark".
    """
    rows = check_confidence(confidence, correct)
    coverage, risk = risk_coverage(rows.confidences, rows.correct)
    with style.styled(theme):
        figure = Figure(figsize=(6.4, 4.2), layout="constrained")
        axes = figure.subplots()
        answered = np.round(coverage * len(rows.correct))
        low, high = _interval(np.round(risk * answered), answered)
        axes.fill_between(100 * coverage, 100 * low, 100 * high, color=style.GREY, alpha=0.18, linewidth=0)
        axes.plot(100 * coverage, 100 * risk, color=style.ink(), linewidth=1.5, label="errors among the answered")
        for point in points:
            axes.axhline(100 * point.risk, color=style.faint(), linewidth=0.7, dashes=(4, 3))
        marks = {"guaranteed": (style.BLUE, "o"), "empirical": (style.ORANGE, "D")}
        for kind, (colour, marker) in marks.items():
            _mark(axes, [getattr(point, kind) for point in points], kind, colour, marker)
        axes.set(xlim=(0, 103), xlabel="answered: share of the images %", ylabel="risk: wrong among them %")
        top = max([float(risk[-1]), *(point.risk for point in points)])
        axes.set_ylim(0, 100 * min(1.0, _MOST_RISK * max(top, 0.02)))
        _threshold_axis(axes, rows.confidences)
        if title:
            axes.set_title(title, loc="left", pad=8)
        style.legend(figure, axes.get_legend_handles_labels()[0])
        guarantee = f"{100 * points[0].guarantee:g} %" if points else ""
        style.footnote(
            figure,
            f"{len(rows.correct)} labelled images; band: 95 % interval; dashed: the requested risks; next to each mark "
            f"its confidence threshold. Guaranteed: holds on new images with probability {guarantee}; empirical: "
            "chosen on these labels.",
        )
    return figure


def _mark(axes: Axes, points: Sequence[Point | None], kind: str, colour: str, marker: str) -> None:
    """Mark the points of a kind with their thresholds."""
    shown = [point for point in points if point is not None]
    x, y = [100 * point.share for point in shown], [100 * point.error for point in shown]
    axes.scatter(x, y, s=42, color=colour, marker=marker, zorder=4, label=kind, edgecolor=style.paper(), linewidth=0.8)
    right = kind == "empirical"
    for threshold in dict.fromkeys(point.shown for point in shown):
        at = max(i for i, point in enumerate(shown) if point.shown == threshold)
        axes.annotate(
            f"> {threshold}",
            (x[at], y[at]),
            (7, -11) if right else (-7, 6),
            textcoords="offset points",
            ha="left" if right else "right",
            fontsize=6.5,
            color=colour,
        )


def _threshold_axis(axes: Axes, confidence: Floats) -> None:
    """Add the confidence thresholds that answer 10 % … 100 % above the figure."""
    falling = np.sort(confidence)[::-1]
    counts = [max(1, round(len(falling) * tick / 100)) for tick in _TICKS]
    upper = axes.secondary_xaxis("top")
    upper.set_xticks(_TICKS, [f"{falling[count - 1]:.2f}" for count in counts])
    upper.set_xlabel("confidence of the last answered image", fontsize=7)
    upper.spines["top"].set_visible(False)


def _interval(wrong: Floats, answered: Floats) -> tuple[Floats, Floats]:
    """Return the Clopper–Pearson bounds of each number of errors (N,)."""
    low = np.where(wrong > 0, special.betaincinv(np.maximum(wrong, 1), answered - wrong + 1, 0.025), 0.0)
    right = answered - wrong
    high = np.where(right > 0, 1 - special.betaincinv(np.maximum(right, 1), wrong + 1, 0.025), 1.0)
    return low, high
