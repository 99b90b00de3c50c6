"""Numbers that papers print, as one long table, and the protocols under which they were measured.

``published.csv`` has a row for each paper, table, backbone, data set, method and metric, with the value as printed;
"average" is the average that the paper prints, and an empty value a cell without a number. Names are this package's.
Values are percent (SCE: 10⁻²).
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

import pandas as pd

from otpt.errors import OtptError, unknown

OTPT = "otpt"
"""The O-TPT paper, whose layouts ``otpt table`` has."""
PAPERS = (
    "otpt", "cots", "tta-vlm", "fpp", "a-tpt", "soc", "zero", "mta", "sts", "cas", "tda", "dmn", "dpe", "tca", "quoted",
)  # fmt: skip
BACKBONES = ("ViT-B/16", "RN50")
"""Backbones of the O-TPT paper's main tables."""
SHIFTS = ("imagenet-a", "imagenet-v2", "imagenet-r", "imagenet-sketch")
"""Data sets under distribution shift."""
AVERAGE = "average"

_CONFIDENCE = {
    "P": "read in the paper",
    "N": "known through a third party's summary",
    None: "not checked against the paper",
}
_ALIASES = {"e-cots": ("cots", "weak-strong")}


@dataclass(frozen=True)
class Paper:
    """The source and protocol of a paper's numbers; None for what it does not state.

    Attributes:
        augmix: whether views are mixed, by "fine-grained", "imagenet" and "shift".
        own: parts of names of the authors' own methods.
        others: who measured the other methods.
        confidence: "P" if the numbers were read in the paper, "N" if they are known through a third party.
        inferred: which parts of the protocol were concluded from the numbers.
        not_implemented: methods, or parts of their names, that this package does not have, and why.
        errata: printed numbers that contradict others of the same paper.
    """

    name: str
    title: str
    source: str
    views: int | None = None
    seeds: int | None = None
    n_bins: int | None = None
    augmix: Mapping[str, bool] = field(default_factory=dict)
    own: tuple[str, ...] = ()
    others: str | None = None
    confidence: str | None = None
    inferred: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    not_implemented: Mapping[str, str] = field(default_factory=dict)
    errata: tuple[Mapping[str, str], ...] = ()

    @property
    def numbers(self) -> pd.DataFrame:
        """The rows of :func:`published` of this paper."""
        found = published()
        return found[found["paper"] == self.name]

    def measured(self, method: str) -> str:
        """Who measured a method's numbers."""
        own = any(part in self.own for part in method.split("+"))
        return "the authors' own" if own or self.others is None else self.others

    def lacks(self, method: str) -> str | None:
        """Why this package does not have a method; None if it should."""
        names = (method, *method.split("+"))
        return next((self.not_implemented[name] for name in names if name in self.not_implemented), None)

    def mixes(self, dataset: str) -> bool | None:
        """Whether the views of a data set are mixed by AugMix."""
        kind = "shift" if dataset in SHIFTS else "imagenet" if dataset == "imagenet" else "fine-grained"
        return self.augmix.get(kind)

    def describe(self, backbone: str, prompt: str) -> str:
        """Source and protocol in one sentence."""
        kinds = {"fine-grained": "fine-grained sets", "imagenet": "ImageNet", "shift": "shifts"}
        mixed = [f"{'on' if on else 'off'} for {kinds[kind]}" for kind, on in self.augmix.items()]
        stated = {"views": self.views, "seeds": self.seeds, "bins": self.n_bins}
        said = [backbone, f"prompt {prompt!r}"]
        said += [f"{value} {name}" for name, value in stated.items() if value is not None]
        said += [f"AugMix {', '.join(mixed)}"] if mixed else []
        missing = [name for name, value in {**stated, "AugMix": mixed or None}.items() if value is None]
        words = f"{self.source} ({_CONFIDENCE[self.confidence]}): {', '.join(said)}"
        words += f"; inferred: {', '.join(self.inferred)}" if self.inferred else ""
        return f"{words}; not stated: {', '.join(missing)}." if missing else f"{words}."


@cache
def published() -> pd.DataFrame:
    """All published numbers: paper, table, layout, backbone, prompt, dataset, method, metric, printed, value."""
    with resources.files("otpt.report").joinpath("published.csv").open(encoding="utf-8") as file:
        found = pd.read_csv(file, dtype=str, keep_default_na=False).rename(columns={"value": "printed"})
    # Table 14 of the O-TPT paper prints "4..93"
    found["value"] = pd.to_numeric(found["printed"].str.replace("..", ".", regex=False), errors="coerce")
    return found


@cache
def get_paper(name: str) -> Paper:
    """A paper by name, one of :data:`PAPERS`."""
    if name not in PAPERS:
        raise unknown("paper", name, PAPERS)
    text = resources.files("otpt.report").joinpath("papers.toml").read_text(encoding="utf-8")
    data: dict[str, Any] = tomllib.loads(text)[name]
    data |= {key: tuple(data[key]) for key in ("own", "inferred", "remarks", "errata") if key in data}
    return Paper(name=name, **data)


def paper_table(table: int | str, *, paper: str = OTPT, backbone: str | None = None) -> pd.DataFrame:
    """The rows of one table; of a table with several backbones, those of one.

    >>> rows = paper_table(2).set_index(["method", "metric", "dataset"])
    >>> rows.loc[("o-tpt", "ece", "dtd"), "printed"]
    '7.88'
    """
    rows = get_paper(paper).numbers
    own = rows[rows["table"] == str(table)]
    if own.empty:
        raise unknown("table of the paper", str(table), dict.fromkeys(rows["table"]))
    backbones = list(dict.fromkeys(own["backbone"]))
    if backbone is None and len(backbones) > 1:
        raise OtptError(f"Table {table} has {' and '.join(backbones)}; choose a backbone.")
    if backbone is not None and backbone not in backbones:
        raise unknown(f"backbone of Table {table}", backbone, backbones)
    return own[own["backbone"] == (backbone or backbones[0])]


def layout_tables(layout: str, backbone: str | None = None) -> list[pd.DataFrame]:
    """The O-TPT paper's tables of a layout; of one backbone where the layout has several."""
    rows = get_paper(OTPT).numbers
    own = rows[rows["layout"] == layout]
    if backbone is not None:
        own = own[(own["backbone"] == backbone) | ~own["backbone"].isin(BACKBONES)]
    return [table for _, table in own.groupby(["table", "backbone"], sort=False)]


def table_datasets(table: pd.DataFrame) -> list[str]:
    """Data sets of a table, without the average."""
    return [name for name in dict.fromkeys(table["dataset"]) if name != AVERAGE]


def method_key(name: str) -> frozenset[str]:
    """The parts of a method's name in any order, with abbreviations spelled out.

    >>> method_key("tpt+e-cots") == method_key("weak-strong+tpt+cots")
    True
    >>> method_key("zero-shot+weak-strong") == method_key("weak-strong")
    True
    """
    parts = {each for part in name.split("+") for each in _ALIASES.get(part, (part,))}
    return frozenset(parts - {"zero-shot"} or parts)


def wrong_averages(rows: pd.DataFrame | None = None) -> pd.DataFrame:
    """Printed averages that are further from the mean of their row than rounding allows.

    A value printed with d decimals is off by at most 10^(−d)/2, the mean of n such values by at most the mean of
    that, and the printed average again by half a unit of its own.

    Args:
        rows: of :func:`published`; those of the O-TPT paper by default.

    Returns:
        paper, table, backbone, method, metric, printed, mean.
    """
    rows = get_paper(OTPT).numbers if rows is None else rows
    keys = ["paper", "table", "backbone", "method", "metric"]
    found = []
    for key, own in rows.groupby(keys, sort=False):
        average, values = own[own["dataset"] == AVERAGE], own[own["dataset"] != AVERAGE]
        if average.empty or values.empty or values["value"].isna().any():
            continue
        allowed = values["printed"].map(_half_unit).mean() + _half_unit(average["printed"].item())
        mean = values["value"].mean()
        if abs(average["value"].item() - mean) > allowed * (1.0 + 1e-9):
            found.append((*key, average["printed"].item(), mean))
    return pd.DataFrame(found, columns=[*keys, "printed", "mean"])


def _half_unit(printed: str) -> float:
    return float(0.5 * 10.0 ** -len(printed.replace("..", ".").partition(".")[2]))
