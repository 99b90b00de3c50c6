"""Comparison of results with the numbers of a paper, joined on data set, method and metric.

Numbers are compared only where they can mean the same: the paper's backbone, registered data sets with their own
classes, averages over exactly the paper's data sets. Other differences are notes below.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import pandas as pd

from otpt.errors import OtptError
from otpt.report import Results, Table
from otpt.report.results import check_names
from otpt.report.selection import AVERAGE
from otpt.report.tables import make_cells, progress_notes
from otpt_papers.papers import (
    Paper,
    get_paper,
    mark_errata,
    method_key,
    paper_backbone,
    printed_values,
    table_datasets,
    user_data_note,
)
from otpt_papers.protocol import Deviations, find_deviations, is_registered
from otpt_papers.tables import PaperTable

METRICS = ("accuracy", "ece")


def compare_with_paper(
    results: Results,
    paper: str,
    *,
    datasets: Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
    prompt: str | None = None,
    backbone: str | None = None,
    tables: Sequence[str] | None = None,
) -> list[Table]:
    """Compare results with the tables of a paper; raise :class:`OtptError` if they share none.

    Args:
        results: runs of one model.
        paper: name of the paper, one of :data:`otpt_papers.papers.PAPERS`.
        datasets: names of data sets; None for all of the runs.
        methods: names of methods; None for all of the runs.
        prompt: prompt of the runs; None for all.
        backbone: backbone of the paper; None for that of the runs, which must have OpenAI's weights.
        tables: numbers or names of the paper's tables; None for all.
    """
    source = get_paper(paper)
    if backbone is None:
        backbone = _backbone(results, source)
    check_names("backbone of the paper", [backbone], source.backbones)
    shown_datasets = check_names("data set", datasets, results.datasets)
    shown_methods = check_names("method", methods, results.methods)
    prompts = check_names("prompt", None if prompt is None else [prompt], results.prompts)
    by_key = {method_key(method): method for method in shown_methods}
    strange = [name for name in shown_datasets if not is_registered(results, name)]
    comparable = [name for name in shown_datasets if name not in strange]
    numbers = source.numbers[source.numbers["backbone"] == backbone]
    compared: list[Table] = []
    reasons: list[_Reason] = []
    for number, printed in numbers.groupby("table", sort=False):
        if tables is not None and number not in tables:
            continue
        of_table = dict.fromkeys(printed["method"])
        shared = {by_key[method_key(name)]: name for name in of_table if method_key(name) in by_key}
        cells = _joined(results, printed, comparable, shared, prompts)
        if not cells.empty:
            compared.append(_table(results, source, printed, cells, shared, strange))
        elif shared and printed["metric"].isin(METRICS).any():
            reasons.append(_reason(printed, comparable, shared))
    if not compared:
        theirs_and_ours = f"{', '.join(dict.fromkeys(numbers['method']))}, the runs hold {', '.join(shown_methods)}"
        reason = min(reasons).words if reasons else f"on {backbone} it has {theirs_and_ours}"
        hint = f"; not registered data sets with their own classes: {', '.join(strange)}" if strange else ""
        raise OtptError(f"These runs share no results with the paper {paper!r}: {reason}{hint}.")
    return compared


def _table(
    results: Results,
    paper: Paper,
    printed: pd.DataFrame,
    cells: pd.DataFrame,
    methods: Mapping[str, str],
    strange: Sequence[str],
) -> PaperTable:
    """Return the table of joined cells, with notes on the protocol, errata and data sets that are not compared."""
    number = str(printed["table"].iloc[0])
    cells, errata = mark_errata(cells, printed, methods)
    shown = set(table_datasets(printed) if AVERAGE in set(cells["dataset"]) else cells["dataset"])
    frame = results.frame[results.frame["dataset"].isin(shown) & results.frame["method"].isin(list(methods))]
    deviations = find_deviations(results.narrow(frame), paper, printed)
    cells["difference"] = deviations.difference(cells)
    protocol = _notes(results, paper, printed, cells, methods, deviations)
    has_prompts = set(cells["prompt"]) != {printed["prompt"].iloc[0]}
    return PaperTable(
        number,
        f"{paper.title}, {printed['backbone'].iloc[0]}: {number}",
        cells,
        rows=("dataset", "method", "prompt") if has_prompts else ("dataset", "method"),
        columns="metric",
        notes=(*protocol, *errata, *_strange_notes(results, printed, strange)),
        paper=number,
        across=True,
    )


class _Reason(NamedTuple):
    """Why a table of a paper has no number to compare; the smallest is the closest one."""

    minus_shared: int
    missing: int
    words: str


def _reason(printed: pd.DataFrame, datasets: Collection[str], methods: Mapping[str, str]) -> _Reason:
    """Say what is missing for a comparison with a table that shares methods with the runs."""
    of_table = table_datasets(printed)
    missing = [name for name in of_table if name not in datasets]
    backbone = printed["backbone"].iloc[0]
    if missing:
        words = f"its {backbone} numbers of {', '.join(methods.values())} need {', '.join(missing)}"
    else:
        words = f"it averages over data sets that are not known here ({', '.join(methods)})"
    return _Reason(len(missing) - len(of_table), len(missing), words)


def _strange_notes(results: Results, printed: pd.DataFrame, strange: Sequence[str]) -> Iterator[str]:
    """Yield notes on data sets that have the name of one of the paper's, but are others."""
    of_table = table_datasets(printed)
    for name in strange:
        if name in of_table and results.is_own(name):
            yield user_data_note(name)
        elif name in of_table:
            yield f"The runs' {name!r} has other classes than the data set of that name, so it is not compared."


def _joined(
    results: Results,
    printed: pd.DataFrame,
    datasets: Collection[str],
    methods: Mapping[str, str],
    prompts: Sequence[str],
) -> pd.DataFrame:
    """Join the cells of shared data sets and methods with the printed numbers."""
    of_table = table_datasets(printed)
    groups: dict[str, Sequence[str]] = {name: [name] for name in of_table if name in datasets}
    if len(of_table) > 1 and len(groups) == len(of_table):
        groups[AVERAGE] = of_table
    parts = []
    for prompt in prompts:
        scores = results.select(prompt=prompt)
        scores = scores[scores["dataset"].isin(of_table) & scores["method"].isin(list(methods))]
        with_prompt = [method for method in methods if method in set(scores["method"])]
        parts.append(make_cells(results.narrow(scores, of_table, with_prompt), groups, METRICS))
    cells = pd.concat(parts, ignore_index=True).assign(best=False)
    cells["paper"] = printed_values(cells, printed, of_table, methods)
    counts = cells.groupby(["dataset", "method", "prompt"])[["value", "paper"]].transform("count")
    cells = cells[(counts["value"] > 0) & (counts["paper"] > 0)]
    order = [*groups]
    return cells.sort_values("dataset", key=lambda names: names.map(order.index), kind="stable")


def _backbone(results: Results, paper: Paper) -> str:
    """Return the paper's name of the runs' backbone with OpenAI's weights."""
    architecture = results.runs[0].config.backbone.architecture
    backbone = paper_backbone(architecture)
    family, _, tag = results.model.partition("/")
    if backbone not in paper.backbones or (family == architecture and tag not in {"", "openai"}):
        raise OtptError(
            f"The paper {paper.name!r} has numbers of {' or '.join(paper.backbones)} with OpenAI's weights, and these "
            f"runs are of {results.model!r}; evaluate with one of those backbones, such as --backbone ViT-B-16/openai."
        )
    return backbone


def _notes(
    results: Results,
    paper: Paper,
    printed: pd.DataFrame,
    cells: pd.DataFrame,
    methods: Mapping[str, str],
    deviations: Deviations,
) -> list[str]:
    prompt, backbone = printed["prompt"].iloc[0], printed["backbone"].iloc[0]
    by_source: dict[str, list[str]] = {}
    for method in dict.fromkeys(cells["method"]):
        by_source.setdefault(paper.measured(methods[method]), []).append(methods[method])
    notes = [*progress_notes(results), paper.describe(backbone, prompt)]
    words = (f"{', '.join(names)}: {who}" for who, names in by_source.items())
    notes.append(f"Measured: {'; '.join(words)}.")
    if deviations.notes:
        notes += deviations.notes
    else:
        notes.append("The runs follow this protocol where stated.")
    return notes
