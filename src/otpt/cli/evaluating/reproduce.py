"""``otpt reproduce paper --data data --go``: a paper's tables, from the data sets that are found."""

from __future__ import annotations

import argparse
import json
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from otpt.cli.evaluating.evaluate import UNREADABLE, backbone_on, chosen_reporter
from otpt.cli.evaluating.studies import beside_paper, chosen_methods, commands, print_commands
from otpt.cli.information.cache import add_cache_options, chosen_cache
from otpt.cli.notes import tell, tell_missing_classes
from otpt.cli.options.engines import local_engine
from otpt.cli.options.models import add_device_options
from otpt.cli.options.spellings import (
    add_methods_option,
    add_old_spelling,
    add_out_option,
    add_seeds_option,
    add_threads_option,
    add_workers_option,
    use_threads,
)
from otpt.cli.results.table import print_beside, print_tables
from otpt.errors import OtptError
from otpt.report.papers.paper import BACKBONES
from otpt.report.papers.published import PAPERS
from otpt.report.tables.formats import table_data

if TYPE_CHECKING:
    from otpt.costs import Device
    from otpt.evaluation import Engine
    from otpt.features import FeatureCache
    from otpt.report.papers.plans import Conditions, Plan, PlannedRun, PlannedTable
    from otpt.report.tables.beside import Beside
    from otpt.report.tables.table import Table

BENCH_NOTE = (
    "None of the paper's data sets is present: this is the emoji bench with a small model. It shows that every step "
    "works; its numbers are not the paper's and cannot be."
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of ``reproduce``."""
    parser.description = (
        "Print which runs a paper's tables need, which data are missing, and how long it takes; with "
        "--go, run them table by table and print each table with the paper's numbers. An interrupted run resumes when "
        "the command is repeated."
    )
    parser.add_argument("what", metavar="PAPER", help="paper (that of O-TPT), cots (its peers, as CoTS measured them)")
    parser.add_argument("--go", action="store_true", help="run the plan (default: only print it)")
    parser.add_argument("--data", type=Path, metavar="ROOT", help="folder with the data sets")
    parser.add_argument("--paper-backbone", nargs="+", metavar="NAME", help=f"{', '.join(BACKBONES)} (default: both)")
    parser.add_argument(
        "--backbone",
        nargs="+",
        metavar="SPEC",
        help="weights to use instead of OpenAI's for the paper's backbone, such as a local file",
    )
    add_old_spelling(parser, "--model", "--backbone", dest="backbone", nargs=1, metavar="SPEC")
    parser.add_argument("--tables", nargs="+", type=_number, metavar="N", help="only these tables of the paper")
    parser.add_argument("--datasets", nargs="+", metavar="NAME", help="only these data sets")
    add_methods_option(parser, default=None, words="only these methods of the paper")
    add_seeds_option(parser, default=None, words="seeds of the views, in place of the paper's number of them")
    parser.add_argument("--limit", type=int, metavar="N", help="only N images of each set, all classes in proportion")
    parser.add_argument(
        "--views", type=int, default=64, metavar="N", help="views per image, including the clean one (default: 64)"
    )
    add_out_option(parser, metavar="RUNS", words="(default: runs/PAPER)")
    add_workers_option(parser)
    add_threads_option(parser)
    add_device_options(parser)
    add_cache_options(parser)
    parser.add_argument("--json", action="store_true", help="plan and tables as one JSON object")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the plan; with ``--go``, run it."""
    from otpt.backbones.devices import pick_device
    from otpt.evaluation import LocalEngine
    from otpt.evaluation.settings import each_once
    from otpt.report.papers.plans import Conditions, plan_data
    from otpt.report.papers.reproduce import get_study, make_plan

    study = get_study(options.what)
    _tell_backbones_apart(options)
    if options.seeds is not None:
        each_once("seed", options.seeds)
    engine = local_engine(options)
    use_threads(options.threads)
    device = pick_device(options.device).type
    cache = chosen_cache(options)
    methods, left_out = chosen_methods(options, study)
    conditions = Conditions(
        data=options.data,
        out=options.out or Path("runs") / options.what,
        backbones=options.paper_backbone or list(BACKBONES),
        tables=options.tables,
        datasets=options.datasets,
        methods=methods,
        seeds=options.seeds,
        limit=options.limit,
        views=options.views,
        device=device,
        machine=_machine(device, options.cache),
    )
    plan = make_plan(conditions, study)
    published = options.what in PAPERS
    if options.model is not None and len({run.folder.parts[-3] for run in plan.runs}) > 1:
        raise OtptError(
            "--backbone was given for two backbones of the paper; choose one with --paper-backbone ViT-B/16 or "
            "--paper-backbone RN50."
        )
    if not options.json:
        _print_plan(plan, conditions)
        if published:
            print_commands(plan, options, conditions)
        for why in dict.fromkeys(left_out.values()):
            print(f"\nLeft out: {', '.join(name for name in left_out if left_out[name] == why)} ({why}).")
        print("" if options.go else "\nAdd --go to run it.", flush=True)
    tables: list[Table] = []
    others: list[Beside] = []
    unreadable, done = 0, set[Path]()
    if options.go:
        tell_missing_classes([run.make() for run in {run.dataset: run for run in plan.runs}.values()], options.limit)
        load: Any = partial(backbone_on, precision=options.precision, compile=options.compile)
        if isinstance(engine, LocalEngine):  # what is cached cannot be sent to other processes
            load = lru_cache(maxsize=1)(load)
        for table in plan.tables:
            new = [run for run in table.runs if run.folder not in done]
            unreadable += sum(_run(run, table, conditions, options, load, cache, engine) for run in new)
            done.update(run.folder for run in new)
            if table.runs:
                made = _tables(table, plan.bench)
                tables += made
                if not options.json:
                    print(_heading(table, plan.bench))
                    print_tables(made)
                if published and not plan.bench:
                    theirs, why = beside_paper(table, options.what)
                    others += theirs
                    if not options.json:
                        print_beside(theirs) if theirs else print(f"{why}\n")
    if options.json:
        shown: dict[str, Any] = {"plan": plan_data(plan), "tables": [table_data(table) for table in tables]}
        if published:
            from otpt.report.tables.beside_formats import beside_data

            shown["left_out"], shown["commands"] = dict(left_out), commands(plan, options, conditions)
            shown["beside"] = [beside_data(each) for each in others]
        print(json.dumps(shown, indent=2, ensure_ascii=False))
    return UNREADABLE if unreadable else 0


def _run(
    run: PlannedRun,
    table: PlannedTable,
    conditions: Conditions,
    options: argparse.Namespace,
    load: Any,
    cache: FeatureCache | None,
    engine: Engine,
) -> int:
    """Do what is missing of a run; how many of its images could not be read."""
    from otpt.evaluation import Job, Settings, run_job
    from otpt.report.papers.rates import Rates
    from otpt.report.papers.reproduce import BENCH_MODEL, MODELS
    from otpt.views import ViewRecipe

    # the official scripts' rounding, since their numbers are the paper's
    settings = Settings(
        methods=run.methods,
        prompts=run.prompts,
        seeds=run.seeds,
        recipe=ViewRecipe(n_views=conditions.views),
        augmix=run.augmix,
        official_precision=True,
        limit=conditions.limit,
    )
    job = Job(
        backbone=partial(load, options.model or MODELS.get(table.backbone, BENCH_MODEL)),
        datasets=[run.make],
        settings=settings,
        folder=run.folder,
        cache=cache,
        device=options.device,
        threads=options.threads,
        command=options.command_line,
    )
    result = run_job(job, engine, reporter=chosen_reporter() if run.left else None)
    if run.left:
        rates = Rates(conditions.out)
        rates.add(table.backbone, run.group, conditions.device, images=run.left, seconds=result.seconds)
    return result.unreadable


def _tell_backbones_apart(options: argparse.Namespace) -> None:
    """``--backbone`` is a model here as everywhere; ``--backbone RN50`` once chose tables of the paper."""
    given = options.backbone or []
    if given and all(name in BACKBONES for name in given):
        tell(f"--backbone {' '.join(given)} is an old spelling; write --paper-backbone {' '.join(given)}.")
        options.paper_backbone, given = given, []
    if len(given) > 1:
        raise OtptError(f"--backbone was given {len(given)} models; expected one, in place of OpenAI's weights.")
    options.model = given[0] if given else None


def _tables(table: PlannedTable, bench: bool) -> list[Table]:
    from otpt.report import open_results
    from otpt.report.tables.building import Choice, build_tables

    results = open_results([run.folder for run in table.runs])
    choice = Choice(
        datasets=[run.dataset for run in table.runs],
        methods=table.methods,
        prompt=table.prompt,
        paper=None if bench or isinstance(table.number, str) else table.backbone,
    )
    return build_tables(results, table.layout, choice)


def _heading(table: PlannedTable, bench: bool) -> str:
    if bench:
        return f"In the form of Table {table.number}, on the emoji bench (not the paper's data):"
    return f"Table {table.number}, {table.backbone}:"


def _number(text: str) -> int | str:
    """The number of a table of the O-TPT paper, or the name of one of another."""
    return int(text) if text.isdecimal() else text


def _machine(device: str, cache: Path | None) -> Device | None:
    """What times are predicted for: this machine, or its GPU if the table has it, else the A6000 of the published
    times."""
    from otpt.cli.evaluating.plan import HERE, chosen_device
    from otpt.costs import find_device
    from otpt.costs.devices import name_of

    if device == "cpu":
        return chosen_device(HERE, None, None, cache)
    if device != "cuda":
        return None
    import torch

    return find_device(name_of(torch.cuda.get_device_name()) or "a6000")


def _print_plan(plan: Plan, conditions: Conditions) -> None:
    if plan.bench:
        print(f"{BENCH_NOTE}\n")
    seen: set[Path] = set()
    total: float | None = 0.0
    for table in plan.tables:
        where = "emoji bench" if plan.bench and table.needs is None else table.backbone
        number = f"{table.number:>2}  {table.layout:<12}" if isinstance(table.number, int) else f"{table.number:<14}"
        head = f"Table {number} {where:<11}"
        if table.needs is not None:
            print(f"{head} needs {table.needs}")
            continue
        new = [run for run in table.runs if run.folder not in seen]
        seen.update(run.folder for run in new)
        images = sum(run.left for run in new)
        known = [run.seconds for run in new if run.seconds is not None]
        seconds = sum(known) if len(known) == len(new) else None
        total = None if total is None or seconds is None else total + seconds
        words = [f"{len(table.runs)} of {len(table.datasets)} data sets"]
        if not new and table.runs:
            words.append("made of the runs above")
        elif new:
            words.append(f"{images} images to predict, {len(new[0].methods)} methods: {_time(seconds)}")
        print(f"{head} {', '.join(words)}")
        for run in new:
            times = f" × {len(run.seeds)} seeds" if len(run.seeds) > 1 else ""
            print(f"          {run.dataset}: {run.images} images{times}, {run.state}, in {str(run.folder)!r}")
    print(f"\nAll together {_time(total)}, {_source(plan, conditions)}.")
    shown = {
        name: why for name, why in plan.missing.items() if plan.bench or any(name in t.missing for t in plan.tables)
    }
    if shown:
        print("\nMissing of the paper's data sets:")
        for name, why in shown.items():
            print(f"  {name}: {why}")


def _time(seconds: float | None) -> str:
    from otpt.evaluation import duration

    return "time not known" if seconds is None else f"about {duration(seconds)}"


def _source(plan: Plan, conditions: Conditions) -> str:
    measured = {run.measured for run in plan.runs if run.seconds is not None}
    if not measured:
        return "since nothing was measured yet: the first run measures"
    machine = conditions.machine
    predicted = "" if machine is None else f"as predicted for {machine.title}, {machine.assumed} (see 'otpt plan')"
    words = {True: "as measured here", False: predicted}
    return " and ".join(words[each] for each in sorted(measured, reverse=True))
