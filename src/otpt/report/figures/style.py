"""What of the results a figure shows, and the style of all figures: themes, looks, grids of panels, saving.

Colours are those of Okabe and Ito, with grey in place of black and olive in place of yellow, so that they are visible
on light and dark backgrounds. A method has the same colour in every figure, and its own marker, dash and hatch.
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
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from otpt.errors import OtptError, unknown
from otpt.files import write_atomically
from otpt.report.papers import plain_methods, selected
from otpt.report.results import FEW, ResultKey, Results
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
_STYLE: Any = {  # matplotlib types its keys one by one
    "font.family": "DejaVu Sans", "font.size": 8.0, "axes.titlesize": 9.0, "legend.fontsize": 7.5,
    "xtick.labelsize": 7.0, "ytick.labelsize": 7.0, "axes.spines.top": False, "axes.spines.right": False,
    "axes.linewidth": 0.6, "axes.axisbelow": True, "axes.grid": True, "grid.linewidth": 0.5, "lines.linewidth": 1.4,
    "lines.markersize": 4.5, "hatch.linewidth": 0.5, "legend.frameon": False,
    "text.parse_math": False,  # a data set called "a$b$c" is no formula
    "pdf.fonttype": 42, "svg.fonttype": "none", "svg.hashsalt": "otpt",
}  # fmt: skip
_METADATA: dict[str, dict[str, Any]] = {  # the same bytes every time: no date, no version
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
    """A look for each method: known ones have their own, the others share what is left."""
    used = {_LOOKS[name].colour for name in methods if name in _LOOKS}
    colours = [colour for colour in _COLOURS if colour not in used] or list(_COLOURS)
    found: dict[str, Look] = {}
    for name in methods:
        at = len(found.keys() - _LOOKS.keys())
        turn = at % len(colours) + at // len(colours)  # methods of one colour differ in the rest
        dash, hatch = _DASHES[turn % len(_DASHES)], _HATCHES[turn % len(_HATCHES)]
        found[name] = _LOOKS.get(name, Look(colours[at % len(colours)], _MARKERS[at % len(_MARKERS)], dash, hatch))
    return found


@contextmanager
def styled(theme: str = "light") -> Iterator[None]:
    """The style of our figures; ``theme`` is one of :data:`THEMES`."""
    if theme not in _THEMES:
        raise unknown("theme", theme, THEMES)
    paper, ink, _, grid = _THEMES[theme]
    inked = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
    colours: Any = dict.fromkeys(inked, ink) | {"figure.facecolor": paper, "axes.facecolor": paper, "grid.color": grid}
    with mpl.rc_context(_STYLE | colours), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from")  # drawn as boxes
        yield


def paper() -> str:
    """Background colour of the current style."""
    return str(mpl.rcParams["figure.facecolor"])


def ink() -> str:
    """Colour of text and axes of the current style."""
    return str(mpl.rcParams["text.color"])


def faint() -> str:
    """Colour of secondary text."""
    return next(each[2] for each in _THEMES.values() if each[0] == paper())


def panels(
    rows: int, columns: int, *, size: tuple[float, float], most: int = MAX_PANELS, **subplots: Any
) -> tuple[Figure, list[list[Axes]]]:
    """A grid of panels, each of ``size`` inches; no window, no global state."""
    if rows * columns > most:
        raise OtptError(
            f"This figure would have {rows} × {columns} panels, more than the {most} that can be read; choose fewer "
            "with --datasets and --methods."
        )
    figure = Figure(figsize=(max(size[0] * columns + 0.4, 3.6), size[1] * rows + 0.3), layout="constrained")
    return figure, [list(row) for row in figure.subplots(rows, columns, squeeze=False, **subplots)]


def panel_grid(count: int, *, size: tuple[float, float], across: int = 3) -> tuple[Figure, list[Axes]]:
    """``count`` panels of equal rank, ``across`` of them in a row."""
    columns = min(count, across)
    figure, rows = panels(-(-count // columns), columns, size=size)
    flat = [panel for row in rows for panel in row]
    for panel in flat[count:]:
        panel.set_visible(False)
    return figure, flat[:count]


def short(name: str, length: int = 26) -> str:
    """A name cut in the middle if it is long, without line breaks."""
    name = " ".join(name.split()) or "–"
    return name if len(name) <= length else f"{name[: length - length // 3 - 1]}…{name[-(length // 3) :]}"


def legend(figure: Figure, handles: Sequence[Any] | None = None) -> None:
    """A legend above the panels, by default of everything that has a label in the first of them."""
    if handles is None:
        named = dict(zip(*reversed(figure.axes[0].get_legend_handles_labels()), strict=True))
    else:
        named = {str(each.get_label()): each for each in handles}
    longest = max(map(len, named), default=1)
    columns = max(1, min(len(named), int(figure.get_figwidth() / (0.062 * longest + 0.5))))
    figure.set_figheight(figure.get_figheight() + 0.17 * -(-len(named) // columns))
    figure.legend(list(named.values()), list(named), loc="outside upper left", ncols=columns)


def footnote(figure: Figure, text: str) -> None:
    """Small print below everything, wrapped to the figure's width."""
    lines = textwrap.wrap(text, int(figure.get_figwidth() / 0.05))
    figure.supxlabel("\n".join(lines), fontsize=6.5, color=faint())


def save(figure: Figure, path: Path, *, dpi: int = DPI) -> None:
    """Write a figure as PNG, SVG or PDF by the file's suffix; the same figure gives the same bytes."""
    write_atomically(path, figure_bytes(figure, check_format(path), dpi=dpi), durable=False)


def figure_bytes(figure: Figure, form: str, *, dpi: int = DPI, theme: str = "light") -> bytes:
    """A figure as a file of a format of :data:`FORMATS`."""
    buffer = BytesIO()
    with styled(theme):
        figure.savefig(buffer, format=form, dpi=dpi, metadata=_METADATA[form])
    return buffer.getvalue()


def check_format(path: Path) -> str:
    """The format that the suffix of a file asks for."""
    suffix = path.suffix.removeprefix(".").lower()
    if suffix not in FORMATS:
        raise unknown("figure format", suffix, FORMATS)
    return suffix


@dataclass(frozen=True)
class Selection:
    """Data sets and methods of results, and the prompt; None takes the first of each data set and method.

    Figures of metrics show the mean over seeds; figures of single images show the first seed.
    """

    results: Results
    datasets: list[str]
    methods: list[str]
    prompt: str | None = None

    def prompt_of(self, dataset: str, method: str) -> str:
        """The prompt under which a method is shown on a data set."""
        held = self.results.prompts_of(dataset, method)
        return held[0] if self.prompt is None and held else self.prompt or ""

    def key(self, dataset: str, method: str) -> ResultKey:
        """The images of a method on a data set under the first seed."""
        return ResultKey(dataset, self.results.seeds[0], self.prompt_of(dataset, method), method)

    def rows(self, dataset: str, method: str) -> Rows:
        """The images under the first seed."""
        return self.results.rows(self.key(dataset, method))

    @property
    def frame(self) -> pd.DataFrame:
        """Rows of the frame that are shown; :class:`OtptError` if a method lacks a data set."""
        parts = []
        for dataset in self.datasets:
            for method in self.methods:
                prompt = self.prompt_of(dataset, method)
                own = self.results.select(dataset=dataset, method=method, prompt=prompt)
                if own.empty or not own["images"].all():
                    raise OtptError(
                        f"The runs hold no images of {method!r} on {dataset!r} with the prompt {prompt!r}; choose "
                        "others with --datasets, --methods or --prompt."
                    )
                parts.append(own)
        return pd.concat(parts)

    def mean(self, metric: str) -> pd.DataFrame:
        """Means over seeds: methods down, data sets across."""
        found = self.frame.pivot_table(metric, "method", "dataset", aggfunc="mean")
        return found.loc[self.methods, self.datasets]

    def deviation(self, metric: str) -> pd.DataFrame:
        """Sample standard deviations over seeds, nan with one, of each data set and of their average."""
        frame = self.frame
        found = frame.pivot_table(metric, "method", "dataset", aggfunc="std", dropna=False)
        found = found.reindex(index=self.methods, columns=self.datasets)
        average = frame.groupby(["method", "seed"])[metric].mean().groupby("method").std()
        return found.assign(average=average)

    def note(self, *, one_seed: bool = False, bins: bool = True, ece: bool = False) -> str:
        """What a reader must know: seeds, bins, and a caution about ``ece`` of few images."""
        seeds = self.results.seeds[:1] if one_seed else self.results.seeds
        words = [f"seed {seeds[0]}" if len(seeds) == 1 else f"mean over seeds {', '.join(map(str, seeds))}"]
        words += [f"{self.results.n_bins} bins"] if bins else []
        least = min(self.results.images_of(dataset) for dataset in self.datasets)
        if ece and least < FEW:
            words.append(f"fewer than {FEW} images of a data set ({least} here): most of an ECE may be bias")
        words += [f"run in progress, {done} of {total} images" for _, done, total in self.results.progress]
        return "; ".join(words)


def select(
    results: Results,
    *,
    datasets: Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
    prompt: str | None = None,
    usual: Sequence[str] = (),
) -> Selection:
    """What was asked for, or everything; of the ``usual`` methods those that the runs have, or all plain ones."""
    if prompt is not None:
        selected("prompt", [prompt], results.prompts)
    known = [name for name in usual if name in results.methods] or plain_methods(results.methods) or results.methods
    return Selection(
        results,
        results.datasets if datasets is None else selected("data set", datasets, results.datasets),
        list(known) if methods is None else selected("method", methods, results.methods),
        prompt,
    )
