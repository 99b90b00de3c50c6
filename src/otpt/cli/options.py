"""Options that several commands share, each declared once.

Options that are fields of :class:`otpt.settings.Settings` take their help and default from there.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, dataclass_transform, get_type_hints

from cyclopts import Parameter, validators

import otpt
from otpt.cli.terminal import note
from otpt.errors import OtptError
from otpt.settings import Settings

DEFAULT_BACKBONE = "ViT-B-16/openai"

T = TypeVar("T")


def option(help: str, *names: str, at_least: float | None = None, **more: Any) -> Parameter:
    """Return an option with its help."""
    if at_least is not None:
        more["validator"] = validators.Number(gte=at_least)
    return Parameter(name=names or None, help=help, **more)


def setting(field: str, *names: str, **more: Any) -> Parameter:
    """Return an option for a field of Settings, with its description as help."""
    found = Settings.model_fields[field]
    text, default = found.description or "", found.default
    if "default" not in text and type(default) in (int, float, str):
        text += f" (default: {default})"
    return option(text, *names, **more)


def methods(help: str) -> Parameter:
    """Return the option ``--methods``."""
    return option(help, "--methods", "--method", metavar="NAME")


def seeds(help: str) -> Parameter:
    """Return the option ``--seeds``."""
    return option(help, "--seeds", "--seed")


def out(help: str, metavar: str = "FILE", *suffixes: str) -> Parameter:
    """Return the option ``--out`` for a file with one of the suffixes, or a folder if ``metavar`` is not FILE."""
    checks = (validators.Path(dir_okay=False, ext=suffixes), check_folder) if metavar == "FILE" else ()
    return option(help, "--out", "-o", metavar=metavar, validator=checks)


def check_folder(_: Any, given: Path | tuple[Path, ...] | None) -> None:
    """Fail before any work if the folder of an output cannot be made."""
    for path in given if isinstance(given, tuple) else (given,):
        above = next(each for each in path.absolute().parents if each.exists()) if path else Path()
        if not above.is_dir():
            raise ValueError(f"{str(above)!r} is not a folder.")


def file_or_folder(help: str) -> Parameter:
    """Return the option ``--out`` for a local or remote file or folder, as text."""
    return option(help, "--out", "-o", metavar="FILE")


def figure(help: str, *names: str) -> Parameter:
    """Return an option for the file of a figure."""
    return option(help, *names, metavar="FILE", validator=validators.Path(dir_okay=False, ext=("png", "svg", "pdf")))


@dataclass_transform(kw_only_default=True, frozen_default=True)
def option_group(title: str | None = None) -> Callable[[type[T]], type[T]]:
    """Make a class of options a frozen dataclass under a heading.

    Options without a help text are fields of Settings; None means that the option was not given.
    """

    def make(cls: type[T]) -> type[T]:
        hints = get_type_hints(cls, include_extras=True)
        for name in cls.__annotations__:
            if title is not None and not hasattr(hints[name], "__metadata__"):
                cls.__annotations__[name] = Annotated[hints[name], setting(name)]
        return Parameter(name="*", group=title)(dataclass(frozen=True, kw_only=True)(cls))

    return make


def given(options: Any, names: Collection[str] = Settings.model_fields) -> dict[str, Any]:
    """Return the given options of a group that are named after a field."""
    own = {each.name: getattr(options, each.name) for each in fields(options) if each.name in names}
    return {name: value for name, value in own.items() if value is not None and value != ()}


Several = tuple[str, ...] | None
Numbers = tuple[int, ...] | None
Flag = bool | None

Methods = Annotated[Several, setting("methods", "--methods", "--method", metavar="NAME")]
Seeds = Annotated[Numbers, seeds("seeds of the views (default: 0)")]
Seed = Annotated[int, setting("seed", "--seeds", "--seed")]
ChosenMethods = Annotated[Several, methods("only these methods of the runs")]
ChosenSeeds = Annotated[Numbers, seeds("only these seeds of the runs")]
ChosenDatasets = Annotated[Several, option("only these data sets of the runs", metavar="NAME")]
ChosenPrompt = Annotated[str | None, option("which of several prompts (default: the first)", metavar="WORDS")]
Classes = Annotated[
    Several, option("class names in label order, a comma list, or @FILE with one per line", metavar="NAME")
]
Name = Annotated[str, option("a data set as for 'otpt evaluate'", metavar="DATASET")]
Runs = Annotated[Path, option("run folders", metavar="RUN")]
Data = Annotated[Path | None, option("folder with the data sets", metavar="ROOT")]
Limit = Annotated[int | None, option("only N images of each set, all classes in proportion")]
Json = Annotated[bool, option("print JSON")]
Device = Annotated[str, option("auto, cpu, cuda, cuda:1 or mps")]
Precision = Annotated[str, option("float32, bf16 or fp16 (image tower), bf16-both or fp16-both, float64")]
Cache = Annotated[Path | None, option("feature cache (default: OTPT_CACHE, or the user's cache folder)", metavar="DIR")]
Threads = Annotated[
    int | None, option("threads per process; 0: one, which also decodes (default: one per core)", at_least=0)
]
Workers = Annotated[int | None, option("processes (default: one per GPU, or one)", at_least=1)]
Plugins = Annotated[
    tuple[Path, ...],
    option("Python files whose @otpt.objective, @otpt.calibrator … functions become parts of names", metavar="FILE"),
]
Intervals = Annotated[
    tuple[float, ...] | None,
    option("bootstrap intervals over images, of 0.95 by default", consume_multiple=(0, 1), metavar="[LEVEL]"),
]


def optional(words: tuple[T, ...] | None, default: T) -> T | None:
    """Return the value of an option with an optional value, or None if it was not given."""
    return None if words is None else words[0] if words else default


@option_group("Model")
class ModelOptions:
    """Which model, and where it runs."""

    chosen: Annotated[
        str | None,
        option(f"as 'otpt models' lists them (default: {DEFAULT_BACKBONE})", "--backbone", metavar="NAME"),
    ] = None
    device: Device = "auto"
    precision: Precision = "float32"
    architecture: Annotated[
        str | None, option("open_clip architecture of a checkpoint file", group="Model details", metavar="NAME")
    ] = None
    quick_gelu: Annotated[
        Flag, option("activation of the weights (default: by tag)", negative="--no-quick-gelu", group="Model details")
    ] = None
    compile: Annotated[bool, option("torch.compile the image tower, which takes a minute", group="Model details")] = (
        False
    )

    @property
    def backbone(self) -> str:
        """The name of the model."""
        return self.chosen or DEFAULT_BACKBONE

    def load(self, device: str | None = None, *, backbone: str | None = None) -> otpt.Backbone:
        """Load the model, or another one with the same options. Worker processes receive this method."""
        options = asdict(self) | {"device": device or self.device}
        del options["chosen"]
        return otpt.backbones.load_backbone(backbone or self.backbone, **options)


_START = "Prompt and initial values"
_WEIGHTS = "Weights and rounding"


@option_group("Method")
class MethodOptions:
    """Prompts, views and numbers of the methods."""

    set: Annotated[
        tuple[str, ...], option("numbers of the methods: lambda=6, steps=2, learning-rate=0.01 …", metavar="NAME=VALUE")
    ] = ()
    prompt: Annotated[str | None, setting("prompts", metavar="WORDS")] = None
    views: int | None = None
    budget: int | None = None
    augmix: Annotated[Flag, setting("augmix", negative="--no-augmix", group=_WEIGHTS)] = None
    family: Annotated[Literal["fine-grained", "shift"] | None, setting("family", group=_WEIGHTS)] = None
    official_precision: Annotated[Flag, setting("official_precision", group=_WEIGHTS)] = None
    prompt_tokens: Annotated[
        int | None, option("tokens of the prompt to tune, if words are not single tokens", group=_START)
    ] = None
    contexts: Annotated[Several, setting("contexts", "--context", group=_START, metavar="FILE")] = None
    attributes: Annotated[str | None, setting("attributes", group=_START, metavar="FILE")] = None
    templates: Annotated[Several, setting("templates", group=_START, metavar="TEXT|@FILE")] = None
    fpp: Annotated[Several, setting("fpp", group=_START, metavar="NAME=VALUE")] = None
    plugin: Annotated[Plugins, Parameter(group=_START)] = ()

    def methods(self, names: Sequence[str]) -> tuple[otpt.Method, ...]:
        """Load the plugins, look the methods up, and apply ``--set`` to each method that has the setting."""
        for path in self.plugin:
            otpt.load_plugin(path)
        found = otpt.methods.get_methods(names)
        settings = pairs(self.set, "--set", "lambda=6")
        if "calibrate" in settings:  # first, since a temperature may come with it
            calibration = {"calibrate": settings.pop("calibrate")}
            found = tuple(method.override(calibration) for method in found)
        for name, value in settings.items():
            if not any(method.has_setting(name) for method in found):
                found[0].override({name: value})  # raises, and says why
        return tuple(
            method.override({name: value for name, value in settings.items() if method.has_setting(name)})
            for method in found
        )

    def settings(self, methods: Sequence[otpt.Method]) -> dict[str, Any]:
        """Return the given fields of Settings; ``OtptError`` for options that no method uses."""
        from otpt.methods.method import INITS

        found = given(self)
        if "budget" in found and "views" in found:
            raise OtptError("--views and --budget were given; expected one of them.")
        if self.prompt is not None:
            found["prompts"] = (otpt.Prompt(self.prompt, tokens=self.prompt_tokens),)
        elif self.prompt_tokens is not None:
            raise OtptError("--prompt-tokens was given without --prompt; expected both.")
        used = {INITS[method.init].uses for method in methods}
        for name in ("templates", "fpp"):
            if name in found and name not in used:
                named = ", ".join(method.name for method in methods)
                raise OtptError(f"--{name} was given, but no method starts from the part {name!r} ({named}).")
        if "templates" in found:
            words = found["templates"]
            name = Path(words[0][1:]).stem if len(words) == 1 and words[0].startswith("@") else "templates"
            found["templates"] = otpt.prompts.Templates(name, read_lines(words, "template file"))
        if "fpp" in found:
            numbers = pairs(found["fpp"], "--fpp", "steps=200")
            found["fpp"] = {name.replace("-", "_"): value for name, value in numbers.items()}
        return found


@option_group("Prediction sets and abstention")
class CalibrationOptions:
    """Calibration files, and what they are used for."""

    calibration: Annotated[tuple[Path, ...], setting("calibrations", group="Method", metavar="FILE")] = ()
    coverage: float | None = None
    sets: Literal["lac", "aps", "raps"] | None = None
    mondrian: Flag = None
    risk: float | None = None
    guarantee: float | None = None
    reject: Annotated[Several, setting("reject", consume_multiple=(0, 1), metavar="[SCORE]", group="Rejection")] = None
    reject_threshold: Annotated[float | None, setting("reject_threshold", group="Rejection")] = None

    def settings(self) -> dict[str, Any]:
        """Return the given fields of Settings, with the calibration files read."""
        requested = given(self, ("coverage", "mondrian", "risk", "sets", "guarantee"))
        if requested and not self.calibration:
            raise OtptError(f"--{next(iter(requested))} was given without --calibration, a file of 'otpt calibrate'.")
        calibrations = [
            otpt.calibration.Calibrated(otpt.calibration.read_calibration(path), **requested)
            for path in self.calibration
        ]
        for path, own in zip(self.calibration, calibrations, strict=True):
            if own.threshold is not None:
                note(
                    f"{path}: answers above a confidence of {max(own.threshold.threshold, 0.0):.4f} are wrong at most "
                    f"{own.threshold.risk:g} of the time, with probability {own.threshold.guarantee:g}; "
                    f"{own.threshold.answered} of {own.threshold.labels} labelled images are answered."
                )
            if own.mondrian and own.always_in:
                note(f"{path}: {own.always_in} classes have too few labels for this coverage and are in every set.")
        if self.reject is not None and self.reject_threshold is None:
            from otpt.rejection import NO_PROMISE

            note(NO_PROMISE)
        reject = True if self.reject == () else optional(self.reject, "")
        return {"calibrations": calibrations, "reject": reject, "reject_threshold": self.reject_threshold}


@option_group("Other questions")
class QuestionOptions:
    """Questions other than one label per image."""

    multi_label: Annotated[Flag, setting("multi_label", negative="")] = None
    groups: Annotated[Path | None, setting("groups", metavar="FILE")] = None
    examples: Annotated[Path | None, setting("examples", metavar="FOLDER")] = None


@option_group("Data")
class DataOptions:
    """Where data sets are, and which part of them is used."""

    data: Data = None
    classes: Classes = None
    split: Annotated[str, option("test, val or train")] = "test"
    limit: Limit = None
    drop_missing_texts: Annotated[
        bool, option("of a file of features, leave out classes without a text feature", group=_START)
    ] = False
    official_names: Annotated[bool, option("the papers' class names of Food101, with two swapped", group=_WEIGHTS)] = (
        False
    )

    def load(self, spec: str, *, multi_label: bool = False) -> otpt.data.Dataset:
        """Load a data set, or a table of images with several labels."""
        if multi_label:
            return otpt.data.label_table(Path(spec).expanduser(), read_classes(self.classes))
        return otpt.data.load_dataset(
            spec,
            root=self.data,
            classes=read_classes(self.classes),
            official_names=self.official_names,
            split=self.split,
            drop_missing_texts=self.drop_missing_texts,
        )


@option_group("Cache")
class CacheOptions:
    """The feature cache."""

    cache: Cache = None
    no_cache: Annotated[bool, option("neither read nor write the feature cache")] = False
    cache_size: Annotated[
        float, option("bound of the cache", metavar="GB", validator=validators.Number(gt=0, lt=1e9))
    ] = 20

    def open(self) -> otpt.features.FeatureCache | None:
        """Return the cache, or None without one."""
        if not self.no_cache:
            return otpt.features.FeatureCache(self.cache, max_bytes=round(self.cache_size * 1e9))
        if self != CacheOptions(no_cache=True):
            raise OtptError("--no-cache was given with --cache or --cache-size; expected one of them.")
        return None


@option_group("Options")
class ResultOptions:
    """Which results of runs are read, and how calibration errors are computed."""

    methods: ChosenMethods = None
    seeds: ChosenSeeds = None
    bins: Annotated[int | None, option("bins of the calibration errors, at most 100 (default: as in the runs)")] = None
    side: Annotated[Literal["right", "left"] | None, option("bins (lo, hi] or [lo, hi) (default: as in the runs)")] = (
        None
    )

    def open(self, runs: Sequence[Path], **more: Any) -> otpt.report.Results:
        """Open run folders."""
        return otpt.report.open_results(runs, n_bins=self.bins, side=self.side, seeds=self.seeds, **more)


@option_group("Ray")
class RayOptions:
    """A Ray cluster instead of this machine."""

    engine: Annotated[Literal["local", "ray"], option("this machine, or actors on a Ray cluster")] = "local"
    ray_address: Annotated[str | None, option("'auto' or HOST:PORT (default: start Ray here)")] = None
    ray_actors: Annotated[tuple[int, int] | None, option("(default: 1, all that fit)", metavar="MIN MAX")] = None
    ray_gpus: Annotated[float | None, option("GPUs per actor (default: 0)")] = None
    ray_cpus: Annotated[int | None, option("CPUs per actor (default: 1)")] = None

    def check(self) -> bool:
        """Return whether Ray is used; ``OtptError`` for options of Ray without it."""
        if self.engine == "local" and self != RayOptions():
            raise OtptError("Options of Ray were given without --engine ray; expected both.")
        return self.engine == "ray"

    def resources(self) -> dict[str, Any]:
        """Return the number of actors, and the GPUs and CPUs of each."""
        return {
            "actors": self.ray_actors or (1, None),
            "gpus": self.ray_gpus or 0.0,
            "cpus": 1 if self.ray_cpus is None else self.ray_cpus,
        }

    def pick(self, workers: int | None, device: str) -> otpt.evaluation.Engine:
        """Return the engine of an evaluation: Ray's actors, or processes of this machine."""
        if not self.check():
            return local_engine(workers, device)
        if workers is not None:
            raise OtptError("--workers was given with --engine ray; expected --ray-actors there.")
        from otpt.evaluation.ray import RayEngine

        return RayEngine(self.ray_address, **self.resources())


def local_engine(workers: int | None, device: str = "auto") -> otpt.evaluation.Engine:
    """Return the engine for one process or several: the given number, or one for each GPU."""
    gpus = [name for name in otpt.backbones.available_devices() if name.startswith("cuda:")]
    use_all = len(gpus) > 1 and device in {"auto", "cuda"}
    workers = workers or (len(gpus) if use_all else 1)
    if workers == 1:
        return otpt.evaluation.LocalEngine()
    return otpt.evaluation.ProcessEngine(workers, gpus if use_all else None)


def use_threads(threads: int | None) -> None:
    """Set the number of threads; None leaves it unchanged. It changes no prediction."""
    if threads is not None:
        import torch

        torch.set_num_threads(max(threads, 1))


def pairs(words: Sequence[str], flag: str, example: str) -> dict[str, str]:
    """Parse ``["lambda=6", "steps=2"]`` to {"lambda": "6", "steps": "2"}."""
    found: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not (name and equals and value) or name in found:
            raise OtptError(f"{flag} was given {word!r}; expected NAME=VALUE, such as {example}, and each name once.")
        found[name] = value
    return found


def read_lines(words: Sequence[str], what: str) -> list[str]:
    """Return texts, with ``@FILE`` replaced by the non-empty lines of a UTF-8 file."""
    from otpt.data.classes import read_text

    found: list[str] = []
    for word in words:
        text = read_text(Path(word[1:]).expanduser(), what) if word.startswith("@") else word
        found += [line.strip() for line in text.splitlines() if line.strip()]
    return found


def read_classes(words: Sequence[str] | None, *, unique: bool = True) -> otpt.data.ClassList | None:
    """Return the class list of ``--classes``: names, ``@FILE``, or one comma list.

    Args:
        unique: refuse a file that names a class twice.
    """
    if words is None:
        return None
    if len(words) == 1 and not words[0].startswith("@"):
        words = _comma_list(words[0])
    found = [
        otpt.data.read_class_list(Path(word[1:]).expanduser(), unique=unique)
        if word.startswith("@")
        else otpt.data.ClassList((word,), (word,))
        for word in words
    ]
    if len(found) == 1:
        return found[0]  # with the settings of its file
    names = tuple(name for each in found for name in each.names)
    return otpt.data.ClassList(names, names)


def _comma_list(text: str) -> list[str]:
    """Split at commas; a name in double quotes may contain commas."""
    try:
        (row,) = csv.reader([text], skipinitialspace=True, strict=True)
    except (csv.Error, ValueError) as error:
        raise OtptError(f"--classes was given {text!r}, which is no comma list ({error}); write @FILE.") from None
    return [name for each in row if (name := " ".join(each.split()))]
