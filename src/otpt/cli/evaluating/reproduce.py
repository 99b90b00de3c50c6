"""``otpt reproduce paper --data data --go``: a paper's tables, from the data sets that are found."""

from __future__ import annotations

import argparse
import json
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from otpt.cli.evaluating.evaluate import UNREADABLE, backbone_on, chosen_reporter
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
from otpt.cli.results.table import print_tables
from otpt.errors import OtptError
from otpt.report import build_tables, compare_with_paper, open_results
from otpt.report.papers import BACKBONES, OTPT
from otpt.report.reproduce import STUDIES, Plan, PlannedRun, PlannedTable, evaluate_commands, make_plan

if TYPE_CHECKING:
    from otpt.costs import Device
    from otpt.evaluation import Engine
    from otpt.features import FeatureCache
    from otpt.report import Table


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
    parser.add_argument("--tables", nargs="+", metavar="N", help="only these tables of the paper")
    parser.add_argument(
        "--bench", action="store_true", help="the same plan on the emoji sets with the embedded model, as a test"
    )
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

    _tell_backbones_apart(options)
    if options.seeds is not None:
        each_once("seed", options.seeds)
    engine = local_engine(options)
    use_threads(options.threads)
    cache = chosen_cache(options)
    machine = _machine(pick_device(options.device).type, options.cache)
    plan = make_plan(
        options.what,
        data=options.data,
        out=options.out,
        backbones=options.paper_backbone or BACKBONES,
        tables=options.tables,
        datasets=options.datasets,
        methods=options.methods,
        seeds=options.seeds,
        limit=options.limit,
        model=options.model,
        bench=options.bench,
        seconds=partial(_seconds, machine=machine, views=options.views),
    )
    if not options.json:
        _print_plan(plan, machine)
        print("\nThe same as commands:")
        for command in evaluate_commands(plan, data=options.data, views=options.views, limit=options.limit):
            print(f"  {command}")
        print("" if options.go else "\nAdd --go to run it.", flush=True)
    tables: list[Table] = []
    unreadable, done = 0, set[Path]()
    if options.go:
        ready = [run for run in plan.runs if run.missing is None]
        if not ready:
            raise OtptError(
                f"None of the data sets is present: {', '.join(plan.missing)}. Give their folder with --data, or try "
                "the plan on the emoji sets with --bench."
            )
        tell_missing_classes([run.make() for run in {run.dataset: run for run in ready}.values()], options.limit)
        load: Any = partial(backbone_on, precision=options.precision, compile=options.compile)
        if isinstance(engine, LocalEngine):  # what is cached cannot be sent to other processes
            load = lru_cache(maxsize=1)(load)
        for table in plan.tables:
            own = [run for run in table.runs if run.missing is None]
            new = [run for run in own if run.folder not in done]
            unreadable += sum(_run(run, options, load, cache, engine) for run in new)
            done.update(run.folder for run in new)
            if own:
                made = _tables(table, own, STUDIES[options.what])
                tables += made
                if not options.json:
                    print(f"Table {table.number}, {table.backbone}:")
                    print_tables(made)
    if options.json:
        commands = evaluate_commands(plan, data=options.data, views=options.views, limit=options.limit)
        shown = {"plan": plan.to_dict(), "tables": [table.to_dict() for table in tables], "commands": commands}
        print(json.dumps(shown, indent=2, ensure_ascii=False))
    return UNREADABLE if unreadable else 0


def _run(run: PlannedRun, options: argparse.Namespace, load: Any, cache: FeatureCache | None, engine: Engine) -> int:
    """Do what is missing of a run; how many of its images could not be read."""
    from otpt.evaluation import Job, Settings, run_job
    from otpt.views import ViewRecipe

    # the official scripts' rounding, since their numbers are the paper's
    settings = Settings(
        methods=run.methods,
        prompts=run.prompts,
        seeds=run.seeds,
        recipe=ViewRecipe(n_views=options.views),
        augmix=run.augmix,
        official_precision=True,
        limit=options.limit,
    )
    job = Job(
        backbone=partial(load, run.model),
        datasets=[run.make],
        settings=settings,
        folder=run.folder,
        cache=cache,
        device=options.device,
        threads=options.threads,
        command=options.command_line,
    )
    return run_job(job, engine, reporter=chosen_reporter() if run.left else None).unreadable


def _tell_backbones_apart(options: argparse.Namespace) -> None:
    """``--backbone`` is a model here as everywhere; ``--backbone RN50`` once chose tables of the paper."""
    given = options.backbone or []
    if given and all(name in BACKBONES for name in given):
        tell(f"--backbone {' '.join(given)} is an old spelling; write --paper-backbone {' '.join(given)}.")
        options.paper_backbone, given = given, []
    if len(given) > 1:
        raise OtptError(f"--backbone was given {len(given)} models; expected one, in place of OpenAI's weights.")
    options.model = given[0] if given else None


def _tables(table: PlannedTable, runs: list[PlannedRun], paper: str) -> list[Table]:
    """The table in its layout, with the O-TPT paper's numbers; or next to those of another paper."""
    results = open_results([run.folder for run in runs])
    bench = table.backbone == "bench"
    methods = [name for name in table.methods if name in results.methods]
    shown = build_tables(
        results,
        table.layout,
        datasets=[run.dataset for run in runs],
        methods=methods,
        prompt=table.prompt,
        paper=table.backbone if paper == OTPT and not bench else None,
    )
    if paper == OTPT or bench:
        return shown
    try:
        return [*shown, *compare_with_paper(results, paper, backbone=table.backbone, tables=[table.number])]
    except OtptError as error:
        tell(str(error))
        return shown


def _seconds(run: PlannedRun, *, machine: Device | None, views: int) -> float | None:
    """Predicted time of what a run has still to do."""
    from otpt.costs import plan_dataset, read_architecture, texts_of
    from otpt.data.registered.entry import find_entry
    from otpt.methods import get_methods

    entry = find_entry(run.dataset)
    if machine is None or run.left is None or run.images is None or entry is None:
        return None
    names = run.make().class_names if run.missing is None else entry.class_list().names
    found = plan_dataset(
        read_architecture(run.model),
        texts_of(tuple(names)),
        get_methods(list(run.methods)),
        machine,
        dataset=run.dataset,
        images=run.images,
        views=views,
        augmix=entry.augmix if run.augmix is None else run.augmix,
        family=entry.family,
        prompts=len(run.prompts or ("",)),
    ).seconds
    return None if found is None else found * run.left


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


def _print_plan(plan: Plan, machine: Device | None) -> None:
    seen: set[Path] = set()
    total: float | None = 0.0
    for table in plan.tables:
        head = f"Table {table.number:<12} {table.layout:<12} {table.backbone:<9}"
        if table.needs is not None:
            print(f"{head} needs {table.needs}")
            continue
        new = [run for run in table.runs if run.folder not in seen]
        seen.update(run.folder for run in new)
        known = [run.seconds for run in new if run.seconds is not None]
        seconds = sum(known) if len(known) == len(new) else None
        total = None if total is None or seconds is None else total + seconds
        images = sum(run.left or 0 for run in new)
        words = f"{images} images to predict, {len(table.runs[0].methods)} methods: {_time(seconds)}"
        print(f"{head} {words if new else 'made of the runs above'}")
        for run in new:
            times = f" × {len(run.seeds)} seeds" if len(run.seeds) > 1 else ""
            state = "missing" if run.missing else "finished" if run.left == 0 else f"{run.left} to do"
            print(f"    {run.dataset}: {run.images} images{times}, {state}, in {str(run.folder)!r}")
    where = "" if machine is None else f", as predicted for {machine.title}, {machine.assumed} (see 'otpt plan')"
    print(f"\nAll together {_time(total)}{where}.")
    if plan.missing:
        print("\nMissing data sets:")
        for name, why in plan.missing.items():
            print(f"  {name}: {why}")
    for why in dict.fromkeys(plan.left_out.values()):
        print(f"\nLeft out: {', '.join(name for name, own in plan.left_out.items() if own == why)} ({why}).")


def _time(seconds: float | None) -> str:
    from otpt.evaluation import duration

    return "time unknown" if seconds is None else f"about {duration(seconds)}"
