"""``otpt evaluate DATASET… --methods …``: accuracy and calibration of methods on data sets, all in one pass."""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from otpt.cli import interrupts, medical
from otpt.cli import options as shared
from otpt.cli.cache import add_cache_options, chosen_cache
from otpt.cli.engines import RAY_OPTIONS, add_ray_options, chosen_engine
from otpt.cli.results import print_result
from otpt.data.dataset import FAMILIES
from otpt.errors import OtptError
from otpt.evaluation.format import FEATURE_TYPES
from otpt.evaluation.starts import column_names

if TYPE_CHECKING:
    from otpt.backbones import Backbone
    from otpt.data import Dataset
    from otpt.evaluation import Reporter, Settings
    from otpt.methods import Method
    from otpt.prompts import Prompt

UNREADABLE = 3
DEFAULT_METHODS = ("zero-shot", "tpt", "c-tpt", "o-tpt")
# Options that change no number: two commands that differ only in these are the same run.
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
    "retry_unreadable",
}.union(RAY_OPTIONS)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of ``evaluate``."""
    parser.description = (
        "Run all methods on all data sets in one pass. Stopped, it goes on where it was when the same "
        "command is given again. Exit code 3 if pictures could not be read."
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
    from otpt.methods import get_methods
    from otpt.prompts import Prompt

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
        help="of 'otpt datasets', a folder of class folders, a .csv or .parquet, tar shards ('x-{000..009}.tar', in "
        "quotes: one data set)",
    )
    add_data_options(parser)


def add_data_options(parser: argparse.ArgumentParser) -> None:
    """Where data sets are, and what of them is taken."""
    group = parser.add_argument_group("data")
    group.add_argument("--data", type=Path, metavar="ROOT", help="folder that holds the data sets")
    group.add_argument("--classes", type=Path, metavar="FILE", help="class names, one a line in label order")
    group.add_argument("--official-names", action="store_true", help="the papers' class names of Food101, two swapped")
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
    group.add_argument(
        "--retry-unreadable", action="store_true", help="do parts again that hold pictures which could not be read"
    )
    group.add_argument("--save-probabilities", action="store_true", help="keep all probabilities of every row")
    group.add_argument("--part-size", type=int, default=64, metavar="N", help="pictures a part (default: 64)")
    group.add_argument("--workers", type=int, metavar="N", help="processes (default: one a GPU, or one)")
    group.add_argument("--threads", type=int, metavar="N", help="that decode and augment, in each process")
    group.add_argument("--json", action="store_true", help="the metrics as one JSON object")
    add_cache_options(group)
    group.add_argument(
        "--features",
        choices=FEATURE_TYPES,
        help="float16 rounds image features, for a cache of half the size (default: full, as the backbone gives them)",
    )
    medical.add_options(parser)
    add_ray_options(parser)


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


def run_evaluation(
    options: argparse.Namespace,
    methods: Sequence[Method],
    prompts: Sequence[Prompt] | None,
    *,
    all_tokens: bool = False,
) -> int:
    """Evaluate as the options say; print; the exit code."""
    from otpt.evaluation import Job, Settings, run_job
    from otpt.methods import get_methods
    from otpt.views import ViewRecipe

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
    cache = chosen_cache(options)
    engine = chosen_engine(options)
    refuse_unused_names(options, options.datasets)
    settings = medical.settings_for(options, settings)
    options.backbone = medical.backbone_for(options, settings)
    makers = medical.case_makers([dataset_maker(options, spec) for spec in options.datasets], settings)
    # what is wrong with data and learned prompts is told before a large model is read
    datasets = [make() for make in makers]
    _tell_apart(options.datasets, [dataset.name for dataset in datasets[:: len(makers) // len(options.datasets)]])
    for dataset in datasets:
        settings.contexts_for(dataset)
        settings.prompts_for(dataset)
    names = [dataset.name for dataset in datasets]
    clip = partial(backbone_on, options.backbone, options.precision, options.architecture, options.quick_gelu)
    job = Job(
        backbone=medical.model_maker(options, settings) or clip,
        datasets=makers,
        settings=settings,
        folder=options.out or _default_folder(options),
        cache=cache,
        device=options.device,
        threads=options.threads,
    )
    try:
        reporter = chosen_reporter(names, settings)
        result = run_job(job, engine, reporter, retry_unreadable=options.retry_unreadable)
    except KeyboardInterrupt:
        return interrupts.tell_stopped(f"; {_standing(job.folder)} Give the same command again to go on.")
    print_result(result, as_json=options.json)
    return UNREADABLE if result.unreadable else 0


def refuse_unused_names(options: argparse.Namespace, specs: Sequence[str]) -> None:
    """``OtptError`` if ``--official-names`` would change nothing."""
    from otpt.data import find_entry

    if not options.official_names:
        return
    if options.classes is not None:
        raise OtptError("--official-names was given with --classes, whose names are taken; expected one of them.")
    entries = (find_entry(spec) for spec in specs)
    if all(entry is None or entry.official_swap is None for entry in entries):
        raise OtptError(
            "--official-names was given, but the papers' class names differ from ours for Food101 only, which is not "
            "among the data sets; leave it out."
        )


def _tell_apart(specs: Sequence[str], names: Sequence[str]) -> None:
    """``OtptError`` if two data sets, as given and as called, have one name."""
    first: dict[str, str] = {}
    for spec, name in zip(specs, names, strict=True):
        if name in first:
            raise OtptError(
                f"The data sets {first[name]!r} and {spec!r} are both called {name!r}, so that their rows could not be "
                "told apart; rename one, or give a command for each."
            )
        first[name] = spec


def backbone_on(spec: str, precision: str, architecture: str | None, quick_gelu: bool | None, device: str) -> Backbone:
    """The backbone on a device; of this module, so that worker processes can be sent it."""
    from otpt.backbones import load_backbone

    return load_backbone(spec, device=device, precision=precision, architecture=architecture, quick_gelu=quick_gelu)


def dataset_maker(options: argparse.Namespace, spec: str) -> Callable[[], Dataset]:
    """How to load a data set as :func:`add_data_options` describe it."""
    from otpt.data import load_dataset

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
    from rich.console import Console

    from otpt.evaluation import LogProgress, TerminalProgress

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
    from otpt.evaluation import Run

    try:
        run = Run(folder)
    except OtptError:
        return "nothing was finished yet."
    return f"{len(run.items) - len(run.missing())} of {len(run.items)} parts are finished in {str(folder)!r}."
