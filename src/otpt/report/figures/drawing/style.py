"""The style of all figures: light or dark, letters that survive print, the same bytes every time."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from otpt.errors import OtptError, unknown
from otpt.files import write_atomically
from otpt.report.figures.drawing.looks import PALETTES, THEMES

FORMATS = ("png", "svg", "pdf")
"""Formats in which a figure can be written, by the suffix of the file."""
MAX_PANELS = 64
DPI = 150
_NARROWEST = 3.6
"""Inches that a figure has at least, so that its legend and footnote can be read."""

_STYLE: Any = {  # matplotlib types its keys one by one
    "font.family": "DejaVu Sans",  # comes with matplotlib, so a figure is the same on every machine
    "font.size": 8.0,
    "axes.titlesize": 9.0,
    "axes.labelsize": 8.0,
    "legend.fontsize": 7.5,
    "xtick.labelsize": 7.0,
    "ytick.labelsize": 7.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.linewidth": 0.5,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "lines.linewidth": 1.4,
    "lines.markersize": 4.5,
    "hatch.linewidth": 0.5,
    "legend.frameon": False,
    "text.parse_math": False,  # a data set called "a$b$c" is no formula
    "pdf.fonttype": 42,  # letters as letters, not as images
    "svg.fonttype": "path",
    "svg.hashsalt": "otpt",
}
# Nothing that differs from one time to the next: no date, no version.
_METADATA: dict[str, dict[str, Any]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}


@contextmanager
def styled(theme: str = "light") -> Iterator[None]:
    """The style of our figures, for the drawing as for the writing; ``theme`` is one of :data:`THEMES`."""
    if theme not in PALETTES:
        raise unknown("theme", theme, THEMES)
    paper, ink, _, grid = PALETTES[theme]
    inked = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
    papered = ("figure.facecolor", "axes.facecolor")
    colours: Any = {**dict.fromkeys(inked, ink), **dict.fromkeys(papered, paper), "grid.color": grid}
    with mpl.rc_context(_STYLE | colours), warnings.catch_warnings():
        # A name in letters that the font lacks is drawn with boxes; that is no reason to fail.
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from")
        yield


def paper() -> str:
    """The background of the style in force."""
    return str(mpl.rcParams["figure.facecolor"])


def ink() -> str:
    """The colour of words and axes of the style in force."""
    return str(mpl.rcParams["text.color"])


def faint() -> str:
    """The colour of secondary words."""
    return next(each[2] for each in PALETTES.values() if each[0] == paper())


def pale() -> str:
    """The fill of bars that carry no method."""
    return next(each[3] for each in PALETTES.values() if each[0] == paper())


def backed() -> dict[str, Any]:
    """The box behind words that stand on a drawing."""
    return {"facecolor": paper(), "edgecolor": "none", "alpha": 0.8, "pad": 0.8}


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of this size in inches, without a window or global state."""
    return Figure(figsize=(max(width, _NARROWEST), height), layout="constrained")


def panels(
    rows: int, columns: int, *, size: tuple[float, float], most: int = MAX_PANELS, **subplots: Any
) -> tuple[Figure, list[list[Axes]]]:
    """A grid of panels, each of ``size`` inches."""
    if rows * columns > most:
        raise OtptError(
            f"This figure would have {rows} × {columns} panels, more than the {most} that can be read; choose fewer "
            "with --datasets and --methods."
        )
    figure = new_figure(size[0] * columns + 0.4, size[1] * rows + 0.3)
    axes = figure.subplots(rows, columns, squeeze=False, **subplots)
    return figure, [list(row) for row in axes]


def panels_in_rows(count: int, *, size: tuple[float, float], across: int = 3) -> tuple[Figure, list[Axes]]:
    """``count`` panels of equal rank, ``across`` of them in a row."""
    columns = min(count, across)
    figure, rows = panels(-(-count // columns), columns, size=size)
    flat = [panel for row in rows for panel in row]
    for panel in flat[count:]:
        panel.set_visible(False)
    return figure, flat[:count]


def one_scale(axes: Sequence[Axes]) -> None:
    """Bars of several panels from 0 to the largest upper limit of any of them, so that their heights compare."""
    top = max(each.get_ylim()[1] for each in axes)
    for each in axes:
        each.set_ylim(0, top)


def check_format(path: Path) -> str:
    """The format that the name of the file asks for."""
    suffix = path.suffix.removeprefix(".").lower()
    if not suffix:
        raise OtptError(f"The figure {str(path)!r} has no suffix; expected one of .{', .'.join(FORMATS)}.")
    if suffix not in FORMATS:
        raise unknown("figure format", suffix, FORMATS)
    return suffix


def save(figure: Figure, path: Path, *, dpi: int = DPI) -> None:
    """Write a figure as PNG, SVG or PDF by the file's suffix; the same figure gives the same bytes."""
    kind = check_format(path)
    buffer = BytesIO()
    with styled():
        figure.savefig(buffer, format=kind, dpi=dpi, metadata=_METADATA[kind])
    write_atomically(path, buffer.getvalue(), durable=False)
