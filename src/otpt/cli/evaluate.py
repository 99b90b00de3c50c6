"""``otpt evaluate emoji/food --methods zero-shot o-tpt``: accuracy and calibration of methods on data sets."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, make_dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from otpt.cli import Stopped
from otpt.cli import options as o
from otpt.cli.app import command_line
from otpt.cli.terminal import note, print_json, say
from otpt.errors import OtptError
from otpt.plugins import import_plugins

if TYPE_CHECKING:
    from otpt.data import Dataset
    from otpt.evaluation import Engine, Progress, Result
    from otpt.methods import Method
    from otpt.prompts import Prompt

INCOMPLETE = 3
"""Exit code if images could not be read."""
DEFAULT_METHODS = ("zero-shot", "tpt", "c-tpt", "o-tpt")
_FILES = (".json", ".jsonl", ".csv", ".tsv", ".parquet", ".html", ".txt")
_NAMED = 3  # methods in a note; a sweep may have hundreds

Datasets = Annotated[
    str,
    o.option(
        "names of 'otpt datasets', folders of class folders, .csv or .parquet tables, tar shards ('x-{000..009}.tar')",
        metavar="DATASET",
    ),
]
RunFolder = Annotated[Path | None, o.out("run folder (default: runs/…, named after the command)", "RUN")]


@o.option_group("Run")
class RunOptions:
    """What is computed and stored."""

    bins: Annotated[int, o.option("bins of the calibration errors")] = 20
    workers: o.Workers = None
    threads: o.Threads = None
    json: o.Json = False
    retry_unreadable: Annotated[bool, o.option("retry images that could not be read", group="Storage")] = False
    save_probabilities: Annotated[bool, o.option("store all probabilities of every row", group="Storage")] = False
    shard_size: Annotated[int, o.option("images per shard", group="Storage")] = 64
    features: Annotated[
        Literal["full", "float16"], o.option("type of stored image features; float16 halves the cache", group="Storage")
    ] = "full"


PluginOptions: Any = Parameter(name="*")(
    make_dataclass(
        "PluginOptions",
        [
            (each.__name__.replace(".", "_"), each.Options, field(default=each.Options()))
            for each in import_plugins("commands")
        ],
        namespace={"__module__": __name__},
        frozen=True,
        kw_only=True,
    )
)
"""The options of all plugins, one field each."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """All options of an evaluation, with which `evaluate`, `sweep`, `calibrate` and `certify` run one."""

    datasets: Sequence[str]
    methods: Sequence[Method]
    prompts: Sequence[Prompt] | None
    seeds: Sequence[int]
    out: Path | None
    method: o.MethodOptions
    data: o.DataOptions
    model: o.ModelOptions
    run: RunOptions
    cache: o.CacheOptions
    ray: o.RayOptions
    calibration: o.CalibrationOptions = o.CalibrationOptions()
    plugins: PluginOptions = PluginOptions()
    all_tokens: bool = False

    def __call__(self) -> Result:
        """Check everything that can be checked without the model, then evaluate."""
        from otpt.evaluation import EvaluationSettings
        from otpt.evaluation import evaluate as run_evaluation

        if not self.datasets:
            raise OtptError("No DATASET was given; expected a name of 'otpt datasets', or a folder, table or shards.")
        plugins = [getattr(self.plugins, each.name) for each in fields(self.plugins)]
        for plugin in plugins:
            plugin.check(self.methods, self.method.set)
        settings = EvaluationSettings(
            methods=self.methods,
            prompts=self.prompts,
            seeds=self.seeds,
            views=self.method.recipe(),
            augmix=self.method.augmix,
            family=self.method.family,
            official_precision=bool(self.method.official_precision),
            limit=self.data.limit,
            shard_size=self.run.shard_size,
            features=self.run.features,
            all_tokens=self.all_tokens,
            save_probabilities=self.run.save_probabilities,
            n_bins=self.run.bins,
            contexts=self.method.context or (),
            attributes=self.method.attributes,
            calibrations=self.calibration.read(),
            **self.calibration.rejection(),
            **self.method.inits(self.methods),
            plugins={name: value for plugin in plugins for name, value in plugin.settings().items()},
        )
        folder = self.out or self._default_folder()
        _check_folder(folder)
        cache = self.cache.open()
        engine = self.ray.pick(self.run.workers, self.model.device)
        o.use_threads(self.run.threads)
        self._check_official_names()
        datasets = [self.data.load(spec) for spec in self.datasets]
        _check_names(self.datasets, [dataset.name for dataset in datasets])
        _note_folders(self.datasets, self.data.data)
        note_cautions(settings.run_methods, [dataset.name for dataset in datasets])
        _note_streams(settings.run_methods, engine)
        note_missing_classes(datasets, settings.limit)
        loaders = (plugin.loader(self.methods, self.model) for plugin in plugins)
        try:
            result = run_evaluation(
                datasets,
                next(filter(None, loaders), _model(self.model, datasets)),
                settings,
                out=folder,
                cache=cache,
                engine=engine,
                progress=make_progress(),
                device=self.model.device,
                threads=self.run.threads,
                plugins=[path.absolute() for path in self.method.plugin],
                command=_command_with_origins(self.datasets, datasets),
                retry_unreadable=self.run.retry_unreadable,
            )
        except KeyboardInterrupt:
            raise Stopped(f"; {_progress(folder)} Repeat the command to continue.") from None
        return result

    def _default_folder(self) -> Path:
        """A folder in runs/, the same for commands that give the same numbers."""
        decisive = (self.datasets, self.methods, self.prompts, self.seeds, self.method, self.data, self.model,
                    self.calibration, self.plugins, self.all_tokens, self.run.bins, self.run.features,
                    self.run.save_probabilities, self.run.shard_size)  # fmt: skip
        digest = hashlib.sha256(repr(decisive).encode()).hexdigest()[:8]
        slug = re.sub(r"[^A-Za-z0-9.-]+", "-", self.model.backbone).strip("-.") or "model"
        return Path("runs") / f"{slug[-60:]}-{digest}"

    def _check_official_names(self) -> None:
        from otpt.data import find_entry

        if not self.data.official_names:
            return
        if self.data.classes is not None:
            raise OtptError("--official-names was given with --classes; expected one of them.")
        entries = (find_entry(spec) for spec in self.datasets)
        if all(entry is None or entry.official_swap is None for entry in entries):
            raise OtptError("--official-names was given, but only Food101 has other official names; leave it out.")


def evaluate(
    *datasets: Datasets,
    methods: Annotated[
        tuple[str, ...], o.option("methods, or TOML files of them", "--methods", "--method", metavar="NAME")
    ] = DEFAULT_METHODS,
    seeds: o.Seeds = None,
    out: RunFolder = None,
    method: o.MethodOptions = o.MethodOptions(),
    data: o.DataOptions = o.DataOptions(),
    model: o.ModelOptions = o.ModelOptions(),
    run: RunOptions = RunOptions(),
    calibration: o.CalibrationOptions = o.CalibrationOptions(),
    cache: o.CacheOptions = o.CacheOptions(),
    ray: o.RayOptions = o.RayOptions(),
    plugins: PluginOptions = PluginOptions(),
) -> int:
    """Run all methods on all data sets in one pass. An interrupted run resumes when the command is repeated; another
    command on the same folder adds to the run. Exit code 3 if images could not be read."""
    prompt = method.context_prompt()
    result = Evaluation(
        datasets=datasets,
        methods=method.methods(methods),
        prompts=None if prompt is None else [prompt],
        seeds=seeds or (0,),
        out=out,
        method=method,
        data=data,
        model=model,
        run=run,
        cache=cache,
        ray=ray,
        calibration=calibration,
        plugins=plugins,
    )()
    return print_result(result, as_json=run.json)


def print_result(result: Result, *, as_json: bool) -> int:
    """Print one table of metrics, and what is missing; returns the exit code."""
    from otpt.cli.metrics import print_summary, records
    from otpt.evaluation import duration
    from otpt.report import open_results
    from otpt.runs import averages

    if as_json:
        print_json(
            {
                "run": str(result.run.folder),
                "seconds": result.seconds,
                "unreadable": result.unreadable,
                "scores": records(result.frame.drop(columns=["run", "model"])),
                "averages": averages(result.frame),
            }
        )
    else:
        print_summary(open_results([result.run.folder]))
        print(f"Rows and metrics are in {str(result.run.folder)!r}; this took {duration(result.seconds)}.")
    return say_incomplete(result)


def say_incomplete(result: Result) -> int:
    """Say which images could not be read, and what other commands left undone; returns the exit code."""
    if result.unreadable:
        (dataset, name), reason = next(iter(result.unreadable_images.items()))
        say(
            f"could not read {result.unreadable} of the images, the first of them {name!r} of {dataset}: "
            f"{reason.rstrip('.')}. The column 'error' of the rows has all reasons; --retry-unreadable tries again."
        )
    done, total = result.run.progress()
    if done < total:
        say(f"{total - done} of {total} images that other commands asked of this run are missing; repeat those.")
    return INCOMPLETE if result.unreadable else 0


def make_progress() -> Progress:
    """Progress on a terminal, or lines of a log."""
    from otpt.evaluation import Progress

    return Progress(log=say)


def note_cautions(methods: Sequence[Method], datasets: Sequence[str]) -> None:
    """Print each caution that concerns some of the data sets once, with the methods that it is about."""
    found: dict[str, list[str]] = {}
    for method in methods:
        found.setdefault(method.caution_on(set(datasets)), []).append(method.name)
    for caution, names in found.items():
        if caution:
            note(f"{_named(names)}: {caution}")


def note_missing_classes(datasets: Sequence[Dataset], limit: int | None) -> None:
    """Print which data sets have classes without an image under the limit."""
    from otpt.data import classes_without_images

    if limit is None:
        return
    missing = {data.name: (classes_without_images(data, limit), len(set(data.labels))) for data in datasets}
    found = [f"{count} of {classes} of {name}" for name, (count, classes) in missing.items() if count]
    if found:
        note(f"a limit of {limit} leaves classes without an image: {', '.join(found)}")


def _note_streams(methods: Sequence[Method], engine: Engine) -> None:
    from otpt.evaluation import LocalEngine
    from otpt.registry import STREAM

    streams = [method.name for method in methods if method.scope == STREAM]
    if streams and not isinstance(engine, LocalEngine):
        note(f"{_named(streams)}: each image depends on those before it, so one process computes a data set and seed.")


def _note_folders(specs: Sequence[str], root: Path | None) -> None:
    """Registered names that are also folders here."""
    from otpt.data import find_entry

    for spec in specs:
        entry, folder = find_entry(spec), Path(spec)
        if entry is None or not folder.is_dir():
            continue
        if root is None or not folder.resolve().is_relative_to(Path(os.path.expanduser(root)).resolve()):
            note(f"{spec!r} is the registered data set {entry.name}; for the folder here, write ./{spec}.")


def _check_names(specs: Sequence[str], names: Sequence[str]) -> None:
    first: dict[str, str] = {}
    for spec, name in zip(specs, names, strict=True):
        if name in first:
            raise OtptError(
                f"The data sets {first[name]!r} and {spec!r} are both called {name!r}; rename one, or use a separate "
                "command for each."
            )
        first[name] = spec


def _check_folder(folder: Path) -> None:
    if folder.suffix.lower() in _FILES and not folder.is_dir():
        raise OtptError(
            f"The run cannot go to {str(folder)!r}, which looks like a file; expected a folder, such as "
            f"runs/{folder.stem}. 'otpt metrics RUN -o {folder.stem}.csv' writes its numbers to a file."
        )


def _command_with_origins(specs: Sequence[str], datasets: Sequence[Dataset]) -> str:
    """The command with absolute paths of user data, so that it means the same in any folder."""
    origins = {spec: str(own.origin) for spec, own in zip(specs, datasets, strict=True) if own.is_own}
    return shlex.join(origins.get(word, word) for word in command_line())


def _model(model: o.ModelOptions, datasets: Sequence[Dataset]) -> Any:
    """How the model is loaded; None if the data sets have features of images and texts."""
    from otpt.data import FeatureDataset

    if all(each.text_features is not None for each in datasets):
        return None
    made = {each.backbone for each in datasets if isinstance(each, FeatureDataset) and each.backbone}
    named = made.pop() if len(made) == 1 and model.backbone == o.DEFAULT_BACKBONE else None
    return partial(_load, model, named)


def _load(model: o.ModelOptions, spec: str | None, device: str) -> Any:
    return model.load(spec, device=device)


def _named(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_NAMED])
    return shown if len(names) <= _NAMED else f"{shown} and {len(names) - _NAMED} more"


def _progress(folder: Path) -> str:
    from otpt.runs import Run

    try:
        done, total = Run(folder).progress()
    except OtptError:
        return "nothing was finished yet."
    return f"{done} of {total} images are finished in {str(folder)!r}."
