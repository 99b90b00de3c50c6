"""``otpt evaluate`` and ``otpt sweep``: accuracy and calibration of methods on data sets."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import field, fields, make_dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

import otpt
from otpt.cli import Stopped
from otpt.cli import options as o
from otpt.cli.terminal import command_line, make_progress, note, print_json, say
from otpt.errors import OtptError
from otpt.plugins import import_plugins
from otpt.settings import MULTI_LABEL

INCOMPLETE = 3
"""Exit code if images could not be read."""
DEFAULT_METHODS = ("zero-shot", "tpt", "c-tpt", "o-tpt")
_FILES = (".json", ".jsonl", ".csv", ".tsv", ".parquet", ".html", ".txt")

Datasets = Annotated[
    str,
    o.option("names of 'otpt datasets', class folders, .csv or .parquet tables, tar shards", metavar="DATASET"),
]

RunFolder = Annotated[Path | None, o.out("run folder (default: runs/…, named after the command)", "RUN")]


@o.option_group("Run")
class RunOptions:
    """What is computed and stored."""

    n_bins: Annotated[int, o.option("bins of the calibration errors", "--bins")] = 20
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
            for each in import_plugins("options")
        ],
        namespace={"__module__": __name__},
        frozen=True,
        kw_only=True,
    )
)
"""The options of all plugins, one field each."""


@o.option_group()
class EvaluationOptions:
    """The options that `evaluate`, `sweep`, `calibrate` and `certify` share."""

    seeds: Annotated[o.Numbers, o.seeds("seeds of the views, or of certify's noise (default: 0; certify: 3)")] = None
    method: o.MethodOptions = o.MethodOptions()
    data: o.DataOptions = o.DataOptions()
    model: o.ModelOptions = o.ModelOptions()
    run: RunOptions = RunOptions()
    cache: o.CacheOptions = o.CacheOptions()
    ray: o.RayOptions = o.RayOptions()

    def evaluate(
        self,
        datasets: Sequence[str],
        methods: Sequence[otpt.Method],
        *,
        out: Path | None,
        calibration: o.CalibrationOptions | None = None,
        plugins: Any = None,
        **more: Any,
    ) -> otpt.evaluation.Result:
        """Check all options without the model, then evaluate.

        Args:
            plugins: a ``PluginOptions``.
            more: fields of EvaluationSettings that override the options.
        """
        swapped = any(getattr(otpt.data.find_entry(each), "official_swap", None) for each in datasets)
        if self.data.official_names and (self.data.classes or not swapped):
            raise OtptError("--official-names has no effect here: only Food101 has them, and --classes replaces them.")
        if not datasets:
            raise OtptError("No DATASET was given; expected a name of 'otpt datasets', or a folder, table or shards.")
        hooks = [getattr(plugins, each.name) for each in fields(plugins)] if plugins else []
        for hook in hooks:
            hook.check(methods, self.method.set)
        chosen: dict[str, Any] = {
            **o.given(self.run, otpt.evaluation.EvaluationSettings.model_fields),
            **self.method.settings(methods),
            **({} if calibration is None else calibration.settings()),
            "methods": methods,
            "seeds": self.seeds or (0,),
            "limit": self.data.limit,
            "plugins": {name: value for hook in hooks for name, value in hook.settings().items()},
        }
        settings = otpt.evaluation.EvaluationSettings(**{**chosen, **more})
        run = replace(self.run, workers=None, threads=None, json=False, retry_unreadable=False)
        decisive = (datasets, methods, more, calibration, plugins, self.seeds, self.method, self.data, self.model, run)
        folder = out or _default_folder(self.model.backbone, decisive)
        if folder.is_file() or (folder.suffix.lower() in _FILES and not folder.is_dir()):
            raise OtptError(
                f"The run cannot go to {str(folder)!r}, a file; expected a folder, such as "
                f"runs/{folder.stem}. 'otpt metrics RUN -o {folder.stem}.csv' writes its numbers to a file."
            )
        engine = self.ray.pick(self.run.workers, self.model.device)
        o.use_threads(self.run.threads)
        loaded = [self.data.load(spec, multi_label=settings.multi_label) for spec in datasets]
        note_cautions(settings.run_methods, [dataset.name for dataset in loaded])
        note_missing_classes(loaded, settings.limit)
        loaders = (hook.loader(methods, self.model) for hook in hooks)
        try:
            return otpt.evaluation.evaluate(
                loaded,
                next(filter(None, loaders), _loader(self.model, loaded)),
                settings,
                out=folder,
                cache=self.cache.open(),
                engine=engine,
                progress=make_progress(),
                device=self.model.device,
                threads=self.run.threads,
                plugins=[path.absolute() for path in self.method.plugin],
                command=command_line(),
                retry_unreadable=self.run.retry_unreadable,
            )
        except KeyboardInterrupt:
            state = "nothing was finished yet."
            with suppress(OtptError):
                done, total = otpt.runs.Run(folder).progress()
                state = f"{done} of {total} images are finished in {str(folder)!r}."
            raise Stopped(f"; {state} Repeat the command to continue.") from None


def evaluate(
    *datasets: Datasets,
    methods: Annotated[tuple[str, ...], o.methods("methods, or TOML files of them")] = DEFAULT_METHODS,
    out: RunFolder = None,
    multi_label: Annotated[
        bool,
        o.option(
            "DATASET is a table with the columns path and labels (by semicolons); --out may be .csv, .json or .html"
        ),
    ] = False,
    options: EvaluationOptions = EvaluationOptions(),
    calibration: o.CalibrationOptions = o.CalibrationOptions(),
    plugins: PluginOptions = PluginOptions(),
) -> int:
    """Run all methods on all data sets in one pass. An interrupted run resumes when the command is repeated; another
    command on the same folder adds to the run. Exit code 3 if images could not be read.

    otpt evaluate emoji/food --backbone pocket --methods zero-shot o-tpt
    otpt evaluate dtd pets --data ~/data --seeds 0 1 2 --out runs/two
    otpt evaluate my-images/ --classes @names.txt --limit 500 --json
    """
    if multi_label:
        from otpt.cli.labels import FILES, show_labels

        file = out if out is not None and out.suffix.lower() in FILES else None
        if file is not None and (file.is_dir() or not file.absolute().parent.is_dir()):
            raise OtptError(f"Cannot write {str(file)!r}; expected a new file in an existing folder.")
        chosen = options.method.methods([MULTI_LABEL] if methods == DEFAULT_METHODS else methods)
        folder = None if file else out
        result = options.evaluate(datasets, chosen, out=folder, calibration=calibration, multi_label=True)
        show_labels([result.run], out=file, as_json=options.run.json, title=", ".join(datasets))
        if not options.run.json:
            print(f"\nRows and metrics are in {str(result.run.folder)!r}.")
        return say_incomplete(result)
    chosen = options.method.methods(methods)
    result = options.evaluate(datasets, chosen, out=out, calibration=calibration, plugins=plugins)
    return print_result(result, as_json=options.run.json)


def sweep(
    *datasets: Datasets,
    methods: Annotated[tuple[str, ...], o.methods("methods to vary")] = ("o-tpt",),
    prompts: Annotated[
        tuple[str, ...] | None,
        o.option("sentences with {} or words before the class name, @FILE, or imagenet-80", metavar="TEXT"),
    ] = None,
    out: RunFolder = None,
    options: EvaluationOptions = EvaluationOptions(),
) -> int:
    """Run methods under all combinations of settings (--set lambda=0,1,2,6,18,54) and under many prompts. Images are
    encoded once, and gradients are shared. 'otpt plot sweep RUN' draws a metric against a setting.

    otpt sweep dtd --data ~/data --set lambda=0,6,18 steps=1,2
    otpt sweep emoji/food --backbone pocket --prompts imagenet-80
    """
    from otpt.evaluation.sweeps import parse_values, sweep_method

    if options.method.prompt is not None:
        raise OtptError("--prompt was given to a sweep; write --prompts.")
    values = parse_values(options.method.set)
    if not values and prompts is None:
        raise OtptError("Nothing to sweep over: give values after --set, such as lambda=0,1,2,6, or --prompts @FILE.")
    chosen = o.MethodOptions(plugin=options.method.plugin).methods(methods)
    variants = [variant for each in chosen for variant in sweep_method(each, values)]
    more: dict[str, Any] = {}
    if prompts is not None:
        more = {"prompts": [prompt for word in prompts for prompt in _prompts(word)], "all_tokens": True}
    result = options.evaluate(datasets, variants, out=out, **more)
    return print_result(result, as_json=options.run.json)


def _prompts(word: str) -> list[otpt.Prompt]:
    from otpt.evaluation.sweeps import IMAGENET_80, read_templates, template_prompt

    if word.startswith("@") or word == IMAGENET_80:
        return read_templates(Path(word.removeprefix("@")).expanduser())
    return [template_prompt(word) if "{}" in word else otpt.Prompt(word)]


def print_result(result: otpt.evaluation.Result, *, as_json: bool) -> int:
    """Print one table of metrics and missing images; returns the exit code."""
    from otpt.cli.results import print_summary, records

    if as_json:
        print_json(
            {
                "run": str(result.run.folder),
                "seconds": result.seconds,
                "unreadable": result.unreadable,
                "scores": records(result.frame.drop(columns=["run", "model"])),
                "averages": otpt.runs.averages(result.frame),
            }
        )
    else:
        print_summary(otpt.report.open_results([result.run.folder]))
        print(
            f"Rows and metrics are in {str(result.run.folder)!r}; this took {otpt.evaluation.duration(result.seconds)}."
        )
    return say_incomplete(result)


def say_incomplete(result: otpt.evaluation.Result) -> int:
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


def note_cautions(methods: Sequence[otpt.Method], datasets: Sequence[str]) -> None:
    """Print each caution about the data sets once, with its methods."""
    found: dict[str, list[str]] = {}
    for method in methods:
        found.setdefault(method.caution_on(set(datasets)), []).append(method.name)
    for caution, names in found.items():
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""  # a sweep may have hundreds
        if caution:
            note(f"{', '.join(names[:3])}{more}: {caution}")


def note_missing_classes(datasets: Sequence[otpt.data.Dataset], limit: int | None) -> None:
    """Print which data sets have classes without an image under the limit."""
    for data in datasets:
        count = 0 if limit is None else otpt.data.classes_without_images(data, limit)
        if count:
            note(f"{data.name}: a limit of {limit} leaves {count} of {len(set(data.labels))} classes without an image")


def _default_folder(backbone: str, decisive: object) -> Path:
    """Return a folder in runs/, the same for commands that give the same numbers."""
    digest = hashlib.sha256(repr(decisive).encode()).hexdigest()[:8]
    slug = re.sub(r"[^A-Za-z0-9.-]+", "-", backbone).strip("-.") or "model"
    return Path("runs") / f"{slug[-60:]}-{digest}"


def _loader(model: o.ModelOptions, datasets: Sequence[otpt.data.Dataset]) -> Any:
    """Return a function that loads the model, or None if the data sets contain all features."""
    if all(each.text_features is not None for each in datasets):
        return None
    made = {each.backbone for each in datasets if isinstance(each, otpt.data.FeatureDataset) and each.backbone}
    return partial(model.load, backbone=model.chosen or (made.pop() if len(made) == 1 else None))
