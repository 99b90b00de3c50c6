"""``otpt reproduce PAPER``: plan or run a paper's tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Annotated, Literal

from otpt import evaluation
from otpt.backbones import Backbone
from otpt.cli import options as o
from otpt.cli.costs import HERE, predict_cost
from otpt.cli.evaluate import note_missing_classes
from otpt.cli.summaries import INCOMPLETE
from otpt.cli.terminal import command_line, note, print_json, say, terminal_width
from otpt.data import find_entry
from otpt.errors import OtptError
from otpt.evaluation import Evaluation, Progress, duration
from otpt.features import FeatureCache
from otpt.methods import Protocol, get_methods
from otpt.prompts import Prompt
from otpt.report import Selection, Table, open_results, render
from otpt.workers import Pool, local_pool
from otpt_papers.comparison import compare_with_paper
from otpt_papers.layouts import LAYOUTS
from otpt_papers.papers import BACKBONES, OTPT
from otpt_papers.reproduce import STUDIES, Plan, PlannedRun, PlannedTable, evaluate_commands, make_plan


@o.option_group("Options")
class PartOptions(o.Options):
    """Which part of a paper is reproduced, and on how many images."""

    bench: Annotated[bool, o.option("the same plan on the emoji sets with the embedded model")] = False
    data: o.Data = None
    tables: Annotated[o.Several, o.option("only these tables of the paper", metavar="N")] = None
    datasets: Annotated[o.Several, o.option("only these data sets", metavar="NAME")] = None
    methods: Annotated[o.Several, o.methods("only these methods of the paper")] = None
    seeds: Annotated[o.Numbers, o.seeds("seeds of the views (default: the paper's number)")] = None
    limit: o.Limit = None
    views: Annotated[int, o.setting(Protocol, "views")] = 64
    paper_backbone: Annotated[
        tuple[Literal["ViT-B/16", "RN50"], ...] | None, o.option("backbones of the paper (default: both)")
    ] = None
    out: Annotated[Path | None, o.out("folder of the runs (default: runs/PAPER)", "RUNS")] = None

    def plan(self, paper: str, model: o.ModelOptions) -> Plan:
        """Return the runs that the tables need."""
        times_here = model.device in ("auto", "cpu")
        return make_plan(
            paper,
            data=self.data,
            out=self.out,
            backbones=self.paper_backbone or BACKBONES,
            tables=self.tables,
            datasets=self.datasets,
            methods=self.methods,
            seeds=self.seeds,
            limit=self.limit,
            model=model.chosen,
            bench=self.bench,
            seconds=partial(_seconds, views=self.views) if times_here else None,
        )


def reproduce(
    paper: Annotated[str, o.option("paper (O-TPT) or cots (its peers, as CoTS measured them)", metavar="PAPER")],
    /,
    *,
    go: Annotated[bool, o.option("run the plan (default: only print it)")] = False,
    part: PartOptions = PartOptions(),
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
    pool = local_pool(workers, model.device)
    o.use_threads(threads)
    plan = part.plan(paper, model)
    commands = evaluate_commands(plan, data=part.data, views=part.views, limit=part.limit)
    if not json:
        _print_plan(plan)
        print("\nThe same as commands:", *commands, sep="\n  ")
        print("" if go else "\nAdd --go to run it.", flush=True)
    tables: list[Table] = []
    unreadable = 0
    if go:
        _check_present(plan, part.limit)
        runner = _Runner(part, model, pool, threads, cache.open())
        for planned in plan.tables:
            runs = [run for run in planned.runs if run.missing is None]
            unreadable += sum(runner.run(run) for run in runs)
            shown = _tables(planned, runs, STUDIES[paper]) if runs else []
            tables += shown
            if shown and not json:
                print(f"Table {planned.number}, {planned.backbone}:")
                print(render(shown, "text", width=terminal_width()), end="")
    if json:
        print_json({"plan": plan.to_dict(), "tables": [table.to_dict() for table in tables], "commands": commands})
    return INCOMPLETE if unreadable else 0


def _check_present(plan: Plan, limit: int | None) -> None:
    """Raise if no data set of the plan is present; note classes without images."""
    present = {run.dataset: run for run in plan.runs if run.missing is None}
    if not present:
        raise OtptError(
            f"None of the data sets is present: {', '.join(plan.missing)}. Give their folder with --data, or try the "
            "plan on the emoji sets with --bench."
        )
    note_missing_classes([run.open_dataset() for run in present.values()], limit)


class _Runner:
    """Runs of a plan, each once."""

    def __init__(
        self,
        part: PartOptions,
        model: o.ModelOptions,
        pool: Pool,
        threads: int | None,
        cache: FeatureCache | None,
    ) -> None:
        self._part = part
        self._device = model.device
        self._pool = pool
        self._threads = threads
        self._cache = cache
        self._done: set[Path] = set()
        self._load: Callable[..., Backbone] = model.load
        if pool.inline:  # other processes cannot receive a cached function
            self._load = lru_cache(maxsize=1)(model.load)

    def run(self, run: PlannedRun) -> int:
        """Evaluate a run unless it is done already, and return the number of unreadable images."""
        if run.folder in self._done:
            return 0
        self._done.add(run.folder)
        protocol = Protocol(
            methods=get_methods(run.methods),
            views=self._part.views,
            augmix=run.augmix,
            official_precision=True,  # the rounding of the official scripts, whose numbers are the paper's
        )
        prompts = None if run.prompts is None else tuple(Prompt(words) for words in run.prompts)
        request = Evaluation(protocol=protocol, prompts=prompts, seeds=run.seeds, limit=self._part.limit)
        result = evaluation.evaluate(
            run.open_dataset(),
            partial(self._load, backbone=run.model),
            request,
            out=run.folder,
            cache=self._cache,
            pool=self._pool,
            progress=Progress(log=say) if run.left else None,
            device=self._device,
            threads=self._threads,
            command=command_line(),
        )
        return result.unreadable


def _tables(table: PlannedTable, runs: Sequence[PlannedRun], paper: str) -> list[Table]:
    """Return the table in its layout, with the O-TPT paper's numbers; or next to another paper's."""
    results = open_results([run.folder for run in runs])
    bench = table.backbone == "bench"
    selection = Selection(
        datasets=[run.dataset for run in runs],
        methods=[name for name in table.methods if name in results.methods],
        prompt=table.prompt,
    )
    with_numbers = paper == OTPT and not bench
    shown = LAYOUTS[table.layout].tables(results, selection, backbone=table.backbone if with_numbers else None)
    if paper == OTPT or bench:
        return shown
    try:
        return [*shown, *compare_with_paper(results, paper, backbone=table.backbone, tables=[table.number])]
    except OtptError as error:
        note(str(error))
        return shown


def _seconds(run: PlannedRun, *, views: int) -> float | None:
    """Estimate the time of the remaining images on this machine, or return None."""
    entry = find_entry(run.dataset)
    if run.left is None or entry is None or entry.classes is None or run.model == "pocket":
        return None
    augmix = entry.augmix if run.augmix is None else run.augmix
    methods = get_methods(run.methods)
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
        names = [name for name, reason in plan.left_out.items() if reason == why]
        print(f"\nLeft out: {', '.join(names)} ({why}).")


def _amount(runs: Sequence[PlannedRun], methods: str = "") -> str:
    """Describe the number of images to predict and the time, if it is known."""
    seconds = [run.seconds for run in runs if run.seconds is not None]
    time = f", about {duration(sum(seconds))} here" if len(seconds) == len(runs) else ""
    return f"{sum(run.left or 0 for run in runs)} images to predict{methods}{time}"
