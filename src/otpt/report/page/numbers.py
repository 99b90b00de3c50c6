"""The lines of the page's tables: a method on a data set, averaged over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import mean

from otpt.metrics import METRICS
from otpt.report.results import ResultKey, Results
from otpt.report.tables.scores import Number, number_of
from otpt.report.tables.table import cost

_SHOWN = ("accuracy", "ece", "debiased_ece", "sce", "brier", "nll", "overconfidence", "aurc")
SHOWN = {name: METRICS[name].heading[0].upper() + METRICS[name].heading[1:] for name in _SHOWN}
"""Metrics of the tables; all of them are defined for any predictions."""

OWN_PROMPT = "each data set’s own"


@dataclass(frozen=True)
class Line:
    """A method with a prompt on a data set, or on all of them.

    Attributes:
        dataset: None for the average.
        numbers: by metric; empty if nothing has been predicted yet.
        model: whose predictions they are, where a page shows several.
    """

    dataset: str | None
    method: str
    prompt: str
    images: int
    unreadable: int
    partial: bool
    numbers: dict[str, Number] = field(default_factory=dict)
    model: str = ""


def dataset_lines(results: Results, dataset: str) -> list[Line]:
    """All lines of a data set, the best value of each metric marked."""
    columns = dict.fromkeys((key.prompt, key.method) for key in results.keys if key.dataset == dataset)
    return _marked([_line(results, dataset, prompt, method) for prompt, method in columns])


def average_lines(lines: Sequence[Line]) -> list[Line]:
    """Of each method (and prompt) that has numbers on every data set: their mean. None for a single data set."""
    datasets = list(dict.fromkeys(line.dataset for line in lines))
    if len(datasets) < 2:
        return []
    found = []
    for (method, prompt), rows in by_method(lines).items():
        own = [line for line in rows if line.numbers]
        if len(own) == len(datasets):
            images, unreadable = sum(line.images for line in own), sum(line.unreadable for line in own)
            partial = any(line.partial for line in own)
            found.append(Line(None, method, prompt, images, unreadable, partial, mean_numbers(own)))
    return _marked(found)


def by_method(lines: Sequence[Line]) -> dict[tuple[str, str], list[Line]]:
    """Lines of one method over the data sets, by (method, prompt).

    Where a method has one prompt per data set, as when every data set has its own, these belong together; the prompt is
    then called :data:`OWN_PROMPT` unless it is the same.
    """
    found: dict[tuple[str, str], list[Line]] = {}
    for method in dict.fromkeys(line.method for line in lines):
        own = [line for line in lines if line.method == method]
        prompts = list(dict.fromkeys(line.prompt for line in own))
        if len({line.dataset for line in own}) == len(own):
            found[method, prompts[0] if len(prompts) == 1 else OWN_PROMPT] = own
        else:
            found |= {(method, prompt): [line for line in own if line.prompt == prompt] for prompt in prompts}
    return found


def mean_numbers(lines: Sequence[Line]) -> dict[str, Number]:
    """The mean of each metric over lines that all have numbers."""
    return {name: Number(name, mean(line.numbers[name].value for line in lines)) for name in SHOWN}


def with_best(rows: Sequence[dict[str, Number]]) -> list[dict[str, Number]]:
    """Numbers by metric, those marked that no other row beats as shown; none where a single row has numbers."""
    known = [row for row in rows if row]
    least = {
        name: min((row[name] for row in known), key=lambda each: cost(each.metric, each.value)).cost
        for name in (known[0] if len(known) > 1 else ())
    }
    return [{name: replace(each, best=each.cost == least.get(name)) for name, each in row.items()} for row in rows]


def _line(results: Results, dataset: str, prompt: str, method: str) -> Line:
    keys = [ResultKey(dataset, seed, prompt, method) for seed in results.seeds_of(dataset, method, prompt)]
    scores = [score for key in keys if (score := results.score(key)) is not None]
    partial = any(results.is_partial(key) for key in keys)
    known = [score for score in scores if score.metrics is not None]
    found = {name: number_of(known, name, [dataset]) for name in SHOWN}
    numbers = {name: number for name, number in found.items() if number is not None}
    images = max((score.metrics.images for score in known if score.metrics is not None), default=0)
    unreadable = max((score.unreadable for score in scores), default=0)
    return Line(dataset, method, prompt, images, unreadable, partial, numbers)


def _marked(lines: Sequence[Line]) -> list[Line]:
    numbers = with_best([line.numbers for line in lines])
    return [replace(line, numbers=own) for line, own in zip(lines, numbers, strict=True)]


@dataclass(frozen=True)
class MatrixRow:
    """A method over the data sets.

    Attributes:
        numbers: by metric, for each data set and then for their average; empty where there are none.
    """

    method: str
    prompt: str
    numbers: list[dict[str, Number]]
    model: str = ""


def matrix(lines: Sequence[Line], averages: Sequence[Line], datasets: Sequence[str], model: str) -> list[MatrixRow]:
    """Methods of a model down, data sets across, their average last."""
    average = {(line.method, line.prompt): line.numbers for line in averages}
    rows = []
    for key, own in by_method(lines).items():
        numbers = {line.dataset: line.numbers for line in own}
        rows.append(MatrixRow(*key, [*(numbers.get(dataset, {}) for dataset in datasets), average.get(key, {})], model))
    return rows
