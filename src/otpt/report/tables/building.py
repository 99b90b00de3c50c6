"""From results to tables: ``build_tables(results, "main", paper="ViT-B/16")``."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean

from otpt.errors import OtptError
from otpt.metrics import METRICS
from otpt.metrics.bootstrap import centred_interval, check_level
from otpt.report.names import check_names
from otpt.report.papers.errata import wrong_average
from otpt.report.papers.paper import BACKBONES, PaperTable, layout_tables, number
from otpt.report.prompts import prompt_of
from otpt.report.results import ResultKey, Results
from otpt.report.statistics import resampled
from otpt.report.tables.groups import group_tables
from otpt.report.tables.layouts import (
    DEVIATION,
    LAYOUTS,
    METRIC_TITLES,
    Layout,
    dataset_title,
    method_title,
    progress_note,
)
from otpt.report.tables.scores import number_of
from otpt.report.tables.table import AVERAGE, PRINTED, Column, Entry, Line, Table, mark_best


@dataclass(frozen=True)
class Choice:
    """What of the results goes into tables, and what beside it.

    Attributes:
        datasets, methods: None takes those of the layout.
        prompt: where the runs have several; None takes the paper's.
        paper: the backbone whose printed numbers are shown beside ours, None for none.
        level: of bootstrap intervals, None for none.
        metrics: None takes those of the layout.
    """

    datasets: Sequence[str] | None = None
    methods: Sequence[str] | None = None
    prompt: str | None = None
    paper: str | None = None
    level: float | None = None
    metrics: Sequence[str] | None = None


def build_tables(results: Results, layout: str, choice: Choice | None = None) -> list[Table]:
    """The tables of a layout: one; one per prompt for "prompts"; one per data set and split for "groups"."""
    choice = choice or Choice()
    check_names("layout", [layout], LAYOUTS)
    form = LAYOUTS[layout].with_metrics(choice.metrics)
    if choice.paper is not None:
        check_names("backbone of the paper", [choice.paper], BACKBONES)
    if choice.level is not None:
        check_level(choice.level)
    if choice.prompt is not None:
        check_names("prompt", [choice.prompt], results.prompts)
    methods = form.methods_of(results, choice.methods)
    if form.name == "seeds" and len(results.seeds) < 2:
        raise OtptError("The layout 'seeds' needs runs with two or more seeds; these have one.")
    if form.name == "medical" and choice.datasets is None:
        return _medical(results, form, methods, choice)
    datasets = form.datasets_of(results, choice.datasets)
    if form.name == "groups":
        return group_tables(results, datasets, methods, prompt=choice.prompt, paper=choice.paper)
    if form.name == "prompts" and choice.prompt is None:
        return [
            table
            for prompt in results.prompts
            for table in _of_prompt(results, form, datasets, methods, prompt, choice)
        ]
    return [_table(results, form, datasets, methods, choice.prompt, choice)]


def guess_backbone(results: Results) -> str | None:
    """Which of the paper's backbones the runs used; None for another."""
    architectures = {str(run.config["backbone"]["architecture"]) for run in results.runs}
    for backbone in BACKBONES:
        if all(papers_name(name) == backbone for name in architectures):
            return backbone
    return None


def papers_name(architecture: str) -> str:
    """What papers call an architecture: "ViT-B-16-quickgelu" is "ViT-B/16"."""
    return re.sub(r"^(ViT-\w+)-(\d+)$", r"\1/\2", architecture.replace("-quickgelu", ""))


def _medical(results: Results, form: Layout, methods: Sequence[str], choice: Choice) -> list[Table]:
    """As the paper has it: a table for each system, with its own data set."""
    tables = []
    for paper in layout_tables(form.name, None):
        datasets = [name for name in paper.datasets if name in results.datasets]
        own = [name for name in methods if name in paper.methods or choice.methods is not None]
        if datasets and own:
            tables.append(_table(results, form, datasets, own, choice.prompt, choice, paper))
    if not tables:
        raise OtptError(
            "The runs hold no data set of the layout 'medical' with one of its methods; they hold "
            f"{', '.join(results.datasets)}. Choose with --datasets and --methods."
        )
    return tables


def _of_prompt(
    results: Results, form: Layout, datasets: Sequence[str], methods: Sequence[str], prompt: str, choice: Choice
) -> list[Table]:
    """The table of one prompt; none if nothing was predicted with it."""
    own = [dataset for dataset in datasets if prompt in results.prompts_of(dataset)]
    used = [method for method in methods if any(prompt in results.prompts_of(dataset, method) for dataset in own)]
    return [_table(results, form, own, used, prompt, choice)] if used else []


def _table(
    results: Results,
    form: Layout,
    datasets: Sequence[str],
    methods: Sequence[str],
    prompt: str | None,
    choice: Choice,
    paper: PaperTable | None = None,
) -> Table:
    prompts = {(d, method): prompt_of(results, d, method, prompt) for d in datasets for method in methods}
    notes = [progress_note(results)] if results.partial else []
    notes += _unequal(results, datasets, prompts)
    if choice.paper is None:
        paper = None
    elif paper is None:
        paper = _paper_table(form, choice.paper, prompt)
        if paper is None:
            notes.append("The paper has no such table for this backbone and prompt.")
    own_sets = {dataset for dataset in datasets if results.is_own(dataset)}
    if paper is not None:
        notes += [own_note(dataset) for dataset in datasets if dataset in own_sets and dataset in paper.datasets]
    if paper is not None and paper.in_words and paper.prompt not in prompts.values():
        notes.append(f"The paper's prompt is {paper.prompt!r}.")
    groups: list[Sequence[str]] = [[dataset] for dataset in datasets]
    if form.average:
        groups.append(datasets)
    lines = []
    for method in methods:
        for metric in form.metrics:
            entries = [entry_of(results, own, prompts, method, metric, choice.level) for own in groups]
            if paper is not None:
                entries = _beside(entries, groups, paper, method, metric, own_sets)
                if form.average:
                    printed = None if own_sets else paper.printed_average(method, metric)
                    wrong = None if own_sets else wrong_average(paper, method, metric)
                    entries.append(Entry(paper=None if printed is None else number(printed), wrong=bool(wrong)))
                    if wrong is not None:
                        notes.append(
                            f"! Table {paper.number} prints {wrong.printed} as average {METRIC_TITLES[metric]} of "
                            f"{method_title(method)}; the mean of its row is {wrong.mean:.2f}."
                        )
            lines.append(Line(method, metric, tuple(entries)))
    columns = [Column(dataset, dataset_title(dataset)) for dataset in datasets]
    if form.average:
        columns.append(Column(AVERAGE, "Avg"))
        if paper is not None:
            columns.append(Column(PRINTED, "printed Avg"))
    title = f"{form.title}: {prompt!r}" if form.name == "prompts" else form.title
    if choice.level is not None and form.name != "seeds":
        notes.append(f"Intervals: {100 * choice.level:g} % bootstrap over images.")
    printed_in = None if paper is None else paper.number
    return Table(form.name, title, tuple(columns), mark_best(lines), tuple(notes), choice.level, printed_in)


def _unequal(results: Results, datasets: Sequence[str], prompts: Mapping[tuple[str, str], str]) -> list[str]:
    """Notes where a run has grown unevenly: not all methods have the same seeds or images of a data set."""
    notes = []
    for dataset in datasets:
        own = [m for d, m in prompts if d == dataset and m in results.methods and results.prompts_of(dataset, m)]
        seeds = {method: results.seeds_of(dataset, method, prompts[dataset, method]) for method in own}
        if len({frozenset(each) for each in seeds.values()}) > 1:
            words = "; ".join(f"{method} {', '.join(map(str, each))}" for method, each in seeds.items())
            notes.append(f"The methods have different seeds on {dataset!r}: {words}.")
        images = {method: results.images_of(dataset, method) for method in own}
        if len(set(images.values())) > 1:
            words = "; ".join(f"{method} {count}" for method, count in images.items())
            notes.append(f"The methods have different numbers of images of {dataset!r}: {words}.")
    return notes


def entry_of(
    results: Results,
    datasets: Sequence[str],
    prompts: Mapping[tuple[str, str], str],
    method: str,
    metric: str,
    level: float | None = None,
) -> Entry:
    """A metric of a method averaged over data sets; ``prompts`` by (data set, method)."""
    keys = [
        [ResultKey(d, seed, prompts[d, method], method) for seed in results.seeds_of(d, method, prompts[d, method])]
        for d in datasets
    ]
    scores = [results.score(key) for of_seeds in keys for key in of_seeds]
    known = [score for score in scores if score is not None and score.metrics is not None]
    if not all(keys) or len(known) < len(scores):
        return Entry()
    partial = any(results.is_partial(key) for of_seeds in keys for key in of_seeds)
    plain = metric.removesuffix(DEVIATION)
    if metric != plain:
        # the paper averages the deviations of the data sets
        own = [number_of(known, plain, [dataset]) for dataset in datasets]
        deviations = [each.deviation for each in own if each is not None and each.deviation is not None]
        return Entry(100.0 * mean(deviations), partial=partial) if len(deviations) == len(own) else Entry()
    average = number_of(known, plain, datasets)
    if average is None:  # other seeds on another data set
        return Entry()
    deviation = None if average.deviation is None else 100.0 * average.deviation
    low = high = None
    if level is not None:
        rows = [[results.rows(key) for key in of_seeds] for of_seeds in keys]
        found = centred_interval(*resampled(plain, rows, results.bins, results.side), level, METRICS[plain].range)
        low, high = 100.0 * found.low, 100.0 * found.high
    return Entry(100.0 * average.value, deviation, low, high, partial=partial)


def own_note(dataset: str) -> str:
    """Why nothing of a paper stands beside a data set that only shares the name of one of its own."""
    return f"The runs' {dataset!r} is data of your own, not the registered data set, so nothing is shown beside it."


def _beside(
    entries: Sequence[Entry],
    groups: Sequence[Sequence[str]],
    paper: PaperTable,
    method: str,
    metric: str,
    own_sets: Collection[str],
) -> list[Entry]:
    """The entries with the paper's numbers; its average is the mean of its values of the same data sets.

    Data of the user's own, whatever they are called, have none.
    """
    return [
        entry if set(group) & set(own_sets) else replace(entry, paper=paper.mean(method, metric, group))
        for entry, group in zip(entries, groups, strict=True)
    ]


def _paper_table(form: Layout, backbone: str, prompt: str | None) -> PaperTable | None:
    found = layout_tables(form.name, backbone)
    if form.name == "prompts":
        found = [table for table in found if table.prompt == prompt]
    # Tables 9 and 10 are both of SCE; the longer one has all data sets
    return max(found, key=lambda table: len(table.datasets), default=None)
