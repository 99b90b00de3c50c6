"""The look of all figures: colours that the colour-blind tell apart, letters that survive print, the same bytes again.

Colours are Okabe and Ito's eight. A method keeps its colour in every figure, and no colour stands alone: lines have
markers and dashes of their own, bars hatches.
"""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from otpt.errors import OtptError, unknown
from otpt.files import write_atomically

BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
YELLOW, BLUE, VERMILION, PURPLE = "#F0E442", "#0072B2", "#D55E00", "#CC79A7"
GREY, PALE = "#777777", "#D9D9D9"

BACKED: dict[str, Any] = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.8}
"""The box behind words that stand on a drawing."""

FORMATS = ("png", "svg", "pdf")
MAX_PANELS = 64
DPI = 150
_LETTER = 0.05
"""Inches that a letter of a footnote takes."""

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
    "grid.color": "#E4E4E4",
    "grid.linewidth": 0.5,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "lines.linewidth": 1.4,
    "lines.markersize": 4.5,
    "hatch.linewidth": 0.5,
    "legend.frameon": False,
    "figure.facecolor": "white",
    "text.parse_math": False,  # a data set called "a$b$c" is no formula
    "pdf.fonttype": 42,  # letters as letters, not as images
    "svg.fonttype": "path",
    "svg.hashsalt": "otpt",
}
# Nothing that differs from one making to the next: no date, no version.
_METADATA: dict[str, dict[str, Any]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}


@dataclass(frozen=True)
class Look:
    """How one method is drawn."""

    colour: str
    marker: str
    dash: str
    hatch: str


_OWN = {
    "zero-shot": Look(GREY, "s", ":", ""),
    "tpt": Look(VERMILION, "^", "--", "////"),
    "c-tpt": Look(BLUE, "D", "-.", "\\\\\\\\"),
    "o-tpt": Look(GREEN, "o", "-", ""),
    "tpt+ts": Look(PURPLE, "v", "--", "...."),
    "c-tpt+penalty": Look(ORANGE, "P", "-.", "xxxx"),
    "c-tpt+sals": Look(SKY, "X", ":", "----"),
}
_COLOURS = (GREEN, BLUE, VERMILION, PURPLE, ORANGE, SKY, BLACK, YELLOW)
_MARKERS = ("o", "D", "^", "v", "P", "X", "s", "<", ">", "*", "p")
_DASHES = ("-", "--", "-.", ":")
_HATCHES = ("", "////", "\\\\\\\\", "....", "xxxx", "----", "++++")


def looks(methods: Sequence[str]) -> dict[str, Look]:
    """A look for each method: known ones always have their own, the others what is left, then again from the start."""
    taken = {_OWN[name].colour for name in methods if name in _OWN}
    free = [colour for colour in _COLOURS if colour not in taken] or list(_COLOURS)
    found: dict[str, Look] = {}
    others = 0
    for name in methods:
        if name in _OWN:
            found[name] = _OWN[name]
            continue
        found[name] = Look(
            free[others % len(free)],
            _MARKERS[others % len(_MARKERS)],
            _DASHES[(others // len(free)) % len(_DASHES)],
            _HATCHES[(others // len(free)) % len(_HATCHES)],
        )
        others += 1
    return found


@contextmanager
def styled() -> Iterator[None]:
    """The style of our figures, for the drawing as for the writing."""
    with mpl.rc_context(_STYLE), warnings.catch_warnings():
        # A name in letters that the font lacks is drawn with boxes; that is no reason to fail.
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from")
        yield


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of so many inches; of no window and of no global state."""
    return Figure(figsize=(width, height), layout="constrained")


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


def grid_of(count: int, *, across: int = 4) -> tuple[int, int]:
    """Rows and columns for so many panels of equal rank."""
    columns = min(count, across)
    return -(-count // columns), columns


def short(name: str, length: int = 26) -> str:
    """A name cut in the middle if it is long, without line breaks."""
    name = " ".join(name.split()) or "–"
    return name if len(name) <= length else f"{name[: length - length // 3 - 1]}…{name[-(length // 3) :]}"


def footnote(figure: Figure, text: str) -> None:
    """Small lines below everything, broken to the figure's width."""
    letters = int(figure.get_figwidth() / _LETTER)
    figure.supxlabel("\n".join(textwrap.wrap(text, letters)), fontsize=6.5, color="#444444")


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
