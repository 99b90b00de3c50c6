"""What ``otpt reproduce`` does for papers of published numbers beyond the O-TPT paper's own tables."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from otpt.errors import OtptError
from otpt.report.papers.published import PAPERS, get_paper

if TYPE_CHECKING:
    from otpt.report.papers.plans import Conditions, Plan, PlannedRun, PlannedTable
    from otpt.report.papers.reproduce import Study
    from otpt.report.tables.beside import Beside


def chosen_methods(options: argparse.Namespace, study: Study) -> tuple[list[str] | None, Mapping[str, str]]:
    """The methods to run, and those of the paper that cannot be, with the reason; None for all.

    A method that was asked for by name must be known; of the others, those that are not are left out.
    """
    from otpt.methods import get_method

    if options.methods is not None or options.what not in PAPERS:
        return options.methods, {}
    paper = get_paper(options.what)
    left_out = {name: why for name in paper.methods if (why := paper.lacks(name)) is not None}
    runs = dict.fromkeys(name for each in study.tables if each.layout not in study.needs for name in each.methods)
    for name in runs:
        try:
            get_method(name)
        except OtptError as error:
            left_out[name] = str(error).partition(". ")[0].rstrip(".")
    return [name for name in paper.methods if name not in left_out], left_out


def beside_paper(table: PlannedTable, name: str) -> tuple[list[Beside], str]:
    """Ours beside a paper's table; where nothing can stand there, why."""
    from otpt.report import open_results
    from otpt.report.tables.beside import Subset, set_beside

    paper = get_paper(name)
    paper = replace(paper, tables=(paper.table(str(table.number), table.backbone),))
    results = open_results([run.folder for run in table.runs])
    subset = Subset([run.dataset for run in table.runs], [each for each in table.methods if each in results.methods])
    try:
        return set_beside(results, paper, subset, backbone=table.backbone), ""
    except OtptError as error:
        return [], str(error)


def commands(plan: Plan, options: argparse.Namespace, conditions: Conditions) -> list[str]:
    """The plan's runs as commands, one for each."""
    from otpt.report.papers.commands import evaluate_command

    return [
        shlex.join(evaluate_command(run, conditions, model, _further(options)))
        for model, runs in _by_group(plan, options)
        for run in runs
    ]


def print_commands(plan: Plan, options: argparse.Namespace, conditions: Conditions) -> None:
    """The same as loops of a shell, one for each backbone and group of data sets."""
    from otpt.report.papers.commands import shell_loops

    groups = _by_group(plan, options)
    if groups:
        print("\nThe same as commands:")
    for model, runs in groups:
        print("\n".join(shell_loops(runs, conditions, model, _further(options))))


def _by_group(plan: Plan, options: argparse.Namespace) -> list[tuple[str, list[PlannedRun]]]:
    """Runs that differ in their data sets alone, with the model that they need; none on the bench."""
    from otpt.report.papers.reproduce import MODELS

    groups: dict[tuple[str, str], dict[str, PlannedRun]] = {}
    for table in plan.tables if not plan.bench else ():
        for run in table.runs:
            groups.setdefault((table.backbone, run.group), {})[run.dataset] = run
    return [(options.model or MODELS[backbone], list(runs.values())) for (backbone, _), runs in groups.items()]


def _further(options: argparse.Namespace) -> list[str]:
    chosen = {"--device": (options.device, "auto"), "--precision": (options.precision, "float32")}
    words = [word for name, (value, usual) in chosen.items() if value != usual for word in (name, value)]
    return [*words, *(["--compile"] if options.compile else [])]
