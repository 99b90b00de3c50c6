"""Selection of results for a figure, and the style of all figures: themes, looks, panels, saving.

Colours are those of Okabe and Ito, with grey in place of black and olive in place of yellow, so that they are visible
on light and dark backgrounds. A method has the same colour in every figure, and its own marker, dash and hatch.
"""

from __future__ import annotations

import sys
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from itertools import product
from pathlib import Path
from typing import Literal, NamedTuple

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.container import BarContainer
from matplotlib.figure import Figure

from otpt.errors import OtptError, unknown
from otpt.escapes import plain
from otpt.files import write_atomically
from otpt.metrics import get_metric
from otpt.report.results import FEW, Results, check_names
from otpt.report.selection import plain_methods
from otpt.runs import Rows

ORANGE, SKY, GREEN, OLIVE = "#E69F00", "#56B4E9", "#009E73", "#8F8500"
BLUE, VERMILION, PURPLE, GREY = "#0072B2", "#D55E00", "#CC79A7", "#777777"
FORMATS = ("png", "svg", "pdf")
DPI = 150
MAX_PANELS = 64

_THEMES = {  # background, ink, secondary text, grid
    "light": ("#FFFFFF", "#000000", "#444444", "#E4E4E4"),
    "dark": ("#14191F", "#E6EDF3", "#AEB8C2", "#333C46"),
    "neutral": ("none", "#7A7A7A", "#7A7A7A", "#7A7A7A44"),  # readable on both, for the page
}
THEMES = ("light", "dark")
_STYLE: dict[str, str | float] = {
    "font.family": "DejaVu Sans", "font.size": 8.0, "axes.titlesize": 9.0, "legend.fontsize": 7.5,
    "xtick.labelsize": 7.0, "ytick.labelsize": 7.0, "axes.spines.top": False, "axes.spines.right": False,
    "axes.linewidth": 0.6, "axes.axisbelow": True, "axes.grid": True, "grid.linewidth": 0.5, "lines.linewidth": 1.4,
    "lines.markersize": 4.5, "hatch.linewidth": 0.5, "legend.frameon": False,
    "text.parse_math": False,  # a data set called "a$b$c" is no formula
    "pdf.fonttype": 42, "svg.fonttype": "none",
}  # fmt: skip


class Look(NamedTuple):
    """Colour, marker, dash and hatch of a method."""

    colour: str
    marker: str
    dash: str
    hatch: str


_LOOKS = {
    "zero-shot": Look(GREY, "s", ":", ""),
    "tpt": Look(VERMILION, "^", "--", "////"),
    "c-tpt": Look(BLUE, "D", "-.", "\\\\\\\\"),
    "o-tpt": Look(GREEN, "o", "-", ""),
    "confident-half": Look(OLIVE, "p", "-", "++++"),
    "tpt+ts": Look(PURPLE, "v", "--", "...."),
    "c-tpt+penalty": Look(ORANGE, "P", "-.", "xxxx"),
    "c-tpt+sals": Look(SKY, "X", ":", "----"),
}
_COLOURS = (PURPLE, ORANGE, SKY, GREEN, BLUE, VERMILION, OLIVE, GREY)
_MARKERS = ("<", ">", "h", "v", "P", "X", "d", "*", "o", "D", "^", "s", "p")
_DASHES = ("-", "--", "-.", ":")
_HATCHES = ("", "////", "\\\\\\\\", "....", "xxxx", "----", "++++")


def looks(methods: Sequence[str]) -> dict[str, Look]:
    """Look of each method: known ones have their own, the others share the remaining colours."""
    used = {_LOOKS[name].colour for name in methods if name in _LOOKS}
    colours = [colour for colour in _COLOURS if colour not in used] or list(_COLOURS)
    looks_of: dict[str, Look] = {}
    for name in methods:
        at = len(looks_of.keys() - _LOOKS.keys())
        turn = at % len(colours) + at // len(colours)  # methods of one colour differ in the rest
        dash, hatch = _DASHES[turn % len(_DASHES)], _HATCHES[turn % len(_HATCHES)]
        look = Look(colours[at % len(colours)], _MARKERS[at % len(_MARKERS)], dash, hatch)
        looks_of[name] = _LOOKS.get(name, look)
    return looks_of


@contextmanager
def styled(theme: str = "light") -> Iterator[None]:
    """Apply the style of the figures within a context; ``theme`` is one of :data:`THEMES`."""
    if theme not in _THEMES:
        raise unknown("theme", theme, THEMES)
    paper, ink, _, grid = _THEMES[theme]
    inked = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
    backgrounds = {"figure.facecolor": paper, "axes.facecolor": paper, "grid.color": grid}
    parameters = mpl.RcParams({**_STYLE, **dict.fromkeys(inked, ink), **backgrounds})
    with mpl.rc_context(parameters), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from")  # drawn as boxes
        yield


def paper() -> str:
    """Return the background colour of the current style."""
    return str(mpl.rcParams["figure.facecolor"])


def ink() -> str:
    """Return the colour of text and axes."""
    return str(mpl.rcParams["text.color"])


def faint() -> str:
    """Return the colour of secondary text."""
    return next(colours[2] for colours in _THEMES.values() if colours[0] == paper())


def panels(
    count: int,
    *,
    size: tuple[float, float],
    across: int = 3,
    sharex: bool = False,
    sharey: bool | Literal["row"] = False,
    width_ratios: Sequence[float] | None = None,
) -> tuple[Figure, list[Axes]]:
    """Create ``count`` panels of ``size`` inches, ``across`` per row, without pyplot state.

    ``sharex``, ``sharey`` and ``width_ratios`` are those of :meth:`matplotlib.figure.Figure.subplots`.
    """
    if count > MAX_PANELS:
        raise OtptError(
            f"This figure would have {count} panels, more than the {MAX_PANELS} that can be read; choose fewer with "
            "--datasets and --methods."
        )
    columns = min(count, across)
    rows = -(-count // columns)
    figure = Figure(figsize=(max(size[0] * columns + 0.4, 3.6), size[1] * rows + 0.3), layout="constrained")
    subplots = figure.subplots(rows, columns, squeeze=False, sharex=sharex, sharey=sharey, width_ratios=width_ratios)
    axes = list(subplots.flat)
    for panel in axes[count:]:
        panel.remove()
    return figure, axes[:count]


def bars(axes: Axes, heights: pd.DataFrame, errors: pd.DataFrame | None = None) -> list[BarContainer]:
    """Draw grouped bars at 0, 1, …, one per row: ``heights`` and ``errors`` have a column for each method."""
    methods = list(heights)
    width = 0.8 / len(methods)
    drawn = []
    for k, (method, look) in enumerate(looks(methods).items()):
        at = np.arange(len(heights[method])) - 0.4 + (k + 0.5) * width
        bar = axes.bar(
            at,
            heights[method],
            width,
            label=short(method),
            color=look.colour,
            hatch=look.hatch,
            edgecolor=paper(),
            linewidth=0.4,
            yerr=None if errors is None else errors[method],
            error_kw={"ecolor": ink(), "elinewidth": 0.8, "capsize": 2.0},
        )
        drawn.append(bar)
    axes.grid(visible=False, axis="x")
    return drawn


def short(name: str, length: int = 26) -> str:
    """Shorten a long name in the middle, without line breaks and other control characters."""
    name = plain(name, longest=sys.maxsize) or "–"
    return name if len(name) <= length else f"{name[: length - length // 3 - 1]}…{name[-(length // 3) :]}"


def legend(figure: Figure, handles: Sequence[Artist] | None = None) -> None:
    """Add a legend above the panels, by default for the labels of the first panel."""
    if handles is None:
        drawn, labels = figure.axes[0].get_legend_handles_labels()
        named = dict(zip(labels, drawn, strict=True))
    else:
        named = {str(handle.get_label()): handle for handle in handles}
    longest = max(map(len, named), default=1)
    columns = max(1, min(len(named), int(figure.get_figwidth() / (0.062 * longest + 0.5))))
    figure.set_figheight(figure.get_figheight() + 0.17 * -(-len(named) // columns))
    figure.legend(list(named.values()), list(named), loc="outside upper left", ncols=columns)


def footnote(figure: Figure, text: str) -> None:
    """Add a footnote wrapped to the figure's width."""
    lines = textwrap.wrap(text, int(figure.get_figwidth() / 0.05))
    figure.supxlabel("\n".join(lines), fontsize=6.5, color=faint())


def save(figure: Figure, path: Path, *, dpi: int = DPI) -> None:
    """Write a figure as PNG, SVG or PDF by the file's suffix."""
    write_atomically(path, figure_bytes(figure, check_format(path), dpi=dpi), durable=False)


def figure_bytes(figure: Figure, form: str, *, dpi: int = DPI, theme: str = "light") -> bytes:
    """Render a figure in a format of :data:`FORMATS`."""
    buffer = BytesIO()
    with styled(theme):
        figure.savefig(buffer, format=form, dpi=dpi)
    return buffer.getvalue()


def check_format(path: Path) -> str:
    """Return the format for the suffix of a file."""
    suffix = path.suffix.removeprefix(".").lower()
    if suffix not in FORMATS:
        raise unknown("figure format", suffix, FORMATS)
    return suffix


def narrow(
    results: Results,
    datasets: Sequence[str] | None,
    methods: Sequence[str] | None,
    prompt: str | None,
    usual: Sequence[str],
) -> Results:
    """Select data sets and methods, by default all and the ``usual`` ones, under one prompt, by default the first."""
    default = [name for name in usual if name in results.methods] or plain_methods(results.methods) or results.methods
    names = check_names("data set", datasets, results.datasets)
    shown = default if methods is None else check_names("method", methods, results.methods)
    check_names("prompt", [prompt] if prompt else None, results.prompts)
    frame = results.select(prompt=prompt)
    frame = frame[frame["dataset"].isin(names) & frame["method"].isin(shown) & (frame["images"] > 0)]
    frame = frame[frame["prompt"] == frame.groupby(["dataset", "method"])["prompt"].transform("first")]
    pairs = frame.set_index(["dataset", "method"]).index
    for dataset, method in product(names, shown):
        if (dataset, method) not in pairs:
            raise OtptError(
                f"The runs hold no images of {method!r} on {dataset!r} with the prompt {prompt!r}; choose others with "
                "--datasets, --methods or --prompt."
            )
    return results.narrow(frame, names, shown)


def first_rows(results: Results, dataset: str, method: str) -> Rows:
    """Return the rows of a method on a data set under the first seed."""
    return results.rows(results.first_key(dataset, method))


def over_seeds(results: Results, metric: str, how: str = "mean") -> pd.DataFrame:
    """Return means or sample standard deviations ("std") over seeds by method and data set, with averages."""
    scale = 100.0 if get_metric(metric).unit == "%" else 1.0
    table = results.frame.pivot_table(metric, "method", "dataset", aggfunc=how, dropna=False)
    average = results.frame.groupby(["method", "seed"])[metric].mean().groupby("method").agg(how)
    return scale * table.reindex(index=results.methods, columns=results.datasets).assign(average=average)


def note(results: Results, *, one_seed: bool = False, bins: bool = True, ece: bool = False) -> str:
    """Return a footnote with seeds, bins, and a caution about the ``ece`` of few images."""
    seeds = results.seeds[:1] if one_seed else results.seeds
    words = [f"seed {seeds[0]}" if len(seeds) == 1 else f"mean over seeds {', '.join(map(str, seeds))}"]
    words += [f"{results.n_bins} bins"] if bins else []
    least = min(results.images_of(dataset) for dataset in results.datasets)
    if ece and least < FEW:
        words.append(f"ECE of fewer than {FEW} images of a data set ({least} here): mostly bias for a calibrated model")
    words += [f"run in progress, {done} of {total} images" for _, done, total in results.progress]
    return "; ".join(words)
