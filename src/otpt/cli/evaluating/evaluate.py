"""``otpt evaluate DATASET… --methods …``: accuracy and calibration of methods on data sets, all in one pass."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from otpt.cli import interrupts
from otpt.cli.evaluating.own_data import tell_folders, with_origins
from otpt.cli.information.cache import add_cache_options, chosen_cache
from otpt.cli.notes import say, tell, tell_cautions, tell_missing_classes, tell_sequential
from otpt.cli.options import medical
from otpt.cli.options.calibration import add_calibration_options, chosen_calibrations
from otpt.cli.options.class_names import add_classes_option, chosen_classes, take_back_datasets
from otpt.cli.options.classifier import add_reject_options
from otpt.cli.options.engines import RAY_OPTIONS, add_ray_options, chosen_engine
from otpt.cli.options.inits import add_init_options, chosen_inits
from otpt.cli.options.methods import add_plugin_option, chosen_methods, load_plugins
from otpt.cli.options.models import add_model_options
from otpt.cli.options.spellings import (
    add_methods_option,
    add_out_option,
    add_seeds_option,
    add_settings_option,
    add_threads_option,
    add_workers_option,
    use_threads,
)
from otpt.cli.options.views import add_view_key_option, add_views_options, chosen_recipe
from otpt.cli.results.evaluated import print_result, tell_incomplete
from otpt.data.dataset import FAMILIES
from otpt.errors import OtptError
from otpt.runs.format import FEATURE_TYPES

if TYPE_CHECKING:
    from otpt.backbones import Backbone
    from otpt.data import Dataset
    from otpt.evaluation import Reporter
    from otpt.methods import Method
    from otpt.prompts import Prompt

UNREADABLE = 3
_FILES = (".json", ".jsonl", ".csv", ".tsv", ".parquet", ".html", ".txt")
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
    "command_line",
    *("file", "figure", "maps", "raps_penalty", "raps_ranks"),  # of calibrate
}.union(RAY_OPTIONS)


_WHERE_GIVEN = ("templates", "fpp")  # younger than many runs, whose names do not know them


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of ``evaluate``."""
    parser.description = (
        "Run all methods on all data sets in one pass. An interrupted run resumes when the command is "
        "repeated; another command on the same folder adds to the run. Exit code 3 if images could not be read."
    )
    add_dataset_options(parser)
    add_methods_option(
        parser,
        default=DEFAULT_METHODS,
        words=f"of 'otpt methods', or TOML files of your own (default: {' '.join(DEFAULT_METHODS)})",
    )
    add_settings_option(parser, "override hyper-parameters of every method that has them: lambda=6, steps=2 …")
    add_prompt_option(parser)
    add_init_options(parser)
    add_run_options(parser)
    add_calibration_options(parser)
    add_model_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Evaluate and print."""
    load_plugins(options)
    return run_evaluation(options, chosen_methods(options), chosen_prompts(options))


def add_prompt_option(parser: argparse.ArgumentParser) -> None:
    """See :func:`chosen_prompts`."""
    parser.add_argument("--prompt", metavar="WORDS", help="context to use instead of the data set's")
    parser.add_argument("--prompt-tokens", type=int, metavar="N", help="number of its tokens to tune")


def chosen_prompts(options: argparse.Namespace) -> list[Prompt] | None:
    """The prompt to use instead of the data sets' own."""
    from otpt.prompts import Prompt

    if options.prompt is not None:
        return [Prompt(options.prompt, tokens=options.prompt_tokens)]
    if options.prompt_tokens is not None:
        raise OtptError("--prompt-tokens was given without --prompt; expected both.")
    return None


def add_dataset_options(parser: argparse.ArgumentParser) -> None:
    """Which data sets, and where they are."""
    parser.add_argument(
        "datasets",
        nargs="*",
        metavar="DATASET",
        help="of 'otpt datasets', a folder of class folders, a .csv or .parquet, tar shards ('x-{000..009}.tar', in "
        "quotes: one data set)",
    )
    add_data_options(parser)


def add_data_options(parser: argparse.ArgumentParser) -> None:
    """Where data sets are, and what of them is taken."""
    group = parser.add_argument_group("data")
    group.add_argument("--data", type=Path, metavar="ROOT", help="folder with the data sets")
    add_classes_option(group)
    group.add_argument(
        "--official-names", action="store_true", help="the papers' class names of Food101, with two swapped"
    )
    group.add_argument("--split", default="test", help="test, val or train (default: %(default)s)")
    group.add_argument("--limit", type=int, metavar="N", help="only N images of each set, all classes in proportion")


def add_run_options(parser: argparse.ArgumentParser, *, folder: str = "--out") -> None:
    """What is computed, where it is kept (``folder`` is the name of that option), and by how many processes."""
    group = parser.add_argument_group("views and numbers")
    add_seeds_option(group, default=[0], words="seeds of the views (default: 0)")
    add_views_options(group)
    group.add_argument("--augmix", action=argparse.BooleanOptionalAction, help="override the data set's choice")
    add_view_key_option(group)
    group.add_argument("--family", choices=FAMILIES, help="which λ to use, instead of the data set's family")
    group.add_argument("--official-precision", action="store_true", help="round logits and softmax to float16")
    group.add_argument("--bins", type=int, default=20, metavar="M", help="bins of the calibration errors (default: 20)")
    add_reject_options(group)
    group = parser.add_argument_group("run")
    words = "run folder (default: one in runs/, named after the command)"
    if folder == "--out":
        add_out_option(group, metavar="RUN", words=words)
    else:
        group.add_argument(folder, dest="out", type=Path, metavar="RUN", help=words)
    group.add_argument(
        "--retry-unreadable", action="store_true", help="recompute shards with images that could not be read"
    )
    group.add_argument("--save-probabilities", action="store_true", help="store all probabilities in every row")
    group.add_argument("--shard-size", type=int, default=64, metavar="N", help="images per shard (default: 64)")
    add_workers_option(group)
    add_threads_option(group)
    group.add_argument("--json", action="store_true", help="the metrics as one JSON object")
    add_cache_options(group)
    group.add_argument(
        "--features",
        choices=FEATURE_TYPES,
        help="float16 rounds image features, for a cache of half the size (default: full, as the backbone gives them)",
    )
    add_plugin_option(group)
    medical.add_options(parser)
    add_ray_options(parser)


def run_evaluation(
    options: argparse.Namespace,
    methods: Sequence[Method],
    prompts: Sequence[Prompt] | None,
    *,
    all_tokens: bool = False,
    print_found: Callable[..., None] | None = None,
) -> int:
    """Evaluate as the options say; print, by ``print_found`` if it is given; the exit code."""
    from otpt.evaluation import Job, Settings, run_job
    from otpt.evaluation.overlap import overlaps
    from otpt.methods import get_methods

    take_back_datasets(options, "datasets")
    medical.refuse_unused(options, methods)
    settings = Settings(
        methods=get_methods(methods),
        prompts=prompts,
        seeds=options.seeds,
        recipe=chosen_recipe(options),
        augmix=options.augmix,
        family=options.family,
        official_precision=options.official_precision,
        limit=options.limit,
        shard_size=options.shard_size,
        features=options.features or FEATURE_TYPES[0],
        view_key=options.view_key,
        all_tokens=all_tokens,
        save_probabilities=options.save_probabilities,
        bins=options.bins,
        contexts=options.context,
        attributes=options.attributes,
        trained=options.trained or (),
        smoothing=medical.smoothing_for(options),
        keep=options.keep_frozen,
        reject=options.reject,
        reject_threshold=options.reject_threshold,
        calibrations=chosen_calibrations(options) if "calibration" in options else (),
        **chosen_inits(options, methods),
    )
    cache = chosen_cache(options)
    engine = chosen_engine(options)
    use_threads(options.threads)
    refuse_unused_names(options, options.datasets)
    options.backbone = medical.backbone_for(options, methods)
    makers = medical.case_makers([dataset_maker(options, spec) for spec in options.datasets], methods)
    # report problems with data and learned prompts before loading a large model
    datasets = [make() for make in makers]
    given = datasets[:: len(makers) // len(options.datasets)]  # without their second forms
    _tell_apart(options.datasets, [dataset.name for dataset in given])
    tell_folders(options.datasets, options.data)
    for dataset in datasets:
        settings.task_for(dataset)
        for sentence in overlaps(settings, dataset):
            tell(sentence)
    tell_cautions(settings.chosen, {dataset.name for dataset in datasets})
    tell_sequential(settings.chosen, engine)
    tell_missing_classes(datasets, settings.limit)
    clip = partial(
        backbone_on,
        options.backbone,
        precision=options.precision,
        compile=options.compile,
        architecture=options.architecture,
        quick_gelu=options.quick_gelu,
    )
    job = Job(
        backbone=medical.model_maker(options, methods) or clip,
        datasets=makers,
        settings=settings,
        folder=_run_folder(options),
        cache=cache,
        device=options.device,
        threads=options.threads,
        plugins=[path.absolute() for path in options.plugin],
        command=with_origins(options.command_line, options.datasets, given),
    )
    try:
        result = run_job(job, engine, chosen_reporter(), retry_unreadable=options.retry_unreadable)
    except KeyboardInterrupt:
        return interrupts.tell_stopped(f"; {_standing(job.folder)} Repeat the command to continue.")
    if print_found is not None:
        print_found(result.run, methods, as_json=options.json)
        tell_incomplete(result)
    else:
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
                f"The data sets {first[name]!r} and {spec!r} are both called {name!r}, so their rows could not be "
                "distinguished; rename one, or use a separate command for each."
            )
        first[name] = spec


def backbone_on(spec: str, device: str, **options: Any) -> Backbone:
    """The backbone on a device; of this module, so that worker processes can be sent it."""
    from otpt.backbones import load_backbone

    return load_backbone(spec, device=device, **options)


def dataset_maker(options: argparse.Namespace, spec: str) -> Callable[[], Dataset]:
    """How to load a data set as :func:`add_data_options` describe it."""
    from otpt.data import load_dataset

    return partial(
        load_dataset,
        str(spec),
        root=options.data,
        classes=chosen_classes(options),
        official_names=options.official_names,
        split=options.split,
    )


def chosen_reporter() -> Reporter:
    """Progress on a terminal, or lines of a log."""
    from rich.console import Console

    from otpt.evaluation import LogProgress, TerminalProgress

    console = Console(stderr=True, markup=False, highlight=False)
    if console.is_terminal:
        return TerminalProgress(console)
    return LogProgress(say=say)


def _run_folder(options: argparse.Namespace) -> Path:
    """Where the run goes; a name like that of a file is refused, because a folder of that name would surprise."""
    out: Path | None = options.out
    if out is not None and out.suffix.lower() in _FILES and not os.path.isdir(out):
        raise OtptError(
            f"The run cannot go to {str(out)!r}, which looks like a file; expected a folder, such as runs/{out.stem}. "
            f"`otpt metrics RUN -o {out.stem}.csv` then writes its numbers to a file."
        )
    return out or _default_folder(options)


def _default_folder(options: argparse.Namespace) -> Path:
    given = {name: value for name, value in vars(options).items() if name not in _NOT_IN_NAME}
    decisive = {name: str(value) for name, value in given.items() if value is not None or name not in _WHERE_GIVEN}
    digest = hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()[:8]
    slug = re.sub(r"[^A-Za-z0-9.-]+", "-", options.backbone).strip("-.") or "model"
    return Path("runs") / f"{slug[-60:]}-{digest}"


def _standing(folder: Path) -> str:
    from otpt.runs import Run

    try:
        run = Run(folder)
    except OtptError:
        return "nothing was finished yet."
    done, total = run.progress()
    return f"{done} of {total} images are finished in {str(folder)!r}."
