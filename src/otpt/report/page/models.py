"""Several models on one page: their methods side by side, on the data sets that all of them saw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean

from otpt.report.page.numbers import SHOWN, Line, better, by_method
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
                numbers[column] = {name: Number(name, mean(row.numbers[name].value for row in rows)) for name in SHOWN}
    return SideBySide(models, common, [ModelRow(*key, _with_best(numbers)) for key, numbers in found.items()])


def _with_best(numbers: list[dict[str, Number]]) -> list[dict[str, Number]]:
    """Of each metric, the models that no other beats as shown; none where only one has a number."""
    known = [each for each in numbers if each]
    return [
        {
            name: replace(
                number,
                best=len(known) > 1
                and not any(
                    better(name, other[name].value, number.value) and other[name].text != number.text for other in known
                ),
            )
            for name, number in each.items()
        }
        for each in numbers
    ]
