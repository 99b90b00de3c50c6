"""``otpt reproduce PAPER``: plan or run a paper's tables."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import otpt
from otpt.cli import options as o
from otpt.cli.evaluate import INCOMPLETE, note_missing_classes
from otpt.cli.terminal import command_line, make_progress, note, print_json, terminal_width
from otpt.errors import OtptError

if TYPE_CHECKING:
    from otpt.report.reproduce import Plan, PlannedRun, PlannedTable


def reproduce(
    paper: Annotated[str, o.option("paper (O-TPT) or cots (its peers, as CoTS measured them)", metavar="PAPER")],
    /,
    *,
    go: Annotated[bool, o.option("run the plan (default: only print it)")] = False,
    bench: Annotated[bool, o.option("the same plan on the emoji sets with the embedded model")] = False,
    data: o.Data = None,
    tables: Annotated[o.Several, o.option("only these tables of the paper", metavar="N")] = None,
    datasets: Annotated[o.Several, o.option("only these data sets", metavar="NAME")] = None,
    methods: Annotated[o.Several, o.methods("only these methods of the paper")] = None,
    seeds: Annotated[o.Numbers, o.seeds("seeds of the views (default: the paper's number)")] = None,
    limit: o.Limit = None,
    views: Annotated[int, o.setting("views")] = 64,
    paper_backbone: Annotated[
        tuple[Literal["ViT-B/16", "RN50"], ...] | None, o.option("backbones of the paper (default: both)")
    ] = None,
    out: Annotated[Path | None, o.out("folder of the runs (default: runs/PAPER)", "RUNS")] = None,
    workers: o.Workers = None,
    threads: o.Threads = None,
    json: o.Json = False,
    model: o.ModelOptions = o.ModelOptions(),
    cache: o.CacheOptions = o.CacheOptions(),
) -> int:
    """Print which runs a paper's tables need, which data are missing, and how long it takes; with --go, run them table
    by table and print each with the paper's numbers. An interrupted run resumes when the command is repeated.

    otpt reproduce paper
    otpt reproduce paper --tables 2 --datasets dtd pets --data ~/data --go
    otpt reproduce cots --bench --limit 20 --go
    """
    from otpt.report.papers import BACKBONES
    from otpt.report.reproduce import STUDIES, evaluate_commands, make_plan

    engine = o.local_engine(workers, model.device)
    o.use_threads(threads)
    plan = make_plan(
        paper,
        data=data,
        out=out,
        backbones=paper_backbone or BACKBONES,
        tables=tables,
        datasets=datasets,
        methods=methods,
        seeds=seeds,
        limit=limit,
        model=model.chosen,
        bench=bench,
        seconds=None if model.device not in ("auto", "cpu") else partial(_seconds, views=views),
    )
    commands = evaluate_commands(plan, data=data, views=views, limit=limit)
    if not json:
        _print_plan(plan)
        print("\nThe same as commands:", *commands, sep="\n  ")
        print("" if go else "\nAdd --go to run it.", flush=True)
    made: list[otpt.report.Table] = []
    unreadable, done = 0, set[Path]()
    ready = [run for run in plan.runs if run.missing is None]
    if go and not ready:
        raise OtptError(
            f"None of the data sets is present: {', '.join(plan.missing)}. Give their folder with --data, or try the "
            "plan on the emoji sets with --bench."
        )
    if go:
        note_missing_classes([run.make() for run in {run.dataset: run for run in ready}.values()], limit)
    load: Any = model.load
    if isinstance(engine, otpt.evaluation.LocalEngine):  # other processes cannot receive a cached function
        load = lru_cache(maxsize=1)(load)
    where: dict[str, Any] = {"cache": cache.open(), "engine": engine, "device": model.device, "threads": threads}
    for table in plan.tables if go else ():
        own = [run for run in table.runs if run.missing is None]
        for run in own:
            if run.folder not in done:
                done.add(run.folder)
                settings = otpt.evaluation.EvaluationSettings(
                    methods=run.methods,
                    prompts=run.prompts,
                    seeds=run.seeds,
                    views=views,
                    augmix=run.augmix,
                    official_precision=True,  # the rounding of the official scripts, whose numbers are the paper's
                    limit=limit,
                )
                result = otpt.evaluation.evaluate(
                    run.make(),
                    partial(load, backbone=run.model),
                    settings,
                    out=run.folder,
                    progress=make_progress() if run.left else None,
                    command=command_line(),
                    **where,
                )
                unreadable += result.unreadable
        if own:
            made += (found := _tables(table, own, STUDIES[paper]))
            if not json:
                print(f"Table {table.number}, {table.backbone}:")
                print(otpt.report.render(found, "terminal", width=terminal_width()), end="")
    if json:
        print_json({"plan": plan.to_dict(), "tables": [table.to_dict() for table in made], "commands": commands})
    return INCOMPLETE if unreadable else 0


def _tables(table: PlannedTable, runs: list[PlannedRun], paper: str) -> list[otpt.report.Table]:
    """Return the table in its layout, with the O-TPT paper's numbers; or next to another paper's."""
    from otpt.report.papers import OTPT

    results = otpt.report.open_results([run.folder for run in runs])
    bench = table.backbone == "bench"
    shown = otpt.report.build_tables(
        results,
        table.layout,
        datasets=[run.dataset for run in runs],
        methods=[name for name in table.methods if name in results.methods],
        prompt=table.prompt,
        paper=table.backbone if paper == OTPT and not bench else None,
    )
    if paper == OTPT or bench:
        return shown
    try:
        return [
            *shown,
            *otpt.report.compare_with_paper(results, paper, backbone=table.backbone, tables=[table.number]),
        ]
    except OtptError as error:
        note(str(error))
        return shown


def _seconds(run: PlannedRun, *, views: int) -> float | None:
    """Estimate the time of the remaining images on this machine, or return None."""
    from otpt.cli.costs import HERE, predict_cost

    entry = otpt.data.find_entry(run.dataset)
    if run.left is None or entry is None or entry.classes is None or run.model == "pocket":
        return None
    augmix = entry.augmix if run.augmix is None else run.augmix
    methods = otpt.methods.get_methods(run.methods)
    return run.left * predict_cost(run.model, methods, HERE, entry.classes, views, augmix).seconds


def _print_plan(plan: Plan) -> None:
    seen: set[Path] = set()
    for table in plan.tables:
        head = f"Table {table.number:<12} {table.layout:<12} {table.backbone:<9}"
        if table.needs is not None:
            print(f"{head} needs {table.needs}")
            continue
        new = [run for run in table.runs if run.folder not in seen]
        seen.update(run.folder for run in new)
        methods = f", {len(table.runs[0].methods)} methods"
        print(f"{head} {_amount(new, methods) if new else 'made of the runs above'}")
        for run in new:
            times = f" × {len(run.seeds)} seeds" if len(run.seeds) > 1 else ""
            state = "missing" if run.missing else "finished" if run.left == 0 else f"{run.left} to do"
            print(f"    {run.dataset}: {run.images} images{times}, {state}, in {str(run.folder)!r}")
    print(f"\nAll together {_amount(plan.runs)}.")
    if plan.missing:
        print("\nMissing data sets:")
        for name, why in plan.missing.items():
            print(f"  {name}: {why}")
    for why in dict.fromkeys(plan.left_out.values()):
        print(f"\nLeft out: {', '.join(name for name, own in plan.left_out.items() if own == why)} ({why}).")


def _amount(runs: Sequence[PlannedRun], methods: str = "") -> str:
    """Describe the number of images to predict and the time, if it is known."""
    known = [run.seconds for run in runs if run.seconds is not None]
    time = f", about {otpt.evaluation.duration(sum(known))} here" if len(known) == len(runs) else ""
    return f"{sum(run.left or 0 for run in runs)} images to predict{methods}{time}"
