"""Small drawings as SVG paths: a reliability diagram is a handful of them, so that a hundred fit on a page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from otpt.metrics import ReliabilityBins, percent
from otpt.report.figures.drawing.curves import wilson_interval

SIDE = 100.0
COUNTS = 18.0
"""Side of a reliability diagram, and height of the counts below it, in units of the drawing."""

LEVELS = 4
"""Steps of opacity in which the bars of accuracy are drawn, by the number of images in a bin."""


@dataclass(frozen=True)
class Diagram:
    """A reliability diagram.

    Attributes:
        accuracy: bars of acc_m as (level, path), level :data:`LEVELS` for the fullest bins.
        over, under: gaps up to a greater conf_m, gaps down to a smaller one.
        intervals: 95 % intervals of acc_m, upright lines.
        counts: images in each bin, as high as :data:`COUNTS` in the fullest.
        fullest: fraction of the images in the fullest bin; diagrams side by side share one scale by it.
        words: what it shows, for screen readers.
    """

    accuracy: tuple[tuple[int, str], ...]
    over: str
    under: str
    intervals: str
    counts: str
    fullest: float
    words: str


def reliability_diagram(bins: ReliabilityBins, *, name: str, ece: float, accuracy: float) -> Diagram:
    """The diagram of ``bins``, which are those that ``ece`` was computed with."""
    filled = np.flatnonzero(bins.counts)
    left, width = SIDE * bins.edges[:-1], SIDE * np.diff(bins.edges)
    top = float(bins.counts.max(initial=1))
    levels = np.ceil(LEVELS * np.sqrt(bins.counts / top)).astype(int)
    over = [m for m in filled if bins.gaps[m] > 0]
    under = [m for m in filled if bins.gaps[m] < 0]
    low, high = wilson_interval(bins.accuracy[filled] * bins.counts[filled], bins.counts[filled])
    return Diagram(
        accuracy=tuple(
            (level, _bars((left[m], width[m], 0.0, SIDE * bins.accuracy[m]) for m in filled if levels[m] == level))
            for level in sorted(set(levels[filled].tolist()))
        ),
        over=_bars((left[m], width[m], SIDE * bins.accuracy[m], SIDE * bins.confidence[m]) for m in over),
        under=_bars((left[m], width[m], SIDE * bins.confidence[m], SIDE * bins.accuracy[m]) for m in under),
        intervals="".join(
            f"M{_short(left[m] + width[m] / 2)} {_short(SIDE - SIDE * a)}V{_short(SIDE - SIDE * b)}"
            for m, a, b in zip(filled, low, high, strict=True)
        ),
        counts=_bars(((left[m], width[m], 0.0, COUNTS * bins.counts[m] / top) for m in filled), base=COUNTS),
        fullest=top / bins.total,
        words=f"Reliability diagram of {name}: ECE {percent(ece)} %, accuracy {percent(accuracy)} %, "
        f"{bins.total} images in {len(bins.counts)} bins, {_lean(bins)}.",
    )


def _lean(bins: ReliabilityBins) -> str:
    """Mean confidence minus accuracy, in words."""
    gap = float(np.nansum(bins.counts * bins.gaps) / bins.total)
    points = percent(abs(gap), 1)
    if float(points) == 0:
        return "neither over- nor under-confident overall"
    return f"overall {'over' if gap > 0 else 'under'}-confident by {points} points"


@dataclass(frozen=True)
class Chart:
    """A line over the values of a setting.

    Attributes:
        path: the line.
        points: (x, y, label of the value, text of the number).
        low, high: ends of the vertical axis in percent, as shown: it does not begin at 0.
    """

    title: str
    path: str
    points: tuple[tuple[float, float, str, str], ...]
    low: str
    high: str
    words: str


WIDE, HIGH = 280.0, 110.0
"""Size of a chart in units of the drawing."""

_LEAST_SPAN = 0.05
"""Fraction that the height of a chart stands for at least."""


def line_chart(title: str, labels: Sequence[str], fractions: Sequence[float], *, name: str) -> Chart:
    """Fractions (as percent) at equal steps, since values such as 0, 1, 2, 6, 18, 54 fit no scale.

    The vertical axis spans five points at least: differences of a tenth are not to look like a cliff.
    """
    low, high = min(fractions), max(fractions)
    span = max(high - low, _LEAST_SPAN)
    top = (high + low + span) / 2
    x = [WIDE / 2] if len(fractions) == 1 else [WIDE * i / (len(fractions) - 1) for i in range(len(fractions))]
    y = [HIGH * (top - value) / span for value in fractions]
    points = tuple(zip(x, y, labels, map(percent, fractions), strict=True))
    said = ", ".join(f"{percent(value)} at {label}" for label, value in zip(labels, fractions, strict=True))
    path = "M" + "L".join(f"{_short(a)} {_short(b)}" for a, b in zip(x, y, strict=True))
    ends = percent(top - span, 1), percent(top, 1)
    return Chart(title, path, points, *ends, f"{title} of {name}: {said}.")


def _bars(bars: Iterable[tuple[float, float, float, float]], *, base: float = SIDE) -> str:
    """One path of upright bars (left, width, from, to), heights counted upwards from ``base``."""
    return "".join(
        f"M{_short(left)} {_short(base - low)}h{_short(width)}V{_short(base - high)}h{_short(-width)}z"
        for left, width, low, high in bars
    )


def _short(value: float) -> str:
    return f"{float(value):.1f}".removesuffix(".0")
