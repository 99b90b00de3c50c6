"""Several models on one page: their methods side by side, on the data sets that all of them saw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from otpt.report.page.numbers import Line, by_method, mean_numbers, with_best
from otpt.report.tables.scores import Number


@dataclass(frozen=True)
class ModelRow:
    """A method over the models; ``numbers`` by metric for each of them, empty where it was not run."""

    method: str
    prompt: str
    numbers: list[dict[str, Number]]


@dataclass(frozen=True)
class SideBySide:
    """Models across, methods down, averaged over the data sets that all models saw."""

    models: list[str]
    datasets: list[str]
    rows: list[ModelRow]


def side_by_side(lines: Mapping[str, Sequence[Line]]) -> SideBySide | None:
    """The table for the lines of each model; None for one model, or if no data set is common to all."""
    models = list(lines)
    seen = [dict.fromkeys(str(line.dataset) for line in own if line.numbers) for own in lines.values()]
    common = [dataset for dataset in seen[0] if all(dataset in other for other in seen[1:])] if seen else []
    if len(models) < 2 or not common:
        return None
    found: dict[tuple[str, str], list[dict[str, Number]]] = {}
    for column, own in enumerate(lines.values()):
        kept = [line for line in own if line.dataset in common and line.numbers]
        for key, rows in by_method(kept).items():
            if len(rows) == len(common):
                numbers = found.setdefault(key, [{} for _ in models])
                numbers[column] = mean_numbers(rows)
    return SideBySide(models, common, [ModelRow(*key, with_best(numbers)) for key, numbers in found.items()])
