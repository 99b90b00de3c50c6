"""What in the paper's tables contradicts itself, found by computation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from otpt.report.papers.paper import PaperTable, decimals, number, paper_tables

_TELLING_DIGITS = 3
"""Two errors of three and more digits are hardly equal by chance; of two digits they often are."""


@dataclass(frozen=True)
class WrongAverage:
    """A printed average that its own row does not give, whatever was rounded."""

    table: int | str
    backbone: str
    method: str
    metric: str
    printed: str
    mean: float


@dataclass(frozen=True)
class RepeatedCell:
    """One number in two places which were measured apart: two methods, or two data sets."""

    table: int | str
    backbone: str
    metric: str
    methods: tuple[str, ...]
    datasets: tuple[str, ...]
    printed: str


@dataclass(frozen=True)
class Conflict:
    """One quantity that two tables print differently, whatever was rounded."""

    tables: tuple[int | str, int | str]
    backbone: str
    method: str
    metric: str
    dataset: str
    printed: tuple[str, str]


def wrong_average(table: PaperTable, method: str, metric: str) -> WrongAverage | None:
    """Whether a printed average lies further from the mean of its row than all roundings together allow.

    A value printed with d decimals is off by at most 10^(−d)/2; the mean of n such values by at most the mean of that,
    and the printed average again by half a unit of its own.
    """
    printed = table.printed_average(method, metric)
    computed = table.mean(method, metric)
    if printed is None or computed is None:
        return None
    values = table.rows[method][metric][:-1]
    allowed = sum(_half_unit(value) for value in values) / len(values) + _half_unit(printed)
    if abs(number(printed) - computed) <= allowed * (1.0 + 1e-9):
        return None
    return WrongAverage(table.number, table.backbone, method, metric, printed, computed)


def wrong_averages(tables: Sequence[PaperTable] | None = None) -> list[WrongAverage]:
    """All of these tables; of the O-TPT paper's without."""
    chosen = paper_tables() if tables is None else tables
    found = (wrong_average(t, method, metric) for t in chosen for method in t.methods for metric in t.metrics)
    return [each for each in found if each is not None]


def repeated_cells() -> list[RepeatedCell]:
    """Calibration errors (ECE) of three digits and more that are printed twice, beside each other or in one row.

    Accuracies are fractions of a few thousand images and repeat by chance; one is listed where the ECE repeats with it.
    """
    return [repeat for table in paper_tables() if "ece" in table.metrics for repeat in _repeats(table)]


def conflicts() -> list[Conflict]:
    """Quantities that two tables print with different values."""
    found = []
    for first, second in combinations(paper_tables(), 2):
        if (first.backbone, first.prompt) != (second.backbone, second.prompt):
            continue
        for method in first.methods:
            for metric in first.metrics:
                for dataset in first.datasets:
                    pair = first.printed(method, metric, dataset), second.printed(method, metric, dataset)
                    if pair[0] is None or pair[1] is None:
                        continue
                    if not _round_alike(pair[0], pair[1]):
                        where = (first.number, second.number)
                        found.append(Conflict(where, first.backbone, method, metric, dataset, (pair[0], pair[1])))
    return found


def _repeats(table: PaperTable) -> Iterator[RepeatedCell]:
    for dataset in table.datasets:
        for first, second in combinations(table.methods, 2):
            if _same(table.printed(first, "ece", dataset), table.printed(second, "ece", dataset)):
                for metric in table.metrics:
                    printed = table.printed(first, metric, dataset)
                    if printed is not None and printed == table.printed(second, metric, dataset):
                        yield RepeatedCell(table.number, table.backbone, metric, (first, second), (dataset,), printed)
    for method in table.methods:
        for left, right in combinations(table.datasets, 2):
            printed = table.printed(method, "ece", left)
            if printed is not None and _same(printed, table.printed(method, "ece", right)):
                yield RepeatedCell(table.number, table.backbone, "ece", (method,), (left, right), printed)


def _same(first: str | None, second: str | None) -> bool:
    if first is None or first != second:
        return False
    return len(first.replace(".", "").lstrip("0")) >= _TELLING_DIGITS


def _round_alike(first: str, second: str) -> bool:
    """Whether one number, rounded, can be printed as both."""
    allowed = 0.0 if decimals(first) == decimals(second) else max(_half_unit(first), _half_unit(second))
    return abs(number(first) - number(second)) <= allowed * (1.0 + 1e-9)


def _half_unit(printed: str) -> float:
    return 0.5 * 10.0 ** -decimals(printed)
