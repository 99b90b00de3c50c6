"""Lines of the page's tables: the numbers of each method and prompt on a data set, and over all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from otpt.metrics import METRICS
from otpt.report.formats import Cell, number_text
from otpt.report.results import ResultKey, Results
from otpt.report.selection import AVERAGE, all_groups, by_prompt
from otpt.report.tables import mark_cells, unmarked_cells

SHOWN = ("accuracy", "ece", "debiased_ece", "sce", "brier", "nll", "overconfidence", "aurc")
"""Metrics of the tables; all of them are defined for any predictions."""
OWN_PROMPT = "each data set’s own"


@dataclass(frozen=True)
class Number:
    """A metric of a line.

    Attributes:
        value: fraction, or in the metric's own unit.
        text: the value as shown, with its deviation over seeds.
        mean: the value as shown.
        best: whether it is the best of its data set.
        tie: whether it may differ from the best by chance.
    """

    value: float
    text: str
    mean: str
    best: bool
    tie: bool


Numbers = Mapping[str, Number]
"""Numbers by metric."""


@dataclass(frozen=True)
class Line:
    """A method with a prompt on a data set, or over all: ``dataset`` is then "average".

    Attributes:
        keys: results that the numbers are made of.
        images: number of images, over all data sets.
        unreadable: number of images of one data set that could not be read.
        partial: whether a run is still in progress.
        numbers: empty before the first prediction.
    """

    model: str
    dataset: str
    method: str
    prompt: str
    keys: Sequence[ResultKey]
    images: int
    unreadable: int
    partial: bool
    numbers: Numbers


@dataclass(frozen=True)
class Row:
    """A method with a prompt in a table of data sets or models, with the numbers of each column, empty for none."""

    model: str
    method: str
    prompt: str
    numbers: Sequence[Numbers]


@dataclass(frozen=True)
class SideBySide:
    """Table of methods by models over the data sets that all of them have."""

    models: Sequence[str]
    datasets: Sequence[str]
    rows: Sequence[Row]


def make_lines(model: str, results: Results) -> list[Line]:
    """Return the lines of a model with the best values marked, ordered by data set."""
    order = [*results.datasets, AVERAGE]
    return sorted(_lines(model, results), key=lambda line: order.index(line.dataset))


def _lines(model: str, results: Results) -> Iterator[Line]:
    groups = all_groups(results)
    parts = by_prompt(results)
    cells = [unmarked_cells(part, groups, SHOWN).assign(part=at) for at, part in enumerate(parts)]
    lines = mark_cells(pd.concat(cells, ignore_index=True)).groupby(["part", "dataset", "method"], sort=False)
    for (at, dataset, method), cells_of_line in lines:
        selected = parts[at].select(dataset=None if dataset == AVERAGE else dataset, method=method)
        chosen = parts[at].narrow(selected)
        if chosen.frame.empty or (dataset == AVERAGE and cells_of_line["value"].isna().all()):
            continue
        yield Line(
            model=model,
            dataset=dataset,
            method=method,
            prompt=chosen.prompts[0] if len(chosen.prompts) == 1 else OWN_PROMPT,
            keys=chosen.keys_of(),
            images=int(chosen.frame.groupby("dataset")["images"].max().sum()),
            unreadable=int(chosen.frame["unreadable"].max()),
            partial=bool(chosen.frame["partial"].any()),
            numbers=_numbers(cells_of_line.dropna(subset=["value"])),
        )


def _numbers(cells: pd.DataFrame) -> dict[str, Number]:
    return {cell["metric"]: _number(cell) for cell in cells.to_dict("records")}


def _number(cell: Cell) -> Number:
    metric = METRICS[cell["metric"]]
    value = cell["value"] / (100.0 if metric.unit == "%" else 1.0)
    mean = metric.format(value)
    text = mean if cell["dataset"] == AVERAGE else number_text({**cell, "partial": False})
    return Number(value, text, mean, cell["best"], cell["tie"])


def make_matrix(lines: Sequence[Line], datasets: Sequence[str]) -> list[Row]:
    """Return a matrix of methods by data sets; data sets with their own prompts share a row."""
    with_own_prompts = {(line.model, line.method) for line in lines if line.prompt == OWN_PROMPT}
    rows: dict[tuple[str, str, str], dict[str, Numbers]] = {}
    for line in lines:
        prompt = OWN_PROMPT if (line.model, line.method) in with_own_prompts else line.prompt
        rows.setdefault((line.model, line.method, prompt), {})[line.dataset] = line.numbers
    return [Row(*key, [by_dataset.get(name, {}) for name in datasets]) for key, by_dataset in rows.items()]


def side_by_side(models: Mapping[str, Results]) -> SideBySide | None:
    """Return a table of methods by models over shared data sets, or None if there are none."""
    first = next(iter(models.values()))
    common = [name for name in first.datasets if all(name in results.datasets for results in models.values())]
    if len(models) < 2 or not common:
        return None
    parts = []
    for model, results in models.items():
        for part in by_prompt(results):
            cells = unmarked_cells(part, {"common": common}, SHOWN).dropna(subset=["value"])
            line = cells["method"] + "\n" + cells["prompt"]
            parts.append(cells.assign(dataset=line, method=model, name=cells["method"]))
    rows = []
    for _, line in mark_cells(pd.concat(parts, ignore_index=True)).groupby("dataset", sort=False):
        numbers = [_numbers(line[line["method"] == model]) for model in models]
        rows.append(Row("", line["name"].iloc[0], line["prompt"].iloc[0], numbers))
    return SideBySide(list(models), common, rows)
