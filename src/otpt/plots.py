"""Figures of predictions: images with their labels, and bars of the most probable classes.

The functions take plain values; :meth:`otpt.Prediction.plot` and :meth:`otpt.Predictions.plot` call them. Sizes are in
inches; texts that do not fit are cut by their measured width.
"""

from __future__ import annotations

import math
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from typing import TYPE_CHECKING, Literal

import numpy as np
from PIL import Image

from otpt.escapes import plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Text

_WIDTH = 2.3  # of an image and its bars
_IMAGE_HEIGHT = 1.8
_TITLE_HEIGHT = 0.44
_BAR_HEIGHT = 0.19
_ABOVE_BARS = 0.07
_PADDING = 0.05  # between the ends of a bar and its texts
_GAP = 0.28
_MARGIN = 0.2
_BARS_ALONE = 3.2  # width of the bars of a single prediction
_DPI = 150
_PIXELS = 640  # longest side of a drawn image
_NOTE_COLUMNS, _NOTE_LINES = 32, 8

_INK, _FAINT_INK, _ERROR_INK = "#1A1A1A", "#6B6B6B", "#B3430A"
_BEST, _REST, _TRACK = "#9CCBEA", "#D3D9DE", "#F2F4F5"
_FONT = "DejaVu Sans"


@dataclass(frozen=True)
class Panel:
    """Content of a panel.

    Attributes:
        title: label, or "failed".
        subtitle: name of the image.
        scores: (class name, probability), most probable first; empty for a failure.
        confidence: probability of the label; None for a failure.
        remark: what is special about the prediction, such as "abstained".
        image: the image, or None if it cannot be shown.
        note: text in place of the image.
        failed: whether the image could not be used.
    """

    title: str
    subtitle: str
    scores: Sequence[tuple[str, float]]
    confidence: float | None = None
    remark: str = ""
    image: Image.Image | None = None
    note: str = ""
    failed: bool = False


def draw_grid(panels: Sequence[Panel], columns: int, footnote: str = "") -> Figure:
    """Return a figure with a panel per image, row by row: title, image, bars.

    Args:
        panels: contents of the panels, at least one.
        columns: largest number of panels in a row.
        footnote: text below the panels.
    """
    columns = min(columns, len(panels))
    rows = math.ceil(len(panels) / columns)
    bars_height = _BAR_HEIGHT * max(len(panel.scores) for panel in panels)
    cell_height = _TITLE_HEIGHT + _IMAGE_HEIGHT + bars_height + _GAP
    footnote_height = 0.3 if footnote else 0.0
    width = 2 * _MARGIN + columns * _WIDTH + (columns - 1) * _GAP
    height = 2 * _MARGIN + rows * cell_height - _GAP + footnote_height
    with _quiet():
        sheet = _Sheet(width, height)
        for number, panel in enumerate(panels):
            row, column = divmod(number, columns)
            left = _MARGIN + column * (_WIDTH + _GAP)
            top = height - _MARGIN - row * cell_height
            sheet.draw_title(panel, left, top, _WIDTH)
            sheet.draw_image(panel, left, top - _TITLE_HEIGHT, _IMAGE_HEIGHT)
            sheet.draw_bars(panel.scores, left, top - _TITLE_HEIGHT - _IMAGE_HEIGHT, _WIDTH)
        if footnote:
            sheet.write(footnote, _MARGIN, _MARGIN, size=8, colour=_FAINT_INK)
    return sheet.figure


def draw_panel(panel: Panel) -> Figure:
    """Return a figure of a single prediction: the image, if there is one, and the bars to the right of it."""
    bars_height = _BAR_HEIGHT * len(panel.scores)
    body_height = bars_height if panel.image is None else max(bars_height, _IMAGE_HEIGHT)
    bars_left = _MARGIN if panel.image is None else _MARGIN + _WIDTH + _GAP
    width = bars_left + _BARS_ALONE + _MARGIN
    height = 2 * _MARGIN + _TITLE_HEIGHT + body_height
    top = height - _MARGIN
    with _quiet():
        sheet = _Sheet(width, height)
        sheet.draw_title(panel, _MARGIN, top, width - 2 * _MARGIN)
        if panel.image is not None:
            sheet.draw_image(panel, _MARGIN, top - _TITLE_HEIGHT, body_height)
        sheet.draw_bars(panel.scores, bars_left, top - _TITLE_HEIGHT, _BARS_ALONE)
    return sheet.figure


def percent(probability: float) -> str:
    """Return a probability in percent: "93 %", "0.4 %", "–" if it is not a number."""
    if not math.isfinite(probability):
        return "–"
    digits = 1 if 0.0005 <= probability < 0.0095 else 0
    return f"{100 * probability:.{digits}f} %"


class _Sheet:
    """A figure, drawn upon in inches from its lower left corner."""

    def __init__(self, width: float, height: float) -> None:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        self.figure = Figure(figsize=(width, height), dpi=_DPI, facecolor="white")
        self.figure.set_layout_engine("none")
        FigureCanvasAgg(self.figure)  # measures texts
        self._width = width
        self._height = height
        # notebooks show the figure, also without %matplotlib inline
        setattr(self.figure, "_repr_png_", partial(_png, self.figure))  # noqa: B010

    def draw_title(self, panel: Panel, left: float, top: float, width: float) -> None:
        """Write title and subtitle."""
        colour = _ERROR_INK if panel.failed else _INK
        confidence = "" if panel.confidence is None else f" · {percent(panel.confidence)}"
        remark = f" · {panel.remark}" if panel.remark else ""
        title = self.write(panel.title, left, top - 0.16, size=9, colour=colour, weight="bold")
        self._cut(title, confidence, width)
        subtitle = self.write(panel.subtitle, left, top - 0.34, size=7, colour=_FAINT_INK)
        self._cut(subtitle, remark, width)

    def draw_image(self, panel: Panel, left: float, top: float, height: float) -> None:
        """Draw the image, or a box with the note, into an area whose upper left corner is (left, top)."""
        axes = self._axes(left, top - height + _ABOVE_BARS, _WIDTH, height - _ABOVE_BARS)
        axes.set_xlim(0, 1)
        axes.set_ylim(0, 1)
        axes.bar(0.5, 1.0, width=1.0, color=_TRACK)
        if panel.image is not None:
            image = panel.image.copy()
            image.thumbnail((_PIXELS, _PIXELS))
            above = self._axes(left, top - height + _ABOVE_BARS, _WIDTH, height - _ABOVE_BARS)
            above.imshow(np.asarray(image), aspect="equal")
            return
        lines = textwrap.wrap(
            plain(panel.note, len(panel.note)), _NOTE_COLUMNS, max_lines=_NOTE_LINES, placeholder=" …"
        )
        axes.text(
            0.5,
            0.5,
            "\n".join(lines),
            ha="center",
            va="center",
            fontsize=7.5,
            color=_ERROR_INK if panel.failed else _FAINT_INK,
            family=_FONT,
            parse_math=False,
        )

    def draw_bars(self, scores: Sequence[tuple[str, float]], left: float, top: float, width: float) -> None:
        """Draw a bar per class, its name on the left and its probability on the right."""
        if not scores:
            return
        height = _BAR_HEIGHT * len(scores)
        axes = self._axes(left, top - height, width, height)
        axes.set_xlim(0, 1)
        axes.set_ylim(len(scores), 0)
        for rank, (name, score) in enumerate(scores):
            length = min(max(score, 0.0), 1.0) if math.isfinite(score) else 0.0
            axes.barh(rank + 0.5, 1.0, height=0.84, color=_TRACK)
            axes.barh(rank + 0.5, length, height=0.84, color=_BEST if rank == 0 else _REST)
            baseline = top - (rank + 0.5) * _BAR_HEIGHT - 0.036
            right = left + width - _PADDING
            number = self.write(percent(score), right, baseline, size=7, colour=_INK, align="right")
            line = self.write(name, left + _PADDING, baseline, size=7, colour=_INK)
            self._cut(line, "", width - 3 * _PADDING - self._measure(number))

    def write(
        self,
        text: str,
        x: float,
        baseline: float,
        *,
        size: float,
        colour: str,
        weight: str = "normal",
        align: Literal["left", "right"] = "left",
    ) -> Text:
        """Write one line that starts, or with ``align="right"`` ends, at ``x``."""
        return self.figure.text(
            x / self._width,
            baseline / self._height,
            plain(text, len(text)),
            fontsize=size,
            color=colour,
            family=_FONT,
            weight=weight,
            ha=align,
            va="baseline",
            parse_math=False,
        )

    def _cut(self, line: Text, ending: str, width: float) -> None:
        """Append ``ending`` to a line, and cut the text before it so that both fit into ``width``."""
        letters = line.get_text()
        line.set_text(letters + ending)
        while letters and (measured := self._measure(line)) > width:
            fitting = int(len(letters) * width / measured)
            letters = letters[: min(len(letters) - 1, fitting)]
            line.set_text(f"{letters.rstrip()}…{ending}")

    def _measure(self, line: Text) -> float:
        """Return the width of a line in inches."""
        return float(line.get_window_extent().width / self.figure.dpi)

    def _axes(self, left: float, bottom: float, width: float, height: float) -> Axes:
        """Return axes without frame and ticks."""
        place = (left / self._width, bottom / self._height, width / self._width, height / self._height)
        axes = self.figure.add_axes(place)
        axes.set_axis_off()
        return axes


def _png(figure: Figure) -> bytes:
    data = BytesIO()
    with _quiet():
        figure.savefig(data, format="png")
    return data.getvalue()


@contextmanager
def _quiet() -> Iterator[None]:
    """Draw letters that the font lacks as boxes, without a warning for each."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from")
        yield
