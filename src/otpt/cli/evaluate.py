"""``otpt evaluate DATASET… --methods …``: accuracy and calibration of methods on data sets, all in one pass."""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from otpt.backbones import Backbone, available_devices, load_backbone
from otpt.cli import medical
from otpt.cli import options as shared
from otpt.cli.tables import score_tables
from otpt.data import load_dataset
from otpt.errors import OtptError
from otpt.evaluation import (
    Engine,
    FeatureCache,
    Job,
    LocalEngine,
    LogProgress,
    ProcessEngine,
    Reporter,
    Result,
    Run,
    Settings,
    TerminalProgress,
    duration,
    run_job,
)
from otpt.evaluation.ray_engine import RayEngine
from otpt.evaluation.settings import FEATURE_TYPES
from otpt.evaluation.starts import column_names
from otpt.methods import FAMILIES, Method, get_methods
from otpt.prompts import Prompt
from otpt.views import ViewRecipe

UNREADABLE = 3
INTERRUPTED = 130
DEFAULT_METHODS = ("zero-shot", "tpt", "c-tpt", "o-tpt")
# Options that change no number: two commands that differ only in these are the same run.
_RAY_OPTIONS = ("ray_address", "ray_actors", "ray_gpus", "ray_cpus")
_NOT_IN_NAME = {
    "run",
    "command",
    "out",
    "cache",
    "no_cache",
    "cache_size",
    "workers",
    "threads",
    "json",
    "engine",
    "keep_frozen",
}.union(_RAY_OPTIONS)


def add_command(commands: Any) -> None:
    """Register ``evaluate``."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "evaluate",
        help="accuracy and calibration of methods on data sets",
        description="Run all methods on all data sets in one pass. Stopped, it goes on where it was when the same "
        "command is given again. Exit code 3 if pictures could not be read.",
    )
    add_dataset_options(parser)
    parser.add_argument(
        "--methods",
        nargs="+",
        default=list(DEFAULT_METHODS),
        metavar="NAME",
        help=f"of 'otpt methods', or TOML files of your own (default: {' '.join(DEFAULT_METHODS)})",
    )
    parser.add_argument(
        "--set",
        nargs="+",
        default=[],
        dest="settings",
        metavar="NAME=VALUE",
        help="replace numbers of every method: lambda=6, steps=2 …",
    )
    parser.add_argument("--prompt", metavar="WORDS", help="context in place of the data set's own")
    parser.add_argument("--prompt-tokens", type=int, metavar="N", help="how many of its tokens to tune")
    add_context_option(parser)
    add_run_options(parser)
    shared.add_model_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Evaluate and print."""
    options.method = options.methods
    medical.refuse_set(options, get_methods(options.methods))
    prompts = None
    if options.prompt is not None:
        prompts = [Prompt(options.prompt, tokens=options.prompt_tokens)]
    elif options.prompt_tokens is not None:
        raise OtptError("--prompt-tokens was given without --prompt; expected both.")
    return run_evaluation(options, shared.chosen_methods(options), prompts)


def add_dataset_options(parser: argparse.ArgumentParser) -> None:
    """Which data sets, and where they are."""
    parser.add_argument(
        "datasets",
        nargs="+",
        metavar="DATASET",
        help="of 'otpt datasets', a folder of class folders, a .csv or .parquet, tar shards",
    )
    group = parser.add_argument_group("data")
    group.add_argument("--data", type=Path, metavar="ROOT", help="folder that holds the data sets")
    group.add_argument("--classes", type=Path, metavar="FILE", help="class names, one a line in label order")
    group.add_argument("--official-names", action="store_true", help="the papers' class names (Food101's are swapped)")
    group.add_argument("--split", default="test", help="test, val or train (default: %(default)s)")
    group.add_argument("--limit", type=int, metavar="N", help="only the first N pictures of each set")


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """What is computed, where it is kept, and by how many processes."""
    group = parser.add_argument_group("views and numbers")
    group.add_argument("--seeds", nargs="+", type=int, default=[0], metavar="N", help="of the views (default: 0)")
    group.add_argument("--views", type=int, metavar="N", help="a picture, the clean one included (default: 64)")
    group.add_argument("--augmix", action=argparse.BooleanOptionalAction, help="in place of the data set's own choice")
    group.add_argument("--family", choices=FAMILIES, help="whose weights to take, in place of the data set's own")
    group.add_argument("--official-precision", action="store_true", help="round logits and soft-max to float16")
    group.add_argument("--bins", type=int, default=20, metavar="M", help="of the calibration errors (default: 20)")
    group = parser.add_argument_group("run")
    group.add_argument("--out", type=Path, metavar="RUN", help="run folder (default: one below runs/, by the command)")
    group.add_argument("--save-probabilities", action="store_true", help="keep all probabilities of every row")
    group.add_argument("--part-size", type=int, default=64, metavar="N", help="pictures a part (default: 64)")
    group.add_argument("--workers", type=int, metavar="N", help="processes (default: one a GPU, or one)")
    group.add_argument("--threads", type=int, metavar="N", help="that decode and augment, in each process")
    group.add_argument("--json", action="store_true", help="the metrics as one JSON object")
    add_cache_option(group)
    group.add_argument("--no-cache", action="store_true", help="neither read nor write the feature cache")
    group.add_argument("--cache-size", type=float, default=20.0, metavar="GB", help="its bound (default: 20)")
    group.add_argument(
        "--features",
        choices=FEATURE_TYPES,
        help="float16 rounds image features, for a cache of half the size (default: full, as the backbone gives them)",
    )
    medical.add_options(parser)
    group = parser.add_argument_group("more than one machine")
    group.add_argument(
        "--engine",
        default="local",
        choices=("local", "ray"),
        help="ray: actors on a Ray cluster, the run folder on storage that its machines share (default: %(default)s)",
    )
    group.add_argument("--ray-address", metavar="ADDRESS", help="'auto' or HOST:PORT (default: one on this machine)")
    group.add_argument("--ray-actors", nargs=2, type=int, metavar=("MIN", "MAX"), help="(default: 1, what there is)")
    group.add_argument("--ray-gpus", type=float, metavar="N", help="of each actor, such as 1 or 0.5 (default: 0)")
    group.add_argument("--ray-cpus", type=int, metavar="N", help="of each actor (default: 1)")


def add_context_option(parser: Any) -> None:
    """Where learned prompts are."""
    parser.add_argument(
        "--context",
        nargs="+",
        default=[],
        metavar="FILE",
        help="learned prompts of CoOp, CoCoOp or MaPLe, for methods that start from one; {dataset} stands for the data "
        "set's name",
    )


def add_cache_option(parser: Any) -> None:
    """Where the feature cache is."""
    parser.add_argument(
        "--cache", type=Path, metavar="DIR", help="feature cache (default: OTPT_CACHE, or the user's cache folder)"
    )


def run_evaluation(
    options: argparse.Namespace,
    methods: Sequence[Method],
    prompts: Sequence[Prompt] | None,
    *,
    all_tokens: bool = False,
) -> int:
    """Evaluate as the options say; print; the exit code."""
    settings = Settings(
        methods=get_methods(methods),
        prompts=prompts,
        seeds=options.seeds,
        recipe=ViewRecipe() if options.views is None else ViewRecipe(n_views=options.views),
        augmix=options.augmix,
        family=options.family,
        official_precision=options.official_precision,
        limit=options.limit,
        part_size=options.part_size,
        features=options.features or FEATURE_TYPES[0],
        all_tokens=all_tokens,
        save_probabilities=options.save_probabilities,
        bins=options.bins,
        contexts=options.context,
    )
    settings = medical.settings_for(options, settings)
    makers = medical.case_makers([_dataset_maker(options, spec) for spec in options.datasets], settings)
    # what is wrong with data and learned prompts is told before a large model is read
    datasets = [make() for make in makers]
    for dataset in datasets:
        settings.contexts_for(dataset)
    names = [dataset.name for dataset in datasets]
    clip = partial(backbone_on, options.backbone, options.precision, options.architecture, options.quick_gelu)
    job = Job(
        backbone=medical.model_maker(options, settings) or clip,
        datasets=makers,
        settings=settings,
        folder=options.out or _default_folder(options),
        cache=None if options.no_cache else FeatureCache(options.cache, max_bytes=round(options.cache_size * 1e9)),
        device=options.device,
        threads=options.threads,
    )
    try:
        result = run_job(job, chosen_engine(options), chosen_reporter(names, settings))
    except KeyboardInterrupt:
        print(f"otpt: stopped; {_standing(job.folder)} Give the same command again to go on.", file=sys.stderr)
        return INTERRUPTED
    print_result(result, as_json=options.json)
    return UNREADABLE if result.unreadable else 0


def backbone_on(spec: str, precision: str, architecture: str | None, quick_gelu: bool | None, device: str) -> Backbone:
    """The backbone on a device; of this module, so that worker processes can be sent it."""
    return load_backbone(spec, device=device, precision=precision, architecture=architecture, quick_gelu=quick_gelu)


def chosen_engine(options: argparse.Namespace) -> Engine:
    """Ray's actors; or one process, or several: as many as asked for, or one for each GPU."""
    if options.engine == "ray":
        return _ray_engine(options)
    for name in _RAY_OPTIONS:
        if getattr(options, name) is not None:
            raise OtptError(f"--{name.replace('_', '-')} was given without --engine ray; expected both.")
    if options.workers is not None and options.workers < 1:
        raise OtptError(f"--workers was given {options.workers}; expected 1 or more.")
    gpus = [name for name in available_devices() if name.startswith("cuda:")]
    use_all = len(gpus) > 1 and options.device in {"auto", "cuda"}
    workers = options.workers or (len(gpus) if use_all else 1)
    if workers == 1:
        return LocalEngine()
    return ProcessEngine(workers, gpus if use_all else None)


def _ray_engine(options: argparse.Namespace) -> Engine:
    if options.workers is not None:
        raise OtptError("--workers was given with --engine ray; expected --ray-actors there.")
    fewest, most = options.ray_actors or (1, None)
    gpus = 0.0 if options.ray_gpus is None else options.ray_gpus
    cpus = 1 if options.ray_cpus is None else options.ray_cpus
    return RayEngine(options.ray_address, actors=(fewest, most), gpus=gpus, cpus=cpus)


def print_result(result: Result, *, as_json: bool) -> None:
    """The metrics, and what was out of the ordinary."""
    if as_json:
        shown = {
            "run": str(result.run.folder),
            "seconds": result.seconds,
            "unreadable": result.unreadable,
            "scores": [score.as_dict() for score in result.scores],
            "averages": [average.as_dict() for average in result.averages],
        }
        print(json.dumps(shown, indent=2, ensure_ascii=False))
    else:
        console = Console(highlight=False, markup=False)
        if not console.is_terminal:
            console = Console(highlight=False, markup=False, width=400)
        for table in score_tables(result.scores):
            console.print(table)
            print()
        print(f"Rows and metrics are in {str(result.run.folder)!r}; this took {duration(result.seconds)}.")
    for path in result.set_aside:
        print(f"otpt: {str(path)!r} was damaged; it was set aside as .corrupt and done again", file=sys.stderr)
    if result.unreadable:
        print(
            f"otpt: could not read {result.unreadable} of the pictures; why is in the column 'error' of the rows",
            file=sys.stderr,
        )


def _dataset_maker(options: argparse.Namespace, spec: str) -> Any:
    return partial(
        load_dataset,
        spec,
        root=options.data,
        classes=options.classes,
        official_names=options.official_names,
        split=options.split,
    )


def chosen_reporter(names: list[str], settings: Settings) -> Reporter:
    """Progress on a terminal, or lines of a log."""
    prompts = [str(getattr(prompt, "words", prompt)) for prompt in settings.prompts or [""]]
    pairs = column_names(prompts, [(method.name, method.start) for method in settings.chosen])
    columns = [method if len(prompts) < 2 else f"{method} · {prompt}" for prompt, method in pairs]
    console = Console(stderr=True, markup=False, highlight=False)
    if console.is_terminal:
        return TerminalProgress(names, columns, console)
    return LogProgress(names, columns, say=lambda line: print(f"otpt: {line}", file=sys.stderr, flush=True))


def _default_folder(options: argparse.Namespace) -> Path:
    decisive = {name: str(value) for name, value in vars(options).items() if name not in _NOT_IN_NAME}
    digest = hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()[:8]
    slug = re.sub(r"[^A-Za-z0-9.-]+", "-", options.backbone).strip("-.") or "model"
    return Path("runs") / f"{slug[-60:]}-{digest}"


def _standing(folder: Path) -> str:
    try:
        run = Run(folder)
    except OtptError:
        return "nothing was finished yet."
    return f"{len(run.items) - len(run.missing())} of {len(run.items)} parts are finished in {str(folder)!r}."
