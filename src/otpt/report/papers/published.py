"""Published numbers of the field, paper by paper, each with the protocol that it was measured under.

>>> cots = get_paper("cots")
>>> cots.table("sets", "ViT-B/16").printed("tpt+e-cots", "ece", "dtd")
'6.94'
>>> cots.measured("tpt+e-cots"), cots.measured("o-tpt")
("the authors' own", 're-run of the official code with its own settings')

Names of methods are this package's, parts joined by "+"; some stand for methods that it does not have
(:attr:`Paper.not_implemented`). Values are as printed. A row of a file is "value of each data set | average", either of
which may be absent.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

from otpt.errors import unknown
from otpt.report.papers.paper import MISSING, SHIFTS, PaperTable

PAPERS = ("cots", "tta-vlm", "fpp", "a-tpt", "soc", "zero", "mta", "sts", "cas", "tda", "dmn", "dpe", "tca", "quoted")
"""Names of papers besides that of O-TPT, whose tables are in :mod:`otpt.report.papers.paper`."""

CONFIDENCE = {
    "P": "read in the paper",
    "N": "known through a third party's summary",
    None: "not checked against the paper",
}
"""How the numbers are known."""

_ALIASES = {"e-cots": ("cots", "weak-strong")}


@dataclass(frozen=True)
class Protocol:
    """How numbers were measured; None for what is not stated.

    Attributes:
        augmix: whether views are mixed, by "fine-grained", "imagenet" and "shift".
        seeds: how many.
        own: parts of names of the methods that are the authors' own.
        others: where the numbers of all other methods come from.
        confidence: a key of :data:`CONFIDENCE`.
        inferred: which of these were concluded from the numbers, not read.
    """

    views: int | None = None
    augmix: Mapping[str, bool | None] = field(default_factory=dict)
    seeds: int | None = None
    bins: int | None = None
    own: tuple[str, ...] = ()
    others: str | None = None
    confidence: str | None = None
    inferred: tuple[str, ...] = ()

    def mixes(self, dataset: str) -> bool | None:
        """Whether the views of a data set are mixed by AugMix."""
        kind = "shift" if dataset in SHIFTS else "imagenet" if dataset == "imagenet" else "fine-grained"
        return self.augmix.get(kind)


@dataclass(frozen=True)
class Erratum:
    """A printed number that contradicts another of the same paper, and why."""

    table: str
    backbone: str
    method: str
    metric: str
    printed: str
    other: str
    reason: str


@dataclass(frozen=True)
class Paper:
    """The numbers of one paper.

    Attributes:
        methods: names of all methods of its tables.
        not_implemented: names, or parts of names, that this package does not have, and why.
        errata: contradictions that need rows which are not in the tables here.
    """

    name: str
    title: str
    source: str
    protocol: Protocol
    methods: tuple[str, ...]
    not_implemented: Mapping[str, str]
    errata: tuple[Erratum, ...]
    remarks: tuple[str, ...]
    tables: tuple[PaperTable, ...]

    @property
    def backbones(self) -> tuple[str, ...]:
        """In the order of the tables."""
        return tuple(dict.fromkeys(table.backbone for table in self.tables))

    def table(self, name: str, backbone: str) -> PaperTable:
        """A table by name and backbone."""
        found = {(str(each.number), each.backbone): each for each in self.tables}
        if (name, backbone) not in found:
            raise unknown(f"table of {self.name!r}", f"{name} {backbone}", (" ".join(key) for key in found))
        return found[name, backbone]

    def measured(self, method: str) -> str:
        """Who measured a method's numbers."""
        own = any(part in self.protocol.own for part in method.split("+"))
        return "the authors' own" if own or self.protocol.others is None else self.protocol.others

    def lacks(self, method: str) -> str | None:
        """Why this package does not have a method; None if it should."""
        names = (method, *method.split("+"))
        return next((self.not_implemented[name] for name in names if name in self.not_implemented), None)


def method_key(name: str) -> frozenset[str]:
    """What a name of a method says, whatever the order of its parts.

    >>> method_key("tpt+e-cots") == method_key("weak-strong+tpt+cots")
    True
    >>> method_key("zero-shot+weak-strong") == method_key("weak-strong")
    True
    """
    parts = {each for part in name.split("+") for each in _ALIASES.get(part, (part,))}
    return frozenset(parts - {"zero-shot"} or parts)


@cache
def get_paper(name: str) -> Paper:
    """A paper by name, one of :data:`PAPERS`."""
    if name not in PAPERS:
        raise unknown("paper", name, PAPERS)
    text = resources.files(__package__).joinpath(f"{name}.json").read_text(encoding="utf-8")
    data: dict[str, Any] = json.loads(text)
    protocol = {**data["protocol"], **{key: tuple(data["protocol"][key]) for key in ("own", "inferred")}}
    return Paper(
        name,
        data["title"],
        data["source"],
        Protocol(**protocol),
        tuple(data["methods"]),
        data["not_implemented"],
        tuple(Erratum(**each) for each in data["errata"]),
        tuple(data["remarks"]),
        tuple(_table(each) for each in data["tables"]),
    )


def _table(data: Mapping[str, Any]) -> PaperTable:
    datasets = tuple(data["datasets"])
    rows = {
        method: {metric: _row(text, len(datasets)) for metric, text in metrics.items()}
        for method, metrics in data["rows"].items()
    }
    return PaperTable(data["name"], data["layout"], data["backbone"], data["prompt"], True, datasets, rows)


def _row(text: str, datasets: int) -> tuple[str, ...]:
    values, _, average = text.partition("|")
    found = tuple(values.split()) or (MISSING,) * datasets
    if len(found) != datasets:
        raise ValueError(f"{text!r} has {len(found)} values for {datasets} data sets")
    return (*found, average.strip() or MISSING)
