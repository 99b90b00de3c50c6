"""``otpt reproduce PAPER``: plan or run a paper's tables and figures."""

from __future__ import annotations

import contextlib
import io
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from otpt.cli import options as o
from otpt.cli.commands import call
from otpt.cli.costs import GPUS, HERE, feature_bytes, gpu_here, predict_cost
from otpt.cli.summaries import INCOMPLETE
from otpt.cli.terminal import note, print_json, say, words
from otpt.data import find_entry
from otpt.errors import OtptError, describe_error
from otpt.methods import Protocol, get_methods
from otpt.progress import duration
from otpt_papers.jobs import Exhibit, Job
from otpt_papers.outcome import write_index
from otpt_papers.papers import BACKBONES
from otpt_papers.reproduce import MODELS, Choice, Plan, make_plan

_SMALL = 1_000_000_000
"""Bytes of features below which the cache is not mentioned."""


@o.option_group("Options")
class PartOptions(o.Options):
    """Which part of a paper is reproduced, and on how many images."""

    bench: Annotated[bool, o.option("the same plan on the emoji sets with the embedded model")] = False
    data: o.Data = None
    tables: Annotated[o.Several, o.option("only these tables of the paper", metavar="N")] = None
    figures: Annotated[o.Several, o.option("only these figures of the paper", metavar="N")] = None
    datasets: Annotated[o.Several, o.option("only these data sets", metavar="NAME")] = None
    methods: Annotated[o.Several, o.methods("only these methods of the paper")] = None
    seeds: Annotated[o.Numbers, o.seeds("seeds of the views (default: the paper's number)")] = None
    limit: o.Limit = None
    views: Annotated[int, o.setting(Protocol, "views")] = 64
    paper_backbone: Annotated[
        tuple[Literal["ViT-B/16", "RN50"], ...] | None, o.option("backbones of the paper (default: both)")
    ] = None
    out: Annotated[Path | None, o.out("folder of runs, tables and figures (default: runs/PAPER)", "RUNS")] = None


@o.option_group("Weights and checkpoints")
class CheckpointOptions(o.Options):
    """Weights that replace the paper's, and files that other authors publish."""

    models: Annotated[
        o.Several,
        o.option(f"weights of {', '.join(MODELS)}, as 'otpt models' lists them", metavar="NAME=SPEC"),
    ] = None
    context: Annotated[o.Several, o.option("coop=FILE and maple=FILE, for Tables 6 and 7", metavar="NAME=FILE")] = None
    trained: Annotated[
        o.Several,
        o.option(
            "'baple=FILE;FILE' and 'fpt=FILE;FILE', for Tables 17 and 18 (default: train them)", metavar="NAME=FILE"
        ),
    ] = None
    epochs: Annotated[int | None, o.option("passes of that training (default: the published ones)", at_least=1)] = None
    shots: Annotated[int | None, o.option("images per class of BAPLe's training (default: 32)", at_least=1)] = None


@o.option_group("Machine")
class MachineOptions(o.Options):
    """Where it runs."""

    device: o.Device = "auto"
    precision: o.Precision = "float32"
    workers: o.Workers = None
    threads: o.Threads = None
    hours_on: Annotated[str | None, o.option(f"predict hours on another device: {', '.join(GPUS)}", metavar="NAME")] = (
        None
    )

    def words(self, *, workers: bool) -> tuple[str, ...]:
        """Return the options as words of another command."""
        options: list[str] = []
        defaults = MachineOptions()
        for name in ("device", "precision", "threads", *(("workers",) if workers else ())):
            value = getattr(self, name)
            if value != getattr(defaults, name):
                options += [f"--{name}", str(value)]
        return tuple(options)

    def place(self) -> str | None:
        """Return the name of the device for predicted times, or None for a GPU that is not in the table."""
        if self.hours_on is not None:
            return self.hours_on
        return HERE if self.device == "cpu" else gpu_here(self.device)


def _cache_words(cache: o.CacheOptions) -> tuple[str, ...]:
    """Return the options of the cache as words of another command."""
    defaults = o.CacheOptions()
    options = ["--cache", str(cache.cache)] if cache.cache is not None else []
    options += ["--no-cache"] if cache.no_cache else []
    options += ["--cache-size", f"{cache.cache_size:g}"] if cache.cache_size != defaults.cache_size else []
    return tuple(options)


def _make_plan(
    paper: str, part: PartOptions, files: CheckpointOptions, machine: MachineOptions, cache: o.CacheOptions
) -> Plan:
    """Return the plan that the options choose."""
    choice = Choice(
        backbones=part.paper_backbone or BACKBONES,
        tables=part.tables,
        figures=part.figures,
        datasets=part.datasets,
        methods=part.methods,
        seeds=part.seeds,
        limit=part.limit,
        views=part.views,
        models=o.pairs(files.models or (), "--models", "RN50=random:RN50"),
        context=o.pairs(files.context or (), "--context", "coop=model.pth.tar-50"),
        trained=o.pairs(files.trained or (), "--trained", "fpt=fpt.safetensors"),
        epochs=files.epochs,
        shots=files.shots,
        run_options=(*machine.words(workers=True), *_cache_words(cache)),
        model_options=machine.words(workers=False),
    )
    place = machine.place()
    if machine.hours_on is not None and place not in (HERE, *GPUS):
        raise OtptError(f"--hours-on was given {machine.hours_on!r}; expected {HERE} or {', '.join(GPUS)}.")
    return make_plan(
        paper,
        data=part.data,
        out=part.out,
        bench=part.bench,
        choice=choice,
        seconds=None if place is None else lambda job: _seconds(job, place, part.views),
    )


def reproduce(
    paper: Annotated[str, o.option("paper (O-TPT) or cots (its peers, as CoTS measured them)", metavar="PAPER")],
    /,
    *,
    go: Annotated[bool, o.option("run the plan (default: only print it)")] = False,
    part: PartOptions = PartOptions(),
    files: CheckpointOptions = CheckpointOptions(),
    machine: MachineOptions = MachineOptions(),
    json: o.Json = False,
    cache: o.CacheOptions = o.CacheOptions(),
) -> int:
    """Print which runs a paper's tables and figures need, what is missing, and how long it takes. With --go, run what
    is missing, and leave all tables, figures and an index page in one folder. An interrupted command resumes when it
    is repeated; exit code 3 while something is missing.

    otpt reproduce paper
    otpt reproduce paper --tables 2 --datasets dtd pets --data ~/data --go
    otpt reproduce paper --bench --limit 20 --go
    """
    plan = _make_plan(paper, part, files, machine, cache)
    _refuse_unused(plan, part, files)
    if not json:
        _print_plan(plan, machine)
        _note_cache(plan, part.views, cache)
    problems = plan.missing()
    if go:
        problems = _go(plan, part.out or Path("runs") / paper)
    if json:
        facts = plan.to_dict()
        print_json({**facts, "missing": problems} if go else facts)
    elif go:
        _print_missing(problems, "Missing:")
    else:
        _print_missing(problems, "Missing so far:")
        print("\nAdd --go to run it.", flush=True)
    return INCOMPLETE if go and problems else 0


def _refuse_unused(plan: Plan, part: PartOptions, files: CheckpointOptions) -> None:
    """Raise for options that no command of the plan uses."""
    unused: list[str] = [name for name in ("data", "paper_backbone") if part.bench and name in part.given()]
    unused += [*files.given()] if part.bench else []
    groups = {job.group for job in plan.jobs}
    commands = {job.command for job in plan.jobs}
    backbones = {job.backbone for job in plan.jobs}
    for option, names, known in (("models", files.models, backbones), ("context", files.context, groups)):
        unused += [option for name in names or () if name.partition("=")[0] not in known]
    unused += ["trained" for name in files.trained or () if name.partition("=")[0] not in groups]
    unused += ["epochs"] if files.epochs is not None and not {("train", "baple"), ("train", "fpt")} & commands else []
    unused += ["shots"] if files.shots is not None and ("train", "baple") not in commands else []
    if unused:
        raise OtptError(
            f"--{unused[0].replace('_', '-')} has no effect on this plan, whose runs are {', '.join(sorted(groups))} "
            f"on {', '.join(sorted(backbones))}; leave it out."
        )


def _go(plan: Plan, folder: Path) -> dict[str, list[str]]:
    """Run the jobs and make the files; return what is missing, by exhibit."""
    command = list(words)
    failures: dict[str, list[str]] = {}
    try:
        for number, job in enumerate(plan.jobs, start=1):
            if job.can_run and not job.is_done:
                say(f"{number} of {len(plan.jobs)}: {job.line}")
                job.error = _call(job.words, job.makes, complete=True)
        for exhibit in plan.exhibits:
            reasons = _make_files(exhibit)
            if reasons:
                failures.setdefault(exhibit.name, []).extend(reasons)
    finally:
        words[:] = command
    problems = plan.missing()
    for name, reasons in failures.items():
        problems[name] = list(dict.fromkeys([*problems.get(name, []), *reasons]))
    try:
        path = write_index(plan, folder, problems)
    except OtptError as error:  # what is missing is to be printed all the same
        problems["index page"] = [str(error)]
    else:
        say(f"tables, figures and commands are in {str(path)!r}")
    return problems


def _call(command: Sequence[str], makes: Path, *, complete: bool = False) -> str:
    """Run a command without its output; return why it failed, or "". With ``complete``, it must end with code 0."""
    try:
        makes.absolute().parent.mkdir(parents=True, exist_ok=True)
        with contextlib.redirect_stdout(io.StringIO()):
            code = call(command)
    except OtptError as error:
        reason = str(error)
    except OSError as error:
        reason = f"{describe_error(error)}; free disk space or check the path, then repeat the command."
    except Exception as error:  # a defect of one command must not cost the others
        reason = f"{describe_error(error)}; this is a defect of otpt: run the command by itself, and report its output."
    else:
        reason = f"it ended with exit code {code}; its messages are above." if complete and code else ""
    if reason:
        say(f"failed, the other commands continue: {reason}")
    return reason


def _make_files(exhibit: Exhibit) -> list[str]:
    """Make the files of a table or figure from what its runs hold; return why one could not be made."""
    if not any(run.is_dir() for run in exhibit.runs):
        return [] if exhibit.obstacles() else ["its runs hold nothing yet."]
    reasons = [f"the runs hold no {name!r}." for name in exhibit.absent_methods()]
    for command in exhibit.commands():
        reason = _replace(Path(command[-1]), command)
        if reason:
            reasons.append(f"'{shlex.join(('otpt', *command))}' failed: {reason}")
    return reasons


def _replace(file: Path, command: Sequence[str]) -> str:
    """Run a command that writes a file in place of an earlier one, which stays if it fails; return why, or ""."""
    earlier = file.with_name(f"{file.name}.earlier")
    if file.is_file():
        file.replace(earlier)
    reason = _call(command, file)
    if earlier.is_file():
        if reason:
            earlier.replace(file)
        else:
            earlier.unlink()
    return reason


def _seconds(job: Job, place: str, views: int) -> float | None:
    """Estimate the time of a job's remaining images on a device, or return None."""
    if not job.is_run or job.backbone not in BACKBONES or job.left is None:
        return None
    total = 0.0
    for name in job.present or job.datasets:
        entry, images = find_entry(name), job.images[name]
        if entry is None or entry.classes is None or images is None:
            return None
        methods = get_methods(job.columns if job.columns and "[" in job.columns[0] else job.methods)
        try:
            cost = predict_cost(job.model, methods, place, entry.classes, views, entry.augmix)
        except OtptError:  # an architecture that open_clip does not have
            return None
        total += images * len(job.seeds) * cost.seconds
    whole = sum(job.images[name] or 0 for name in job.present or job.datasets) * len(job.seeds)
    return total * job.left / whole if whole else 0.0


def _note_cache(plan: Plan, views: int, cache: o.CacheOptions) -> None:
    """Say how large the features of the plan are, and how to make room for them."""
    sizes: dict[tuple[str, str, int, bool], float] = {}
    for job in plan.jobs:
        if job.backbone not in BACKBONES or not job.is_run:
            continue
        for name in job.present or job.datasets:
            for seed in job.seeds:
                key = (job.model, name, seed, job.group == "templates")
                sizes[key] = (job.images[name] or 0) * feature_bytes(job.model, views)
    needed, bound = sum(sizes.values()), 0 if cache.no_cache else cache.cache_size * 1e9
    if needed > max(bound, _SMALL):
        room = f"--cache-size {needed / 1e9 * 1.1:.0f}" + (" (and without --no-cache)" if cache.no_cache else "")
        note(
            f"the image features take {needed / 1e9:.0f} GB and the cache is bounded to {bound / 1e9:.0f} GB: without "
            f"{room}, images that several groups share are encoded again for each"
        )


def _print_plan(plan: Plan, machine: MachineOptions) -> None:
    names = {id(job): f"[{number}]" for number, job in enumerate(plan.jobs, start=1)}
    print("Commands:")
    for job in plan.jobs:
        state = "done" if job.is_done else job.needs or _amount([job])
        print(f"{names[id(job)]} {state}\n    {job.line}")
    print("\nTables and figures:")
    for exhibit in plan.exhibits:
        made_of = " ".join(names[id(job)] for job in exhibit.jobs)
        print(f"  {exhibit.name:<10} {exhibit.backbone:<9} {exhibit.title}, from {made_of}")
        for command in exhibit.commands()[:1]:
            print(f"      {shlex.join(('otpt', *command))}")
        for remark in exhibit.remarks:
            if remark.startswith("Own"):
                print(f"      {remark}")
    place = machine.place()
    where = "here" if place == HERE else f"on {place}" if place is not None else ""
    unknown = "; no times are known for this device, see --hours-on" if place is None else ""
    print(f"\nAll together {_amount(plan.jobs)}{f' {where}' if where else ''}{unknown}. All times are predicted.")
    for why in dict.fromkeys(plan.left_out.values()):
        methods = [name for name, reason in plan.left_out.items() if reason == why]
        print(f"Left out: {', '.join(methods)} ({why}).")


def _print_missing(problems: dict[str, list[str]], title: str) -> None:
    if not problems:
        return
    by_reason: dict[str, list[str]] = {}
    for name, reasons in problems.items():
        for reason in reasons:
            by_reason.setdefault(reason, []).append(name)
    print(f"\n{title}")
    for reason, names in by_reason.items():
        print(f"- {reason}\n    for {', '.join(names)}")


def _amount(jobs: Sequence[Job]) -> str:
    """Describe the number of images to predict and the time, if it is known."""
    images = sum(job.left or 0 for job in jobs)
    seconds = [job.seconds for job in jobs if job.seconds is not None]
    time = f", about {duration(sum(seconds))}" if seconds else ""
    return f"{images} images to predict{time}" if images or len(jobs) > 1 else "to do"
