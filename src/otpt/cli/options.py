"""Groups of options that several commands share.

Options that are fields of :class:`otpt.settings.Settings` take their help and default from there.
"""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, dataclass_transform, get_type_hints

from cyclopts import Parameter

from otpt.cli.terminal import note
from otpt.errors import OtptError, cannot_read
from otpt.settings import Settings

if TYPE_CHECKING:
    from otpt.backbones import Backbone
    from otpt.calibration import Calibrated
    from otpt.data import ClassList, Dataset
    from otpt.evaluation import Engine
    from otpt.features.cache import FeatureCache
    from otpt.methods import Method
    from otpt.prompts import Prompt, Templates
    from otpt.views import ViewRecipe

DEFAULT_BACKBONE = "ViT-B-16/openai"
ADVANCED = (
    "Model details",
    "Prompt and initial values",
    "Weights and rounding",
    "Prediction sets and abstention",
    "Rejection",
    "Storage",
    "Cache",
    "Ray",
    "Medical systems",
    "Limits",
)
"""Groups that only ``--help-all`` shows."""

T = TypeVar("T")
_FIELDS = {"prompt": "prompts", "context": "contexts", "calibration": "calibrations"}
"""Options whose field of Settings has another name."""


def option(help: str, *names: str, **more: Any) -> Parameter:
    """An option with its help."""
    return Parameter(name=names or None, help=help, **more)


def setting(field: str, *names: str, **more: Any) -> Parameter:
    """An option for a field of Settings, whose description is the help."""
    found = Settings.model_fields[field]
    text, default = found.description or "", found.default
    if "default" not in text and type(default) in (int, float, str):
        text += f" (default: {default})"
    return option(text, *names, **more)


@dataclass_transform(kw_only_default=True, frozen_default=True)
def option_group(title: str) -> Callable[[type[T]], type[T]]:
    """Make a class of options a frozen dataclass under a heading.

    Options without a help of their own are fields of Settings; None means that the option was not given.
    """

    def make(cls: type[T]) -> type[T]:
        hints = get_type_hints(cls, include_extras=True)
        for name in cls.__annotations__:
            if not hasattr(hints[name], "__metadata__"):
                cls.__annotations__[name] = Annotated[hints[name], setting(_FIELDS.get(name, name))]
        return Parameter(name="*", group=title)(dataclass(frozen=True, kw_only=True)(cls))

    return make


def given(*groups: Any) -> dict[str, Any]:
    """The options of groups that were given, under their names in Settings."""
    values = {each.name: getattr(group, each.name) for group in groups for each in fields(group)}
    known = {_FIELDS.get(name, name): value for name, value in values.items() if value is not None}
    return {name: value for name, value in known.items() if name in Settings.model_fields}


Several = tuple[str, ...] | None
Flag = bool | None

Methods = Annotated[Several, setting("methods", "--methods", "--method", metavar="NAME")]
Seeds = Annotated[tuple[int, ...] | None, option("seeds of the views (default: 0)", "--seeds", "--seed")]
Seed = Annotated[int | None, setting("seed", "--seeds", "--seed")]
ChosenMethods = Annotated[Several, option("only these methods of the runs", "--methods", "--method", metavar="NAME")]
ChosenSeeds = Annotated[tuple[int, ...] | None, option("only these seeds of the runs", "--seeds", "--seed")]
ChosenDatasets = Annotated[Several, option("only these data sets of the runs", metavar="NAME")]
Classes = Annotated[
    Several, option("class names in label order, a comma list, or @FILE with one per line", metavar="NAME")
]
Runs = Annotated[Path, option("run folders", metavar="RUN")]
Data = Annotated[Path | None, option("folder with the data sets", metavar="ROOT")]
Json = Annotated[bool, option("print JSON")]
Threads = Annotated[int | None, option("threads per process; 0: one, which also decodes (default: one per core)")]
Workers = Annotated[int | None, option("processes (default: one per GPU, or one)")]
Plugins = Annotated[
    tuple[Path, ...],
    option("Python files whose @otpt.objective, @otpt.calibrator … functions become parts of names", metavar="FILE"),
]
Bins = Annotated[int | None, option("bins of the calibration errors, at most 100 (default: as in the runs)")]
Side = Annotated[Literal["right", "left"] | None, option("bins (lo, hi] or [lo, hi) (default: as in the runs)")]
Intervals = Annotated[
    tuple[float, ...] | None,
    option("bootstrap intervals over images, of 0.95 by default", consume_multiple=(0, 1), metavar="[LEVEL]"),
]


def optional(words: tuple[T, ...] | None, default: T) -> T | None:
    """The value of an option whose value may be left out; None if the option was not given."""
    return None if words is None else words[0] if words else default


def out(help: str, metavar: str = "FILE") -> Parameter:
    """The option ``--out``."""
    return option(help, "--out", "-o", metavar=metavar)


@option_group("Model")
class ModelOptions:
    """Which model, and where it runs."""

    backbone: Annotated[str, option("open_clip NAME/TAG, hf-hub:…, local-dir:… or a file (see 'otpt models')")] = (
        DEFAULT_BACKBONE
    )
    device: Annotated[str, option("auto, cpu, cuda, cuda:1 or mps")] = "auto"
    precision: Annotated[
        str, option("float32, bf16 or fp16 (image tower), bf16-both or fp16-both (both towers), float64")
    ] = "float32"
    architecture: Annotated[
        str | None, option("open_clip architecture of a checkpoint file", group="Model details", metavar="NAME")
    ] = None
    quick_gelu: Annotated[
        Flag, option("activation of the weights (default: by tag)", negative="--no-quick-gelu", group="Model details")
    ] = None
    compile: Annotated[bool, option("torch.compile the image tower, which takes a minute", group="Model details")] = (
        False
    )

    def load(self, spec: str | None = None, *, device: str | None = None) -> Backbone:
        """Load the model, or another one with the same options."""
        from otpt.backbones import load_backbone

        return load_backbone(
            spec or self.backbone,
            device=device or self.device,
            precision=self.precision,
            compile=self.compile,
            architecture=self.architecture,
            quick_gelu=self.quick_gelu,
        )


@option_group("Method")
class MethodOptions:
    """Prompts, views and numbers of the methods."""

    set: Annotated[
        tuple[str, ...],
        option("numbers of the methods: lambda=6, steps=2, learning-rate=0.01 …", metavar="NAME=VALUE"),
    ] = ()
    prompt: str | None = None
    views: int | None = None
    budget: int | None = None
    augmix: Annotated[Flag, setting("augmix", negative="--no-augmix", group="Weights and rounding")] = None
    family: Annotated[Literal["fine-grained", "shift"] | None, setting("family", group="Weights and rounding")] = None
    official_precision: Annotated[Flag, setting("official_precision", group="Weights and rounding")] = None
    prompt_tokens: Annotated[
        int | None, option("tokens of the prompt to tune, if words are not single tokens", group=ADVANCED[1])
    ] = None
    context: Annotated[Several, setting("contexts", group=ADVANCED[1], metavar="FILE")] = None
    attributes: Annotated[str | None, setting("attributes", group=ADVANCED[1], metavar="FILE")] = None
    templates: Annotated[Several, setting("templates", group=ADVANCED[1], metavar="TEXT|@FILE")] = None
    fpp: Annotated[Several, setting("fpp", group=ADVANCED[1], metavar="NAME=VALUE")] = None
    plugin: Annotated[Plugins, Parameter(group=ADVANCED[1])] = ()

    def methods(self, names: Sequence[str]) -> tuple[Method, ...]:
        """Load the plugins, look the methods up, and apply ``--set`` to each method that has the setting."""
        from otpt.methods import get_methods, load_plugin

        for path in self.plugin:
            load_plugin(path)
        settings = pairs(self.set, "--set", "lambda=6")
        methods = get_methods(names)
        if "calibrate" in settings:  # first, since a temperature may come with it
            calibration = {"calibrate": settings.pop("calibrate")}
            methods = tuple(method.override(calibration) for method in methods)
        for name, value in settings.items():
            if not any(method.has_setting(name) for method in methods):
                methods[0].override({name: value})  # raises, and says why
        return tuple(
            method.override({name: value for name, value in settings.items() if method.has_setting(name)})
            for method in methods
        )

    def context_prompt(self, words: str | None = None) -> Prompt | None:
        """The prompt of ``--prompt`` and ``--prompt-tokens``; ``words`` are used if there is none."""
        from otpt.prompts import Prompt

        words = self.prompt if self.prompt is not None else words
        if words is None and self.prompt_tokens is not None:
            raise OtptError("--prompt-tokens was given without --prompt; expected both.")
        return None if words is None else Prompt(words, tokens=self.prompt_tokens)

    def recipe(self) -> ViewRecipe:
        """The views of ``--views`` or ``--budget``."""
        from otpt.views import ViewRecipe

        if self.budget is not None and self.views is not None:
            raise OtptError("--views and --budget were given; expected one of them.")
        if self.budget is not None:
            return ViewRecipe.within(self.budget)
        return ViewRecipe() if self.views is None else ViewRecipe(n_views=self.views)

    def inits(self, methods: Sequence[Method]) -> dict[str, Any]:
        """``--templates`` and ``--fpp`` as Settings takes them; refused where no method starts from them."""
        from otpt.registry import INITS
        from otpt.settings import Fpp

        named = ", ".join(method.name for method in methods)
        used = {INITS[method.init].uses for method in methods}
        for name in ("templates", "fpp"):
            if getattr(self, name) is not None and name not in used:
                raise OtptError(f"--{name} was given, but no method starts from the part {name!r} ({named}).")
        numbers = {name.replace("-", "_"): value for name, value in pairs(self.fpp or (), "--fpp", "steps=200").items()}
        return {
            "templates": None if self.templates is None else read_templates(self.templates),
            "fpp": Fpp(**numbers),  # type: ignore[arg-type]  # pydantic reads the numbers
        }


@option_group("Prediction sets and abstention")
class CalibrationOptions:
    """Calibration files and what is asked of them."""

    calibration: Annotated[tuple[Path, ...], setting("calibrations", group="Method", metavar="FILE")] = ()
    coverage: float | None = None
    sets: Literal["lac", "aps", "raps"] | None = None
    mondrian: Flag = None
    risk: float | None = None
    guarantee: float | None = None
    reject: Annotated[Several, setting("reject", consume_multiple=(0, 1), metavar="[SCORE]", group="Rejection")] = None
    reject_threshold: Annotated[float | None, setting("reject_threshold", group="Rejection")] = None

    def read(self) -> list[Calibrated]:
        """Read the calibration files; coverage and risk without one are refused."""
        from otpt.calibration import Calibrated, read_calibration

        asked = {name: getattr(self, name) for name in ("coverage", "sets", "mondrian", "risk", "guarantee")}
        asked = {name: value for name, value in asked.items() if value is not None}
        lost = next((name for name in ("coverage", "mondrian", "risk") if name in asked), None)
        if not self.calibration and lost is not None:
            raise OtptError(f"--{lost} was given without --calibration; expected a file of 'otpt calibrate'.")
        found = []
        for path in self.calibration:
            own = Calibrated(read_calibration(path), **asked)
            found.append(own)
            if own.threshold is not None:
                note(
                    f"{path}: answers above a confidence of {max(own.threshold.threshold, 0.0):.4f} are wrong at most "
                    f"{own.threshold.risk:g} of the time, with probability {own.threshold.guarantee:g}; "
                    f"{own.threshold.answered} of {own.threshold.labels} labelled images are answered."
                )
            if own.mondrian and own.always_in:
                note(f"{path}: {own.always_in} classes have too few labels for this coverage and are in every set.")
        return found

    def rejection(self) -> dict[str, Any]:
        """The fields of Settings that mark images of none of the classes."""
        score = True if self.reject == () else optional(self.reject, "")
        return {"reject": score, "reject_threshold": self.reject_threshold}


@option_group("Data")
class DataOptions:
    """Where data sets are, and which part of them is used."""

    data: Data = None
    classes: Classes = None
    split: Annotated[str, option("test, val or train")] = "test"
    limit: Annotated[int | None, option("only N images of each set, all classes in proportion")] = None
    drop_missing_texts: Annotated[
        bool, option("of a file of features, leave out classes without a text feature", group=ADVANCED[1])
    ] = False
    official_names: Annotated[
        bool, option("the papers' class names of Food101, with two swapped", group="Weights and rounding")
    ] = False

    def load(self, spec: str, *, split: str | None = None) -> Dataset:
        """Load a data set."""
        from otpt.data import load_dataset

        return load_dataset(
            str(spec),
            root=self.data,
            classes=read_classes(self.classes),
            official_names=self.official_names,
            split=split or self.split,
            drop_missing_texts=self.drop_missing_texts,
        )


@option_group("Cache")
class CacheOptions:
    """The feature cache."""

    cache: Annotated[
        Path | None, option("feature cache (default: OTPT_CACHE, or the user's cache folder)", metavar="DIR")
    ] = None
    no_cache: Annotated[bool, option("neither read nor write the feature cache")] = False
    cache_size: Annotated[float | None, option("bound of the cache (default: 20)", metavar="GB")] = None

    def open(self) -> FeatureCache | None:
        """The cache, or None without one."""
        from otpt.features.cache import FeatureCache

        if self.no_cache:
            if self.cache is not None or self.cache_size is not None:
                raise OtptError("--no-cache was given with --cache or --cache-size; expected one of them.")
            return None
        if self.cache_size is None:
            return FeatureCache(self.cache)
        if not 1e-9 <= self.cache_size < math.inf:
            raise OtptError(f"--cache-size was given {self.cache_size:g}; expected a number of GB above 0.")
        return FeatureCache(self.cache, max_bytes=round(self.cache_size * 1e9))


@option_group("Ray")
class RayOptions:
    """A Ray cluster instead of this machine."""

    engine: Annotated[Literal["local", "ray"], option("this machine, or actors on a Ray cluster")] = "local"
    ray_address: Annotated[str | None, option("'auto' or HOST:PORT (default: start Ray here)")] = None
    ray_actors: Annotated[tuple[int, int] | None, option("(default: 1, all that fit)", metavar="MIN MAX")] = None
    ray_gpus: Annotated[float | None, option("GPUs per actor (default: 0)")] = None
    ray_cpus: Annotated[int | None, option("CPUs per actor (default: 1)")] = None

    def check(self) -> bool:
        """Whether Ray is used; options of Ray without it are refused."""
        names = ("ray_address", "ray_actors", "ray_gpus", "ray_cpus")
        lost = next((name for name in names if getattr(self, name) is not None), None)
        if self.engine == "local" and lost is not None:
            raise OtptError(f"--{lost.replace('_', '-')} was given without --engine ray; expected both.")
        return self.engine == "ray"

    def resources(self) -> dict[str, Any]:
        """Number of actors, and the GPUs and CPUs of each."""
        return {
            "actors": self.ray_actors or (1, None),
            "gpus": self.ray_gpus or 0.0,
            "cpus": 1 if self.ray_cpus is None else self.ray_cpus,
        }

    def pick(self, workers: int | None, device: str) -> Engine:
        """The engine of an evaluation: Ray's actors, or processes of this machine."""
        if not self.check():
            return local_engine(workers, device)
        if workers is not None:
            raise OtptError("--workers was given with --engine ray; expected --ray-actors there.")
        from otpt.evaluation.ray import RayEngine

        return RayEngine(self.ray_address, **self.resources())


def local_engine(workers: int | None, device: str = "auto") -> Engine:
    """One process or several: as many as asked for, or one for each GPU."""
    from otpt.backbones import available_devices
    from otpt.evaluation import LocalEngine, ProcessEngine

    if workers is not None and workers < 1:
        raise OtptError(f"--workers was given {workers}; expected 1 or more.")
    gpus = [name for name in available_devices() if name.startswith("cuda:")]
    use_all = len(gpus) > 1 and device in {"auto", "cuda"}
    workers = workers or (len(gpus) if use_all else 1)
    return LocalEngine() if workers == 1 else ProcessEngine(workers, gpus if use_all else None)


def use_threads(threads: int | None) -> None:
    """Set the number of threads; None leaves it unchanged. It changes no prediction."""
    if threads is None:
        return
    if threads < 0:
        raise OtptError(f"--threads was given {threads}; expected 0 or more.")
    import torch

    torch.set_num_threads(max(threads, 1))


def pairs(words: Sequence[str], flag: str, example: str) -> dict[str, str]:
    """``["lambda=6", "steps=2"]`` → {"lambda": "6", "steps": "2"}."""
    found: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not (name and equals and value):
            raise OtptError(f"{flag} was given {word!r}; expected NAME=VALUE, such as {example}.")
        if name in found:
            raise OtptError(f"{flag} names {name!r} twice ({found[name]}, {value}); expected one value.")
        found[name] = value
    return found


def read_lines(path: str, what: str) -> list[str]:
    """The lines of a UTF-8 text file that are not empty."""
    try:
        text = Path(os.path.expanduser(path)).read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise cannot_read(what, path, error) from None
    return [line.strip() for line in text.splitlines() if line.strip()]


def read_templates(words: Sequence[str]) -> Templates:
    """Sentences, and those of files after ``@``; those of a single file are named after it."""
    from otpt.prompts import Templates

    lines = [read_lines(word[1:], "template file") if word.startswith("@") else [word] for word in words]
    name = Path(words[0][1:]).stem if len(words) == 1 and words[0].startswith("@") else "templates"
    return Templates(name, [sentence for own in lines for sentence in own])


def read_classes(words: Sequence[str] | None, *, unique: bool = True) -> ClassList | None:
    """The class list of ``--classes``: names, ``@FILE``, or one comma list.

    Args:
        unique: refuse a file that names a class twice.
    """
    from otpt.data.classes import ClassList, read_class_list

    if words is None:
        return None
    if len(words) == 1 and not words[0].startswith("@"):
        words = _comma_list(words[0])
    lists = []
    for word in words:
        if word == "@":
            raise OtptError("--classes was given '@' without a file; expected @FILE, such as @names.txt.")
        if word.startswith("@"):
            lists.append(read_class_list(Path(os.path.expanduser(word[1:])), unique=unique))
        else:
            lists.append(ClassList((word,), (word,)))
    if len(lists) == 1:
        return lists[0]  # with the settings of its file
    names = tuple(name for each in lists for name in each.names)
    return ClassList(names, names)


def _comma_list(text: str) -> list[str]:
    """Names between commas; a name in double quotes may contain commas."""
    try:
        (row,) = csv.reader([text], skipinitialspace=True, strict=True)
    except (csv.Error, ValueError) as error:
        raise OtptError(f"--classes was given {text!r}, which is no comma list ({error}); write @FILE.") from None
    return [name for each in row if (name := " ".join(each.split()))]


def check_parent(path: Path | None) -> None:
    """Raise if the folder of an output file is not a folder."""
    if path is not None and path.parent.exists() and not path.parent.is_dir():
        raise OtptError(f"Cannot write {str(path)!r}: {str(path.parent)!r} is not a folder.")


def check_run_folders(folders: Sequence[Path]) -> None:
    """Raise if one of the run folders does not exist."""
    if not folders:
        raise OtptError("No RUN was given; expected run folders of 'otpt evaluate'.")
    for folder in folders:
        if not folder.is_dir():
            raise OtptError(f"There is no run folder {str(folder)!r}; check the path.")
