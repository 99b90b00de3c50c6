"""The numbers that the O-TPT paper prints, table by table.

>>> table = paper_table(2)
>>> table.printed("o-tpt", "ece", "dtd"), table.value("o-tpt", "ece", "dtd")
('7.88', 7.88)
>>> table.printed_average("zero-shot", "ece"), round(table.mean("zero-shot", "ece"), 2)
('4.43', 5.02)

Names of methods, data sets and metrics are this package's. Values are percent (SCE: 10⁻²), as printed; averages are
computed from the printed values, and what the paper prints as average is kept apart.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from statistics import mean

from otpt.errors import OtptError, unknown

BACKBONES = ("ViT-B/16", "RN50")
"""The backbones of the paper's main tables."""

SHIFTS = ("imagenet-a", "imagenet-v2", "imagenet-r", "imagenet-sketch")
"""Data sets under distribution shift."""

MISSING = "–"
"""A cell without a number."""


@dataclass(frozen=True)
class PaperTable:
    """One table, or the part of one that belongs to one backbone, such as a half of Table 4.

    Attributes:
        number: the paper's; a name where other papers' numbers are collected (:mod:`otpt.report.papers.published`).
        layout: the layout of ``otpt table`` that it belongs to.
        prompt: the initial prompt.
        average: whether the last printed value of a row is its average.
        datasets: columns; "flowers102:group 1" is a part of a data set.
        rows: method → metric → values as printed, one for each data set and then the average; "–" for none.
    """

    number: int | str
    layout: str
    backbone: str
    prompt: str
    average: bool
    datasets: tuple[str, ...]
    rows: Mapping[str, Mapping[str, tuple[str, ...]]]

    @property
    def in_words(self) -> bool:
        """Whether the prompt is words; else it is the name of a learned one, or none."""
        return " " in self.prompt

    @property
    def methods(self) -> tuple[str, ...]:
        """In the paper's order."""
        return tuple(self.rows)

    @property
    def metrics(self) -> tuple[str, ...]:
        """In the paper's order."""
        return tuple(dict.fromkeys(metric for metrics in self.rows.values() for metric in metrics))

    def printed(self, method: str, metric: str, dataset: str) -> str | None:
        """What the paper prints, None if nothing."""
        values = self.rows.get(method, {}).get(metric)
        return None if values is None or dataset not in self.datasets else _cell(values[self.datasets.index(dataset)])

    def value(self, method: str, metric: str, dataset: str) -> float | None:
        """The printed number."""
        text = self.printed(method, metric, dataset)
        return None if text is None else number(text)

    def printed_average(self, method: str, metric: str) -> str | None:
        """The average that the paper prints."""
        values = self.rows.get(method, {}).get(metric)
        return None if values is None or not self.average else _cell(values[-1])

    def mean(self, method: str, metric: str, datasets: Sequence[str] | None = None) -> float | None:
        """The mean of the printed values of ``datasets``, or of all; None if one of them is not printed."""
        values = [self.value(method, metric, dataset) for dataset in (self.datasets if datasets is None else datasets)]
        known = [value for value in values if value is not None]
        return mean(known) if values and len(known) == len(values) else None


def _cell(printed: str) -> str | None:
    return None if printed == MISSING else printed


def number(printed: str) -> float:
    """The value of a printed number; "4..93" (Table 14) is 4.93."""
    return float(printed.replace("..", "."))


def decimals(printed: str) -> int:
    """How many decimals are printed."""
    return len(printed.replace("..", ".").partition(".")[2])


@cache
def paper_tables() -> tuple[PaperTable, ...]:
    """All tables with numbers, in the paper's order; Table 4 is two."""
    text = resources.files(__package__).joinpath("paper.json").read_text(encoding="utf-8")
    tables = []
    for table in json.loads(text)["tables"]:
        rows = {
            method: {metric: tuple(values.split()) for metric, values in metrics.items()}
            for method, metrics in table.pop("rows").items()
        }
        tables.append(PaperTable(datasets=tuple(table.pop("datasets")), rows=rows, **table))
    return tuple(tables)


def paper_table(table: int, backbone: str | None = None) -> PaperTable:
    """A table by its number; Table 4 needs the backbone."""
    numbered = {each.backbone: each for each in paper_tables() if each.number == table}
    if not numbered:
        raise unknown("table of the paper", str(table), dict.fromkeys(str(each.number) for each in paper_tables()))
    if backbone is None and len(numbered) > 1:
        raise OtptError(f"Table {table} has {' and '.join(numbered)}; say which backbone.")
    if backbone not in {None, *numbered}:
        raise unknown(f"backbone of Table {table}", str(backbone), numbered)
    return numbered[backbone or next(iter(numbered))]


def paper_numbers(
    table: int, *, backbone: str | None = None, methods: Iterable[str] | None = None, metric: str | None = None
) -> list[dict[str, object]]:
    """The numbers of a table as plain rows: method, metric, data set, value, and as printed."""
    found = paper_table(table, backbone)
    return [
        {"method": method, "metric": name, "dataset": dataset, "value": number(text), "printed": text}
        for method, metrics in found.rows.items()
        for name, values in metrics.items()
        for dataset, text in zip((*found.datasets, "average"), values, strict=False)
        if (methods is None or method in set(methods)) and metric in {None, name}
    ]


def layout_tables(layout: str, backbone: str | None) -> list[PaperTable]:
    """The tables of a layout; of one of the paper's backbones where the layout has several."""
    return [
        table
        for table in paper_tables()
        if table.layout == layout and (backbone in {None, table.backbone} or table.backbone not in BACKBONES)
    ]
