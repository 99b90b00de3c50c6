"""``otpt evaluate`` and ``otpt sweep``: accuracy and calibration of methods on data sets."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Annotated

from otpt import evaluation
from otpt.backbones import Backbone
from otpt.cli import options as o
from otpt.cli.labels import FILES, show_labels
from otpt.cli.outputs import refuse_existing
from otpt.cli.summaries import INCOMPLETE, frame_rows, print_summary
from otpt.cli.terminal import Stopped, command_line, note, print_json, say
from otpt.data import Dataset, FeatureDataset, classes_without_images, find_entry
from otpt.errors import OtptError
from otpt.evaluation import Evaluation, EvaluationSystem, Execution, Progress, Result, duration
from otpt.evaluation.request import DEFAULT_METHODS
from otpt.evaluation.sweeps import IMAGENET_80, read_templates, template_prompt
from otpt.methods import MULTI_LABEL, Method, preparer_of
from otpt.prompts import Prompt
from otpt.report import open_results
from otpt.runs import Run, averages

_FILES = (".json", ".jsonl", ".csv", ".tsv", ".parquet", ".html", ".txt")

Datasets = Annotated[
    str,
    o.option("names of 'otpt datasets', class folders, .csv or .parquet tables, tar shards", metavar="DATASET"),
]
Sweep = Annotated[
    tuple[str, ...],
    o.option(
        "each method with all combinations of values: views=8,32 lambda=1,6; with calibrations also coverage, risk …",
        metavar="NAME=V,V",
    ),
]
RunFolder = Annotated[Path | None, o.out("run folder (default: runs/…, named after the command)", "RUN")]


@o.option_group("Run")
class RunOptions(o.Options):
    """What is computed and stored."""

    n_bins: Annotated[int | None, o.setting(Evaluation, "n_bins", "--bins")] = None
    workers: o.Workers = None
    threads: o.Threads = None
    json: o.Json = False
    retry_unreadable: Annotated[bool, o.option("retry images that could not be read", group="Storage")] = False
    save_probabilities: Annotated[o.Flag, o.setting(Evaluation, "save_probabilities", group="Storage")] = None
    shard_size: Annotated[int | None, o.setting(Evaluation, "shard_size", group="Storage")] = None
    features: Annotated[str | None, o.setting(Evaluation, "features", group="Storage")] = None


@o.option_group()
class EvaluationOptions(o.Options):
    """The options that `evaluate`, `sweep`, `calibrate` and plugins' commands share."""

    seeds: Annotated[o.Numbers, o.setting(Evaluation, "seeds", "--seeds", "--seed")] = None
    method: o.MethodOptions = o.MethodOptions()
    data: o.DataOptions = o.DataOptions()
    model: o.ModelOptions = o.ModelOptions()
    run: RunOptions = RunOptions()
    cache: o.CacheOptions = o.CacheOptions()
    ray: o.RayOptions = o.RayOptions()

    def evaluate(
        self,
        datasets: Sequence[str],
        methods: Sequence[Method],
        *,
        out: Path | None,
        decision: o.DecisionOptions | None = None,
        multi_label: bool = False,
        changes: Mapping[str, object] = MappingProxyType({}),
    ) -> Result:
        """Check all options without the model, then evaluate.

        Args:
            datasets: names or paths of data sets.
            methods: methods to run.
            out: run folder; by default, one named after the options.
            decision: options of calibrations.
            multi_label: whether a data set is a table of images with several labels.
            changes: fields of :class:`Evaluation` that override the options.
        """
        self._check_datasets(datasets)
        decision = decision or o.DecisionOptions()
        groups = (self, self.run, self.data, self.method, decision)
        values = {name: value for group in groups for name, value in group.keywords().items()}
        request = Evaluation(**{**values, "methods": methods, **changes})
        folder = out or self._default_folder((datasets, methods, multi_label, changes, decision))
        _check_folder(folder)
        pool = self.ray.open_pool(self.run.workers, self.model.device)
        o.use_threads(self.run.threads)
        loaded = [self.data.load(spec, multi_label=multi_label) for spec in datasets]
        decision.note_promises(request.decision)
        note_cautions(request.run_methods, [dataset.name for dataset in loaded])
        note_missing_classes(loaded, request.limit)
        execution = Execution(
            cache=self.cache.open(),
            pool=pool,
            progress=Progress(log=say),
            device=self.model.device,
            threads=self.run.threads,
            plugins=tuple(path.absolute() for path in self.method.plugin),
            command=command_line(),
            retry_unreadable=self.run.retry_unreadable,
        )
        try:
            return evaluation.evaluate(
                loaded, _model_loader(self.model, loaded, methods), request, out=folder, execution=execution
            )
        except KeyboardInterrupt:
            raise Stopped(f"; {_finished(folder)} Repeat the command to continue.") from None

    def _default_folder(self, decisive: object) -> Path:
        """Return a folder in runs/, the same for commands that give the same numbers."""
        run = replace(self.run, workers=None, threads=None, json=False, retry_unreadable=False)
        options = replace(self, run=run, cache=o.CacheOptions(), ray=o.RayOptions())
        digest = hashlib.sha256(repr((decisive, options)).encode()).hexdigest()[:8]
        slug = re.sub(r"[^A-Za-z0-9.-]+", "-", self.model.backbone).strip("-.") or "model"
        return Path("runs") / f"{slug[-60:]}-{digest}"

    def _check_datasets(self, datasets: Sequence[str]) -> None:
        if not datasets:
            raise OtptError("No DATASET was given; expected a name of 'otpt datasets', or a folder, table or shards.")
        swapped = any(getattr(find_entry(spec), "official_swap", None) for spec in datasets)
        if self.data.official_names and (self.data.classes or not swapped):
            raise OtptError("--official-names has no effect here: only Food101 has them, and --classes replaces them.")


def evaluate(
    *datasets: Datasets,
    methods: Annotated[
        o.Several, o.methods(f"methods, or TOML files of them (default: {' '.join(DEFAULT_METHODS)})")
    ] = None,
    out: RunFolder = None,
    multi_label: Annotated[
        bool,
        o.option(
            "DATASET is a table with the columns path and labels (by semicolons); --out may be .csv, .json or .html"
        ),
    ] = False,
    sweep: Sweep = (),
    overwrite: Annotated[bool, o.option("with --multi-label, replace the file of --out", group="Storage")] = False,
    options: EvaluationOptions = EvaluationOptions(),
    decision: o.DecisionOptions = o.DecisionOptions(),
) -> int:
    """Run all methods on all data sets in one pass. An interrupted run resumes when the command is repeated; another
    command on the same folder adds to the run. Exit code 3 if images could not be read.

    otpt evaluate emoji/food --backbone pocket --methods zero-shot o-tpt
    otpt evaluate dtd pets --data ~/data --seeds 0 1 2 --out runs/two
    otpt evaluate my-images/ --classes @names.txt --limit 500 --json
    otpt evaluate dtd --data ~/data --methods zero-shot o-tpt --sweep views=8,32 lambda=1,6,18
    """
    multi_label = multi_label or options.data.asks_one_class()
    default = (MULTI_LABEL,) if multi_label else DEFAULT_METHODS
    chosen = options.method.methods(methods or default)
    writes_file = multi_label and out is not None and out.suffix.lower() in FILES
    if writes_file and out is not None and not overwrite:
        refuse_existing(iter([out]))
    elif overwrite and not writes_file:
        raise OtptError("--overwrite is for the file of --out with --multi-label; a run folder is continued.")
    changes = {"sweep": sweep} if sweep else {}
    if multi_label:
        return _evaluate_labels(datasets, chosen, out, options, decision, changes)
    result = options.evaluate(datasets, chosen, out=out, decision=decision, changes=changes)
    return print_result(result, as_json=options.run.json)


def _evaluate_labels(
    datasets: Sequence[str],
    methods: Sequence[Method],
    out: Path | None,
    options: EvaluationOptions,
    decision: o.DecisionOptions,
    changes: Mapping[str, object],
) -> int:
    """Evaluate several labels per image, and print or write the metrics of all labels and of each."""
    file = out if out is not None and out.suffix.lower() in FILES else None
    if file is not None and (file.is_dir() or not file.absolute().parent.is_dir()):
        raise OtptError(f"Cannot write {str(file)!r}; expected a new file in an existing folder.")
    folder = out if file is None else None
    result = options.evaluate(datasets, methods, out=folder, decision=decision, multi_label=True, changes=changes)
    show_labels([result.run], out=file, as_json=options.run.json, title=", ".join(datasets))
    if not options.run.json:
        print(f"\nRows and metrics are in {str(result.run.folder)!r}.")
    return say_incomplete(result)


def sweep(
    *datasets: Datasets,
    methods: Annotated[tuple[str, ...], o.methods("methods to vary")] = ("o-tpt",),
    sweep: Sweep = (),
    prompts: Annotated[
        o.Several, o.option("sentences with {} or words before the class name, @FILE, or imagenet-80", metavar="TEXT")
    ] = None,
    out: RunFolder = None,
    options: EvaluationOptions = EvaluationOptions(),
    decision: o.DecisionOptions = o.DecisionOptions(),
) -> int:
    """Run methods under all combinations of values, and under many prompts. Images are encoded once, and gradients are
    shared. 'otpt plot sweep RUN' draws a metric against a setting, 'otpt plot heatmap RUN' against two, and 'otpt table
    RUN --layout sweep' prints them.

    otpt sweep dtd --data ~/data --sweep views=8,32 lambda=0,6,18
    otpt sweep emoji/food --backbone pocket --prompts imagenet-80
    """
    if options.method.prompt is not None:
        raise OtptError("--prompt was given to a sweep; write --prompts.")
    several = next((word for word in options.method.set if "," in word), None)
    if several is not None:
        raise OtptError(f"--set was given {several!r}, which sets one value; write --sweep {several}.")
    if not sweep and prompts is None:
        raise OtptError("Nothing to sweep over: give values after --sweep, such as lambda=0,1,2,6, or --prompts @FILE.")
    changes: dict[str, object] = {"sweep": sweep} if sweep else {}
    if prompts is not None:
        changes |= {"prompts": [prompt for word in prompts for prompt in _prompts(word)], "all_tokens": True}
    chosen = options.method.methods(methods)
    result = options.evaluate(datasets, chosen, out=out, decision=decision, changes=changes)
    return print_result(result, as_json=options.run.json)


def _prompts(word: str) -> list[Prompt]:
    if word.startswith("@") or word == IMAGENET_80:
        return read_templates(Path(word.removeprefix("@")).expanduser())
    return [template_prompt(word) if "{}" in word else Prompt(word)]


def print_result(result: Result, *, as_json: bool) -> int:
    """Print one table of metrics and missing images; returns the exit code."""
    if as_json:
        print_json(
            {
                "run": str(result.run.folder),
                "seconds": result.seconds,
                "unreadable": result.unreadable,
                "scores": frame_rows(result.frame.drop(columns=["run", "model"])),
                "averages": averages(result.frame),
            }
        )
    else:
        print_summary(open_results([result.run.folder]))
        print(f"Rows and metrics are in {str(result.run.folder)!r}; this took {duration(result.seconds)}.")
    return say_incomplete(result)


def say_incomplete(result: Result) -> int:
    """Print unreadable images, and those that other commands left undone; returns the exit code."""
    if result.unreadable:
        (dataset, name), reason = next(iter(result.unreadable_images.items()))
        say(
            f"could not read {result.unreadable} of the images, the first of them {name!r} of {dataset}: "
            f"{reason.rstrip('.')}. The column 'error' of the rows has all reasons; --retry-unreadable tries again."
        )
    done, total = result.run.progress()
    if done < total:
        say(f"{total - done} of {total} images of other commands for this run are missing; repeat those commands.")
    return INCOMPLETE if result.unreadable else 0


def note_cautions(methods: Sequence[Method], datasets: Sequence[str]) -> None:
    """Print each caution about the data sets once, with its methods."""
    cautions: dict[str, list[str]] = {}
    for method in methods:
        cautions.setdefault(method.caution_on(set(datasets)), []).append(method.name)
    for caution, names in cautions.items():
        rest = f" and {len(names) - 3} more" if len(names) > 3 else ""  # a sweep may have hundreds
        if caution:
            note(f"{', '.join(names[:3])}{rest}: {caution}")


def note_missing_classes(datasets: Sequence[Dataset], limit: int | None) -> None:
    """Print which data sets have classes without an image under the limit."""
    for dataset in datasets:
        count = 0 if limit is None else classes_without_images(dataset, limit)
        if count:
            classes = len(set(dataset.labels))
            note(f"{dataset.name}: a limit of {limit} leaves {count} of {classes} classes without an image")


def _check_folder(folder: Path) -> None:
    """Raise an :class:`OtptError` for a run folder that looks like a file."""
    if folder.is_file() or (folder.suffix.lower() in _FILES and not folder.is_dir()):
        raise OtptError(
            f"The run cannot go to {str(folder)!r}, a file; expected a folder, such as "
            f"runs/{folder.stem}. 'otpt metrics RUN -o {folder.stem}.csv' writes its numbers to a file."
        )


def _finished(folder: Path) -> str:
    """Return a sentence on how much of a run is finished."""
    try:
        done, total = Run(folder).progress()
    except OtptError:
        return "nothing was finished yet."
    return f"{done} of {total} images are finished in {str(folder)!r}."


@dataclass(frozen=True)
class ModelLoader:
    """Function of a device that loads the model of an evaluation, in any process.

    Attributes:
        options: the options of the model.
        backbone: name of the model if the options name none; None for the default.
        system: system that may bring its own model, or None.
    """

    options: o.ModelOptions
    backbone: str | None = None
    system: EvaluationSystem | None = None

    def __call__(self, device: str) -> Backbone:
        """Load the model of the system, or the one that the options name."""
        if self.system is not None:
            backbone = self.system.load_model(self.options.chosen, device, self.options.precision)
            if backbone is not None:
                self._refuse_details()
                return backbone
        return self.options.load(device, backbone=self.options.chosen or self.backbone)

    def _refuse_details(self) -> None:
        options = self.options
        plain = o.ModelOptions(chosen=options.chosen, device=options.device, precision=options.precision)
        if options != plain:
            name = self.system.name if self.system is not None else ""
            raise OtptError(
                f"{name} loads a model of its own, without --compile, --architecture and --quick-gelu; leave them out."
            )


def _model_loader(model: o.ModelOptions, datasets: Sequence[Dataset], methods: Sequence[Method]) -> ModelLoader | None:
    """Return a function that loads the model, or None if the data sets contain all features."""
    if all(dataset.text_features is not None for dataset in datasets):
        return None
    stored = {dataset.backbone for dataset in datasets if isinstance(dataset, FeatureDataset) and dataset.backbone}
    systems = [preparer_of(method) for method in methods]
    system = next((system for system in systems if isinstance(system, EvaluationSystem)), None)
    return ModelLoader(model, stored.pop() if len(stored) == 1 else None, system)
