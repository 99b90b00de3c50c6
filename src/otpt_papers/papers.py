"""Numbers that papers print, and the protocols under which they were measured (``papers.toml``).

``published.csv`` has a row for each paper, table, backbone, data set, method and metric, with the value as printed;
"average" is the average that the paper prints, and an empty value a cell without a number. Names are those of otpt.
Values are percent (SCE: 10⁻²). ``layout`` names the form of the table, see :mod:`otpt_papers.layouts`.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import cache
from importlib import resources
from typing import Literal

import numpy as np
import pandas as pd
import pydantic.dataclasses
from pydantic import TypeAdapter

from otpt.errors import OtptError
from otpt.report import Results
from otpt.report.results import check_names
from otpt.report.selection import AVERAGE
from otpt_papers.titles import method_title, metric_title

OTPT = "otpt"
"""Name of the O-TPT paper."""
BACKBONES = ("ViT-B/16", "RN50")
"""Backbones of the O-TPT paper's main tables."""
SHIFTS = ("imagenet-a", "imagenet-v2", "imagenet-r", "imagenet-sketch")
"""Data sets under distribution shift."""

_ALIASES = {"e-cots": ("cots", "weak-strong")}


@pydantic.dataclasses.dataclass(frozen=True)
class Erratum:
    """A printed average that contradicts other numbers of the same paper.

    Attributes:
        table, backbone, method, metric: where it is printed.
        printed: the average as printed.
        other: the number that contradicts it.
        reason: what the other number is.
    """

    table: str
    backbone: str
    method: str
    metric: str
    printed: str
    other: str
    reason: str


@pydantic.dataclasses.dataclass(frozen=True)
class TableRemark:
    """A remark that is printed below tables of a paper.

    Attributes:
        tables: numbers of the tables.
        kind: "contradiction" of the paper with itself, "own" reading where the paper says nothing, or how the
            "printed" number is read.
        text: the remark, without its end.
    """

    tables: tuple[str, ...]
    kind: Literal["contradiction", "own", "printed"]
    text: str

    def __str__(self) -> str:
        head = {"contradiction": "The paper contradicts itself", "own": "Own reading", "printed": "As printed"}
        return f"{head[self.kind]}: {self.text}."


@pydantic.dataclasses.dataclass(frozen=True)
class Paper:
    """Source and protocol of a paper's numbers, with None for unstated fields.

    Attributes:
        name: name in ``published.csv`` and for ``otpt table --paper``.
        title: name in titles of tables.
        source: citation.
        views: number of views of an image.
        seeds: number of seeds.
        n_bins: number of bins of the calibration errors.
        augmix: whether views are mixed, by "fine-grained", "imagenet" and "shift".
        own: parts of names of the authors' own methods.
        others: who measured the other methods.
        confidence: how the numbers are known.
        inferred: which parts of the protocol were concluded from the numbers.
        remarks: further sentences.
        not_implemented: methods, or parts of their names, that otpt does not have, and why.
        errata: printed averages that contradict other numbers of the same paper.
        table_remarks: remarks on single tables.
    """

    name: str
    title: str
    source: str
    views: int | None = None
    seeds: int | None = None
    n_bins: int | None = None
    augmix: dict[str, bool] = field(default_factory=dict)
    own: tuple[str, ...] = ()
    others: str | None = None
    confidence: str = "not checked against the paper"
    inferred: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    not_implemented: dict[str, str] = field(default_factory=dict)
    errata: tuple[Erratum, ...] = ()
    table_remarks: tuple[TableRemark, ...] = ()

    def remarks_on(self, table: str) -> list[str]:
        """Return the remarks on a table as sentences."""
        return [str(remark) for remark in self.table_remarks if table in remark.tables]

    @property
    def numbers(self) -> pd.DataFrame:
        """The rows of :func:`published` of this paper."""
        numbers = published()
        return numbers[numbers["paper"] == self.name]

    @property
    def backbones(self) -> tuple[str, ...]:
        """Names of the backbones that the paper has numbers of."""
        return tuple(dict.fromkeys(self.numbers["backbone"]))

    def measured(self, method: str) -> str:
        """Return who measured a method's numbers."""
        is_own = any(part in self.own for part in method.split("+"))
        return "the authors' own" if is_own or self.others is None else self.others

    def mixes(self, dataset: str) -> bool | None:
        """Return whether the views of a data set are mixed by AugMix."""
        kind = "shift" if dataset in SHIFTS else "imagenet" if dataset == "imagenet" else "fine-grained"
        return self.augmix.get(kind)

    def describe(self, backbone: str, prompt: str) -> str:
        """Describe source and protocol in one sentence."""
        kinds = {"fine-grained": "fine-grained sets", "imagenet": "ImageNet", "shift": "shifts"}
        mixed = [f"{'on' if on else 'off'} for {kinds[kind]}" for kind, on in self.augmix.items()]
        stated = {"views": self.views, "seeds": self.seeds, "bins": self.n_bins}
        said = [backbone, f"prompt {prompt!r}"]
        said += [f"{value} {name}" for name, value in stated.items() if value is not None]
        said += [f"AugMix {', '.join(mixed)}"] if mixed else []
        missing = [name for name, value in {**stated, "AugMix": mixed or None}.items() if value is None]
        words = f"{self.source} ({self.confidence}): {', '.join(said)}"
        words += f"; inferred: {', '.join(self.inferred)}" if self.inferred else ""
        return f"{words}; not stated: {', '.join(missing)}." if missing else f"{words}."


def _read_papers() -> dict[str, Paper]:
    tables = tomllib.loads(resources.files(__package__).joinpath("papers.toml").read_text(encoding="utf-8"))
    papers = {name: {"name": name, **table} for name, table in tables.items()}
    return TypeAdapter(dict[str, Paper]).validate_python(papers)


_PAPERS = _read_papers()
PAPERS = tuple(_PAPERS)
"""Papers whose numbers are known."""


@cache
def published() -> pd.DataFrame:
    """Return all published numbers: paper, table, layout, backbone, prompt, dataset, method, metric, printed, value."""
    with resources.files(__package__).joinpath("published.csv").open(encoding="utf-8") as file:
        numbers = pd.read_csv(file, dtype=str, keep_default_na=False).rename(columns={"value": "printed"})
    # Table 14 of the O-TPT paper prints "4..93"
    numbers["value"] = pd.to_numeric(numbers["printed"].str.replace("..", ".", regex=False), errors="coerce")
    return numbers


def get_paper(name: str) -> Paper:
    """Return a paper by name, one of :data:`PAPERS`."""
    check_names("paper", [name], PAPERS)
    return _PAPERS[name]


def paper_table(table: int | str, *, paper: str = OTPT, backbone: str | None = None) -> pd.DataFrame:
    """Return the rows of one table and backbone.

    Args:
        table: number or name of the table.
        paper: name of the paper.
        backbone: name of the backbone; may be omitted if the table has one.

    Example:
        >>> rows = paper_table(2).set_index(["method", "metric", "dataset"])
        >>> rows.loc[("o-tpt", "ece", "dtd"), "printed"]
        '7.88'
    """
    rows = get_paper(paper).numbers
    check_names("table of the paper", [str(table)], rows["table"])
    rows = rows[rows["table"] == str(table)]
    backbones = check_names(f"backbone of Table {table}", [backbone] if backbone else None, rows["backbone"])
    if len(backbones) > 1:
        raise OtptError(f"Table {table} has {' and '.join(backbones)}; choose a backbone.")
    return rows[rows["backbone"] == backbones[0]]


def layout_tables(layout: str, backbone: str | None = None) -> list[pd.DataFrame]:
    """Return the O-TPT paper's tables of a layout, optionally for one backbone."""
    rows = get_paper(OTPT).numbers
    rows = rows[rows["layout"] == layout]
    if backbone is not None:
        rows = rows[(rows["backbone"] == backbone) | ~rows["backbone"].isin(BACKBONES)]
    return [table for _, table in rows.groupby(["table", "backbone"], sort=False)]


def table_datasets(table: pd.DataFrame) -> list[str]:
    """Return the data sets of a table, without the average."""
    return [name for name in dict.fromkeys(table["dataset"]) if name != AVERAGE]


def method_key(name: str) -> frozenset[str]:
    """Return the parts of a method's name as a set, with abbreviations expanded.

    >>> method_key("tpt+e-cots") == method_key("weak-strong+tpt+cots")
    True
    >>> method_key("zero-shot+weak-strong") == method_key("weak-strong")
    True
    """
    parts: set[str] = set()
    for part in name.split("+"):
        parts.update(_ALIASES.get(part, (part,)))
    return frozenset(parts - {"zero-shot"} or parts)


def printed_values(
    cells: pd.DataFrame, printed: pd.DataFrame, datasets: Sequence[str], methods: Mapping[str, str] | None = None
) -> list[float]:
    """Return the printed number of each cell by data set, method and metric, or nan.

    Args:
        cells: cells of a table, see :class:`otpt.report.Table`.
        printed: rows of a paper's table.
        datasets: data sets whose mean replaces an average that is not printed.
        methods: the paper's names of the runs' methods; None if they are the same.
    """
    values = printed.set_index(["dataset", "method", "metric"])["value"].to_dict()

    def find(dataset: str, method: str, metric: str) -> float:
        value = values.get((dataset, method, metric), np.nan)
        if dataset == AVERAGE and np.isnan(value) and len(datasets):
            value = np.mean([find(name, method, metric) for name in datasets])
        return float(value)

    names = cells["method"] if methods is None else cells["method"].map(methods)
    return [find(*key) for key in zip(cells["dataset"], names, cells["metric"], strict=True)]


def mark_errata(
    cells: pd.DataFrame, printed: pd.DataFrame, methods: Mapping[str, str] | None = None
) -> tuple[pd.DataFrame, list[str]]:
    """Mark the averages of a table that contradict other numbers of the paper, with a note for each.

    Args:
        cells: cells of a table, see :class:`otpt.report.Table`.
        printed: rows of the paper's table.
        methods: the paper's names of the runs' methods; None if they are the same.

    Returns:
        The cells with the flag ``wrong``, and the notes.
    """
    paper, table, backbone = printed[["paper", "table", "backbone"]].iloc[0]
    names = cells["method"] if methods is None else cells["method"].map(methods)
    is_wrong = pd.Series(False, index=cells.index)
    notes = []
    for erratum in get_paper(paper).errata:
        is_average = (cells["dataset"] == AVERAGE) & (cells["metric"] == erratum.metric)
        is_meant = is_average & (names == erratum.method)
        if (erratum.table, erratum.backbone) == (table, backbone) and is_meant.any():
            is_wrong |= is_meant
            what = f"average {metric_title(erratum.metric)} of {method_title(erratum.method)}"
            notes.append(f"! Table {table} prints {erratum.printed} as {what}; {erratum.other} is {erratum.reason}.")
    return cells.assign(wrong=is_wrong), notes


def guess_backbone(results: Results) -> str | None:
    """Return the paper's name of the runs' backbone, or None."""
    names = {paper_backbone(run.config.backbone.architecture) for run in results.runs}
    return names.pop() if len(names) == 1 and names <= set(BACKBONES) else None


def paper_backbone(architecture: str) -> str:
    """Return an architecture's name in papers, such as "ViT-B/16" for "ViT-B-16-quickgelu"."""
    return re.sub(r"^(ViT-\w+)-(\d+)$", r"\1/\2", architecture.replace("-quickgelu", ""))


def user_data_note(dataset: str) -> str:
    """Return a note on a user-supplied data set with a registered name."""
    return (
        f"The runs' {dataset!r} is user-supplied data, not the registered data set, so the paper has no numbers of it."
    )
