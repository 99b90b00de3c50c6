"""Ours beside what other papers print: one row for each data set, method and prompt that both have.

Numbers stand beside each other only where they can mean the same: the paper's backbone, registered data sets with
their own classes, averages over exactly the paper's data sets. What else differs is said beneath.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from otpt.data.registered.entry import find_entry
from otpt.errors import OtptError
from otpt.report.papers.paper import PaperTable, number
from otpt.report.papers.published import Erratum, Paper, method_key
from otpt.report.results import Results
from otpt.report.tables.building import entry_of, own_note, papers_name
from otpt.report.tables.layouts import METRIC_TITLES, progress_note, wanted_of
from otpt.report.tables.protocols import differences, in_words
from otpt.report.tables.table import AVERAGE, Entry

METRICS = ("accuracy", "ece")


@dataclass(frozen=True)
class BesideRow:
    """One method with one prompt on a data set, or averaged over all of the table.

    Attributes:
        dataset: its name, or "average".
        method: the runs' name of it; ``theirs`` is the paper's, which may have other parts of the same meaning.
        measured: who measured the paper's number.
        entries: for each of :data:`METRICS`.
    """

    dataset: str
    method: str
    theirs: str
    prompt: str
    measured: str
    entries: Mapping[str, Entry]


@dataclass(frozen=True)
class Beside:
    """The rows that runs share with one table of a paper, and what a reader must know."""

    paper: Paper
    table: PaperTable
    rows: tuple[BesideRow, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Subset:
    """What of the runs is looked at; None for all."""

    datasets: Sequence[str] | None = None
    methods: Sequence[str] | None = None
    prompt: str | None = None


def set_beside(
    results: Results, paper: Paper, subset: Subset | None = None, *, backbone: str | None = None
) -> list[Beside]:
    """Ours beside the tables of a paper; :class:`OtptError` says what is missing where nothing fits.

    ``backbone`` is taken for that of the runs, whatever they say of their model.
    """
    subset = subset or Subset()
    backbone = backbone or _backbone(results, paper)
    datasets = results.datasets if subset.datasets is None else wanted_of("data set", subset.datasets, results.datasets)
    methods = results.methods if subset.methods is None else wanted_of("method", subset.methods, results.methods)
    if subset.prompt is not None:
        wanted_of("prompt", [subset.prompt], results.prompts)
    ours = {method_key(method): method for method in methods}
    strange = [name for name in datasets if not _is_registered(results, name)]
    own = [name for name in datasets if name not in strange]
    made, reasons = [], []
    for table in (each for each in paper.tables if each.backbone == backbone):
        shared = {theirs: ours[method_key(theirs)] for theirs in table.methods if method_key(theirs) in ours}
        rows = [
            row
            for group in _groups(table, own)
            for theirs, method in shared.items()
            for row in _rows(results, paper, table, group, theirs, method, subset.prompt)
        ]
        lacking = [name for name in table.datasets if name not in own]
        if rows:
            notes = _notes(results, paper, table, rows, [name for name in strange if name in table.datasets])
            only = [theirs for theirs in shared if not any(row.theirs == theirs for row in rows)]
            if only:
                notes.append(f"Of {', '.join(only)} the paper has averages only; they also need {', '.join(lacking)}.")
            made.append(Beside(paper, table, tuple(rows), tuple(notes)))
        elif any(metric in METRICS for theirs in shared for metric in table.rows[theirs]):
            reasons.append((len(lacking) - len(table.datasets), len(lacking), _reason(table, shared, lacking)))
    if not made:
        raise _nothing(results, paper, backbone, reasons, strange)
    return made


def _backbone(results: Results, paper: Paper) -> str:
    """The runs' backbone as the paper calls it; OpenAI's weights, as far as the name says."""
    config = results.runs[0].config["backbone"]
    architecture, name = str(config["architecture"]), str(config["name"])
    found = papers_name(architecture)
    family, _, tag = name.partition("/")
    if found not in paper.backbones or (family == architecture and tag not in {"", "openai"}):
        raise OtptError(
            f"The paper {paper.name!r} has numbers of {_or(paper.backbones)} with OpenAI's weights, and these runs are "
            f"of {name!r}; evaluate with one of those backbones, such as --backbone ViT-B-16/openai."
        )
    return found


def _is_registered(results: Results, name: str) -> bool:
    """Whether a data set of the runs is the registered one: loaded by its name, with the classes of that name."""
    if results.is_own(name):
        return False
    entry, classes = find_entry(name), results.config_of(name)["classes"]
    if entry is None or name != entry.name or len(classes) != entry.classes:
        return False
    # names of ImageNet's classes come from open_clip, which is heavy to import; their number says enough
    return entry.names.startswith("imagenet") or sorted(classes) == sorted(entry.class_list().names)


def _groups(table: PaperTable, own: Sequence[str]) -> list[tuple[str, ...]]:
    """Each data set, and all of the table where the runs have all."""
    groups = [(name,) for name in table.datasets if name in own]
    if len(table.datasets) > 1 and len(groups) == len(table.datasets):
        return [*groups, table.datasets]
    return list(groups)


def _rows(
    results: Results,
    paper: Paper,
    table: PaperTable,
    group: Sequence[str],
    theirs: str,
    method: str,
    wanted: str | None,
) -> list[BesideRow]:
    """A row for each prompt that all of the group have; none if the paper prints nothing there."""
    printed = {metric: _printed(table, theirs, metric, group) for metric in METRICS}
    if all(value is None for value in printed.values()):
        return []
    held = [results.prompts_of(name, method) for name in group]
    prompts = [prompt for prompt in held[0] if all(prompt in each for each in held) and wanted in {None, prompt}]
    wrong = {each.metric for each in _errata(paper, table, theirs)} if len(group) > 1 else set()
    rows = []
    for prompt in prompts:
        of_prompt = {(name, method): prompt for name in group}
        entries = {
            metric: replace(
                entry_of(results, group, of_prompt, method, metric), paper=printed[metric], wrong=metric in wrong
            )
            for metric in METRICS
        }
        name = group[0] if len(group) == 1 else AVERAGE
        rows.append(BesideRow(name, method, theirs, prompt, paper.measured(theirs), entries))
    return rows


def _printed(table: PaperTable, method: str, metric: str, group: Sequence[str]) -> float | None:
    """The printed number, or average; where no average is printed, the mean of the printed row."""
    if len(group) == 1 and len(table.datasets) > 1:
        return table.value(method, metric, group[0])
    average = table.printed_average(method, metric)
    return table.mean(method, metric, group) if average is None else number(average)


def _notes(
    results: Results, paper: Paper, table: PaperTable, rows: Sequence[BesideRow], strange: Sequence[str]
) -> list[str]:
    notes = [progress_note(results)] if results.partial else []
    notes.append(in_words(paper, table))
    by_source: dict[str, list[str]] = {}
    for row in rows:
        by_source.setdefault(row.measured, [])
        if row.theirs not in by_source[row.measured]:
            by_source[row.measured].append(row.theirs)
    named = (f"{', '.join(names)}: {who}" for who, names in by_source.items())
    notes.append(f"Measured: {'; '.join(named)}.")
    notes.append(differences(results, paper, table, {(row.dataset, row.method, row.prompt) for row in rows}))
    for prompt, mark in marks(table, rows).items():
        notes.append(f"{mark} with the prompt {prompt!r}; the paper's is {table.prompt!r}.")
    for name in strange:
        if results.is_own(name):
            notes.append(own_note(name))
        else:
            notes.append(
                f"The runs' {name!r} has other classes than the data set of that name, so nothing is beside it."
            )
    for row in rows:
        for each in _errata(paper, table, row.theirs) if row.dataset == AVERAGE else ():
            metric = METRIC_TITLES[each.metric]
            notes.append(f"! {each.printed} as {metric} of {each.method}, elsewhere {each.other}: {each.reason}.")
    return list(dict.fromkeys(notes))


def marks(table: PaperTable, rows: Sequence[BesideRow]) -> dict[str, str]:
    """Prompts other than the paper's → the small figure that marks their rows."""
    other = dict.fromkeys(row.prompt for row in rows if row.prompt != table.prompt)
    return {prompt: "".join(_SMALL[int(digit)] for digit in str(i)) for i, prompt in enumerate(other, start=1)}


_SMALL = "⁰¹²³⁴⁵⁶⁷⁸⁹"


def _errata(paper: Paper, table: PaperTable, method: str) -> list[Erratum]:
    where = (table.number, table.backbone, method)
    return [each for each in paper.errata if (each.table, each.backbone, each.method) == where]


def _reason(table: PaperTable, methods: Iterable[str], lacking: Sequence[str]) -> str:
    named = ", ".join(methods)
    if not table.datasets:
        return f"its averages of {named} are over data sets that are not known here"
    if lacking:
        return f"for its {table.backbone} numbers of {named} they lack {', '.join(lacking)}, by their registered names"
    return f"they have none of {named} with this prompt on {', '.join(table.datasets)}"


def _nothing(
    results: Results, paper: Paper, backbone: str, reasons: Sequence[tuple[int, int, str]], strange: Sequence[str]
) -> OtptError:
    head = f"Nothing of these runs can stand beside the paper {paper.name!r}:"
    if reasons:
        named = f"; not registered data sets with their own classes: {', '.join(strange)}" if strange else ""
        return OtptError(f"{head} {min(reasons)[-1]}{named}.")  # of the table whose data sets they hold most of
    theirs = dict.fromkeys(name for table in paper.tables if table.backbone == backbone for name in table.methods)
    return OtptError(
        f"{head} on {backbone} it has {', '.join(theirs)}, and the runs hold {', '.join(results.methods)}."
    )


def _or(names: Sequence[str]) -> str:
    return " or ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
