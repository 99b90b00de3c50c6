"""Words on a figure: names cut to length, a footnote, a legend that fits, labels that keep clear of each other."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.transforms import Bbox

from otpt.report.figures.drawing.style import faint

_LETTER = 0.05
"""Inches that a letter of a footnote takes."""

_ROW = 0.17
"""Inches that a row of a legend takes."""

_AROUND = 12
"""Directions that are tried for a label, at each distance from its point."""

_GAP = 2.0
"""Pixels that stay free around a label."""

_EDGE = 3.0
"""Pixels that stay free between a label and the axes, which would look like a letter of it."""


def short(name: str, length: int = 26) -> str:
    """A name cut in the middle if it is long, without line breaks."""
    name = " ".join(name.split()) or "–"
    return name if len(name) <= length else f"{name[: length - length // 3 - 1]}…{name[-(length // 3) :]}"


def footnote(figure: Figure, text: str) -> None:
    """Small print below everything, wrapped to the figure's width."""
    letters = int(figure.get_figwidth() / _LETTER)
    figure.supxlabel("\n".join(textwrap.wrap(text, letters)), fontsize=6.5, color=faint())


def legend(figure: Figure, handles: Sequence[Any], labels: Sequence[str]) -> Legend:
    """A legend above the panels, in as few rows as the figure is wide enough for; it grows with them."""
    renderer = _renderer(figure)
    for rows in range(1, len(labels) + 1):
        columns = -(-len(labels) // rows)
        order = [i for column in range(columns) for i in range(column, len(labels), columns)]  # read line by line
        found = figure.legend(
            [handles[i] for i in order], [labels[i] for i in order], loc="outside upper left", ncols=columns
        )
        if columns == 1 or found.get_window_extent(renderer).width <= figure.bbox.width:
            break
        found.remove()
    figure.set_figheight(figure.get_figheight() + _ROW * (-(-len(labels) // columns) - 1))
    return found


def _renderer(figure: Figure) -> Any:
    """Measures words before anything is drawn."""
    canvas: Any = FigureCanvasAgg(figure)  # matplotlib does not type it
    return canvas.get_renderer()


def label_points(axes: Axes, points: Sequence[tuple[float, float]], labels: Sequence[str], others: Any = ()) -> None:
    """A label beside each point, clear of all points and of the other labels; a thin line where it stands far off.

    Each label takes the nearest free place on rings around its point, in the order given. Call it last: the
    limits of the axes and the layout of the figure must not change any more.

    Args:
        others: (n, 2) further points to keep clear of.
    """
    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.draw_without_rendering()  # the layout decides where the points lie
    renderer = _renderer(figure)
    everything = np.array([*points, *others], dtype=np.float64)
    marks = axes.transData.transform(everything)
    taken = [Bbox.from_extents(x - 4, y - 4, x + 4, y + 4) for x, y in marks]
    frame = axes.get_window_extent(renderer).padded(-_EDGE)
    for text, point, (x, y) in zip(labels, points, marks, strict=False):
        note = axes.annotate(
            text, point, xytext=(0, 0), textcoords="offset points", ha="center", va="center", fontsize=6,
            arrowprops={"arrowstyle": "-", "linewidth": 0.4, "color": faint(), "shrinkA": 0, "shrinkB": 2},
        )  # fmt: skip
        size = note.get_window_extent(renderer)
        dx, dy = _free_place(x, y, size.width + 2 * _GAP, size.height + 2 * _GAP, taken, frame)
        note.set_position((dx * 72 / figure.dpi, dy * 72 / figure.dpi))
        note.set_in_layout(False)
        if np.hypot(dx, dy) < size.width / 2 + 12:  # right beside its point: no line is needed
            assert note.arrow_patch is not None
            note.arrow_patch.set_visible(False)
        taken.append(_box(x + dx, y + dy, size.width + 2 * _GAP, size.height + 2 * _GAP))


def _free_place(
    x: float, y: float, width: float, height: float, taken: Sequence[Bbox], frame: Bbox
) -> tuple[float, float]:
    """The offset in pixels of the nearest place of this size that touches nothing; the first one if all do."""
    angles = 2 * np.pi * (np.arange(_AROUND) + 0.5) / _AROUND  # to the upper right first
    first = None
    for ring in range(1, 16):
        for angle in angles:
            dx = np.cos(angle) * (width / 2 + 4.0 * ring)
            dy = np.sin(angle) * (height / 2 + 4.0 * ring)
            first = first or (float(dx), float(dy))
            box = _box(x + dx, y + dy, width, height)
            inside = frame.x0 <= box.x0 and box.x1 <= frame.x1 and frame.y0 <= box.y0 and box.y1 <= frame.y1
            if inside and not box.count_overlaps(taken):
                return float(dx), float(dy)
    assert first is not None
    return first


def _box(x: float, y: float, width: float, height: float) -> Bbox:
    return Bbox.from_bounds(x - width / 2, y - height / 2, width, height)
