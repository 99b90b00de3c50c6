"""What stands on the page, as plain data for its template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from otpt.metrics import reliability_bins
from otpt.report.figures.selection import ordinary
from otpt.report.page.diagrams import Chart, Diagram, line_chart, reliability_diagram
from otpt.report.page.images import Shown, Thumbnails, choose_images
from otpt.report.page.numbers import SHOWN, Line, dataset_lines
from otpt.report.page.sets import SetNumbers, set_numbers
from otpt.report.page.summary import isolated
from otpt.report.results import ResultKey, Results
from otpt.report.sweeps import swept
from otpt.report.tables.scores import Number

MAX_DIAGRAMS = 16
"""Reliability diagrams of one data set; a sweep over 80 prompts would draw 80."""

_MAX_ANSWERS = 8
"""Methods whose answers are shown for an image."""


@dataclass(frozen=True)
class Drawn:
    """A reliability diagram with its caption."""

    method: str
    prompt: str
    diagram: Diagram
    ece: Number
    accuracy: Number
    images: int
    model: str


@dataclass(frozen=True)
class DatasetContent:
    """All that is shown of one data set.

    Attributes:
        left_out: diagrams that are not drawn, since there are too many.
        missing: why thumbnails are missing; None if they are there.
        sets: prediction sets and abstention by (method, prompt), of those that make them.
    """

    model: str
    name: str
    classes: int
    images: int
    seed: int
    lines: list[Line]
    diagrams: list[Drawn]
    left_out: int
    disagreements: list[Shown]
    mistakes: list[Shown]
    missing: str | None
    partial: bool
    sets: dict[tuple[str, str], SetNumbers]

    @property
    def best(self) -> Line | None:
        """The line of the lowest ECE."""
        known = [line for line in self.lines if line.numbers]
        return min(known, key=lambda line: line.numbers["ece"].value) if known else None


@dataclass(frozen=True)
class Sweep:
    """A swept method with a prompt on a data set."""

    dataset: str
    model: str
    method: str
    prompt: str
    charts: tuple[Chart, ...]


def dataset_content(results: Results, dataset: str, *, model: str, root: Path | None, images: int) -> DatasetContent:
    """Numbers, diagrams and images of a model on a data set; diagrams, sets and images are those of the first seed."""
    config = results.config_of(dataset)
    lines = [replace(line, model=model) for line in dataset_lines(results, dataset)]
    seed = results.seeds_of(dataset)[0]
    known = [line for line in lines if line.numbers and _has_images(results, line, seed)]
    plain = set(ordinary([line.method for line in known]))
    known.sort(key=lambda line: line.method not in plain)  # variants of a sweep come last, and fall out first
    drawn = [_draw(results, line, seed) for line in known[:MAX_DIAGRAMS]]
    disagreements: list[Shown] = []
    mistakes: list[Shown] = []
    missing = None
    if images and known:
        first: dict[str, str] = {}  # of each method, its first prompt
        for line in known:
            first.setdefault(line.method, line.prompt)
        chosen = (ordinary(list(first)) or list(first))[:_MAX_ANSWERS]
        thumbnails = Thumbnails(config, root)
        rows = {method: results.rows(ResultKey(dataset, seed, first[method], method)) for method in chosen}
        disagreements, mistakes = choose_images(rows, config["classes"], thumbnails, images)
        missing = thumbnails.reason
    sets = {
        (line.method, line.prompt): numbers
        for line in known
        if (numbers := set_numbers(results.rows(_key(line, seed)))) is not None
    }
    return DatasetContent(
        model=model,
        name=dataset,
        classes=len(config["classes"]),
        images=results.images_of(dataset),
        seed=seed,
        lines=lines,
        diagrams=drawn,
        left_out=len(known) - len(drawn),
        disagreements=disagreements,
        mistakes=mistakes,
        missing=missing,
        partial=any(line.partial for line in lines),
        sets=sets,
    )


def sweeps(contents: Sequence[DatasetContent]) -> list[Sweep]:
    """Accuracy and ECE over the values of every sweep."""
    found = []
    for content in contents:
        for prompt in dict.fromkeys(line.prompt for line in content.lines):
            by_name = {line.method: line for line in content.lines if line.numbers and line.prompt == prompt}
            for base, values in swept(list(by_name)).items():
                if len(values) > 1:
                    charts = [_chart(metric, values, by_name, base, content.name) for metric in ("accuracy", "ece")]
                    found.append(Sweep(content.name, content.model, base, prompt, tuple(charts)))
    return found


def _chart(
    metric: str, values: Sequence[tuple[str, str]], by_name: Mapping[str, Line], base: str, dataset: str
) -> Chart:
    fractions = [by_name[method].numbers[metric].value for _, method in values]
    name = f"{isolated(base)} on {isolated(dataset)}"
    return line_chart(SHOWN[metric], [label for label, _ in values], fractions, name=name)


def _has_images(results: Results, line: Line, seed: int) -> bool:
    """Whether there are images of the line under this very seed."""
    score = results.score(_key(line, seed))
    return score is not None and score.metrics is not None


def _key(line: Line, seed: int) -> ResultKey:
    return ResultKey(str(line.dataset), seed, line.prompt, line.method)


def _draw(results: Results, line: Line, seed: int) -> Drawn:
    key = _key(line, seed)
    rows, score = results.rows(key), results.score(key)
    assert score is not None
    assert score.metrics is not None
    bins = reliability_bins(rows.confidences, rows.correct, n_bins=results.bins, side=results.side)
    name = f"{isolated(line.method)} on {isolated(str(line.dataset))}"
    diagram = reliability_diagram(bins, name=name, ece=score.metrics.ece, accuracy=score.metrics.accuracy)
    ece, accuracy = Number("ece", score.metrics.ece), Number("accuracy", score.metrics.accuracy)
    return Drawn(line.method, line.prompt, diagram, ece, accuracy, bins.total, line.model)
