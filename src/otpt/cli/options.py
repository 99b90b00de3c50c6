"""Options that several commands share, each declared once.

Options that are fields of a record (:class:`otpt.Task`, :class:`otpt.Protocol`, :class:`otpt.Decision`,
:class:`otpt.evaluation.Evaluation`) take help text, type, bounds and default from there, and go to that field.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import UnionType
from typing import (
    Annotated,
    Literal,
    TypedDict,
    TypeVar,
    Union,
    Unpack,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

import torch
from cyclopts import Parameter, validators

from otpt import backbones, data
from otpt.backbones import Backbone
from otpt.calibration import read_calibration
from otpt.classifier import read_records
from otpt.cli.outputs import NEW_FILE
from otpt.cli.terminal import note
from otpt.data import ClassList, Dataset
from otpt.decision import Decision
from otpt.errors import OtptError
from otpt.evaluation import Evaluation
from otpt.features import FeatureCache
from otpt.files import read_text
from otpt.methods import Method, Protocol, Task, get_methods, load_plugin
from otpt.prompts import Prompt, Templates
from otpt.records import NO_OPTION, Frozen, mark_of
from otpt.rejection import NO_PROMISE
from otpt.report import Results, open_results
from otpt.workers import Pool, get_pool, local_pool

DEFAULT_BACKBONE = "ViT-B-16/openai"
RECORDS: tuple[type[Frozen], ...] = (Task, Protocol, Decision, Evaluation)
FIELDS = frozenset(name for record in RECORDS for name in record.keywords())
"""Keywords of the records; an option of the same name goes to that field."""

T = TypeVar("T")


class ParameterOptions(TypedDict, total=False):
    """Keywords of ``cyclopts.Parameter`` that options use."""

    group: str
    metavar: str
    negative: str
    consume_multiple: tuple[int, int]
    validator: Callable[..., object] | tuple[Callable[..., object], ...]


def option(help: str, *names: str, at_least: float | None = None, **more: Unpack[ParameterOptions]) -> Parameter:
    """Return an option with its help."""
    if at_least is not None:
        more["validator"] = validators.Number(gte=at_least)
    return Parameter(name=names or None, help=help, **more)


def setting(record: type[Frozen], field: str, *names: str, **more: Unpack[ParameterOptions]) -> Parameter:
    """Return an option for a field of a record, with its description, default and bounds."""
    info = record.model_fields[field]
    text = info.description or ""
    default = " ".join(map(str, info.default)) if isinstance(info.default, tuple) else info.default
    if "default" not in text and type(default) in (int, float, str) and default != "":
        text += f" (default: {default})"
    bounds: dict[str, float] = {}
    for constraint in info.metadata:
        for bound, keyword in (("ge", "gte"), ("gt", "gt"), ("le", "lte"), ("lt", "lt")):
            if hasattr(constraint, bound):
                bounds[keyword] = getattr(constraint, bound)
    if bounds:
        more.setdefault("validator", validators.Number(**bounds))
    return option(text, *names, **more)


def methods(help: str) -> Parameter:
    """Return the option ``--methods``."""
    return option(help, "--methods", "--method", metavar="NAME")


def seeds(help: str) -> Parameter:
    """Return the option ``--seeds``."""
    return option(help, "--seeds", "--seed")


def out(help: str, metavar: str = "FILE", *suffixes: str) -> Parameter:
    """Return the option ``--out`` for a file with one of the suffixes, or a folder if ``metavar`` is not FILE."""
    checks = (validators.Path(dir_okay=False, ext=suffixes), check_folder, NEW_FILE) if metavar == "FILE" else ()
    return option(help, "--out", "-o", metavar=metavar, validator=checks)


def check_folder(_type: type, value: Path | tuple[Path, ...] | None) -> None:
    """Fail before any work if the folder of an output cannot be made."""
    paths = value if isinstance(value, tuple) else () if value is None else (value,)
    for path in paths:
        nearest = next(folder for folder in path.absolute().parents if folder.exists())
        if not nearest.is_dir():
            raise ValueError(f"{str(nearest)!r} is not a folder.")


def check_exists(_type: type, value: Path | None) -> None:
    """Fail before any work if a folder that is read does not exist."""
    if value is not None and not value.expanduser().is_dir():
        raise ValueError(f"There is no folder {str(value)!r}.")


def file_or_folder(help: str) -> Parameter:
    """Return the option ``--out`` for a local or remote file or folder, as text."""
    return option(help, "--out", "-o", metavar="FILE")


def figure(help: str, *names: str) -> Parameter:
    """Return an option for the file of a figure."""
    check = validators.Path(dir_okay=False, ext=("png", "svg", "pdf"))
    return option(help, *names, metavar="FILE", validator=(check, check_folder, NEW_FILE))


@dataclass(frozen=True, kw_only=True)
class Options:
    """Base class of groups of options; None and () mean that an option was not given."""

    def given(self) -> dict[str, object]:
        """Return the given options by name, without those of groups inside."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {
            name: value
            for name, value in values.items()
            if value is not None and value != () and not isinstance(value, Options)
        }

    def keywords(self) -> dict[str, object]:
        """Return the given options that are fields of a record, as keywords of the records."""
        return {name: value for name, value in self.given().items() if name in FIELDS}


@dataclass_transform(kw_only_default=True, frozen_default=True)
def option_group(
    title: str | None = None, *, fields_of: type[Frozen] | None = None, without: Sequence[str] = ()
) -> Callable[[type[T]], type[T]]:
    """Make a class of options a frozen dataclass under a heading.

    An option named like a field of a record has its type, and its help text unless another one is declared.

    Args:
        title: heading of the options.
        fields_of: record whose fields are options of this class, also where the class does not declare them, but
            for those that are marked as no option, or are not a number, text or flag.
        without: fields of that record that are options of other classes.
    """

    def make(cls: type[T]) -> type[T]:
        if fields_of is not None:
            _declare_fields(cls, fields_of, without)
        hints = get_type_hints(cls, include_extras=True)
        for name in cls.__annotations__:
            if title is not None:
                cls.__annotations__[name] = _complete_hint(name, hints[name])
        return Parameter(name="*", group=title)(dataclass(frozen=True, kw_only=True)(cls))

    return make


def _declare_fields(cls: type[T], record: type[Frozen], without: Sequence[str]) -> None:
    """Declare the options of a record's fields that neither the class nor its bases declare."""
    declared = {name for base in cls.__mro__ for name in getattr(base, "__annotations__", {})}
    for name, field in record.model_fields.items():
        plain = _plain_type(field.annotation)
        if name in declared or name in without or plain is None or mark_of(field, NO_OPTION) is not None:
            continue
        cls.__annotations__[name] = Annotated[plain | None, setting(record, name)]  # type: ignore[operator]
        setattr(cls, name, None)


def _complete_hint(name: str, hint: object) -> object:
    """Add the help text of a record's field to the type of an option, and narrow the type to that of the field."""
    record = next((record for record in RECORDS if name in record.model_fields), None)
    if record is None:
        return hint
    declared, *metadata = get_args(hint) if get_origin(hint) is Annotated else (hint, setting(record, name))
    plain = _plain_type(record.model_fields[name].annotation)
    if plain is not None and _plain_type(declared) is not None:
        declared = plain | None  # type: ignore[operator]
    return Annotated[declared, *metadata]


def _plain_type(hint: object) -> object:
    """Return the first number, string, flag or choice of a type, or None."""
    is_union = get_origin(hint) in (Union, UnionType)
    for member in get_args(hint) if is_union else (hint,):
        if member in (bool, int, float, str) or get_origin(member) is Literal:
            return member
    return None


Several = tuple[str, ...] | None
Numbers = tuple[int, ...] | None
Flag = bool | None

Methods = Annotated[Several, setting(Protocol, "methods", "--methods", "--method", metavar="NAME")]
Seeds = Annotated[Numbers, seeds("seeds of the views (default: 0)")]
Seed = Annotated[int, setting(Protocol, "seed", "--seeds", "--seed")]
ChosenMethods = Annotated[Several, methods("only these methods of the runs")]
ChosenSeeds = Annotated[Numbers, seeds("only these seeds of the runs")]
ChosenDatasets = Annotated[Several, option("only these data sets of the runs", metavar="NAME")]
ChosenPrompt = Annotated[str | None, option("which of several prompts (default: the first)", metavar="WORDS")]
Classes = Annotated[
    Several, option("class names in label order, a comma list, or @FILE with one per line", metavar="NAME")
]
Name = Annotated[str, option("a data set as for 'otpt evaluate'", metavar="DATASET")]
Runs = Annotated[Path, option("run folders", metavar="RUN")]
Data = Annotated[Path | None, option("folder with the data sets", metavar="ROOT", validator=check_exists)]
Column = Annotated[
    str | None,
    option("column of tables that holds bytes, paths or addresses of images (default: by name)", metavar="NAME"),
]
Limit = Annotated[int | None, setting(Evaluation, "limit")]
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
    if words is None:
        return None
    return words[0] if words else default


@option_group("Model")
class ModelOptions(Options):
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
        """Name of the model."""
        return self.chosen or DEFAULT_BACKBONE

    def load(self, device: str | None = None, *, backbone: str | None = None) -> Backbone:
        """Load the model, or another one with the same options. Worker processes receive this method."""
        return backbones.load_backbone(
            backbone or self.backbone,
            device=device or self.device,
            precision=self.precision,
            compile=self.compile,
            architecture=self.architecture,
            quick_gelu=self.quick_gelu,
        )


_START = "Prompt and initial values"
_WEIGHTS = "Weights and rounding"

Calibrations = Annotated[tuple[Path, ...], setting(Decision, "calibrations", group="Method", metavar="FILE")]
Texts = Annotated[
    Several,
    option("sentences with {} for the class name, averaged, in place of a prompt", group=_START, metavar="TEXT|@FILE"),
]


@option_group("Method")
class SettingOptions(Options):
    """Prompts and settings of the methods."""

    set: Annotated[
        tuple[str, ...],
        option(
            "settings of the methods: lambda=6, learning-rate=0.01, context=FILE …; of one part: coop.context=FILE",
            metavar="NAME=VALUE",
        ),
    ] = ()
    prompt: Annotated[str | None, setting(Evaluation, "prompts", metavar="WORDS")] = None
    views: int | None = None
    family: Annotated[str | None, setting(Protocol, "family", group=_WEIGHTS)] = None
    prompt_tokens: Annotated[
        int | None, option("tokens of the prompt to tune, if words are not single tokens", group=_START)
    ] = None
    plugin: Annotated[Plugins, Parameter(group=_START)] = ()

    def keywords(self) -> dict[str, object]:
        """Return the given fields of records."""
        values = super().keywords()
        if self.prompt is not None:
            values["prompt"] = Prompt(self.prompt, tokens=self.prompt_tokens)
        elif self.prompt_tokens is not None:
            raise OtptError("--prompt-tokens was given without --prompt; expected both.")
        return values

    def methods(self, names: Sequence[str]) -> tuple[Method, ...]:
        """Load the plugins and return the methods with the settings of ``--set``."""
        self.load_plugins()
        return self.with_settings(get_methods(names))

    def load_plugins(self) -> None:
        """Load the files of ``--plugin``, whose functions become parts of method names."""
        for path in self.plugin:
            load_plugin(path)

    def with_settings(self, methods: Sequence[Method]) -> tuple[Method, ...]:
        """Apply ``--set`` to each method that has the setting, and ``PART.NAME=VALUE`` to those with the part."""
        changed = list(methods)
        settings = pairs(self.set, "--set", "lambda=6")
        for name in sorted(settings, key=lambda name: name != "calibrate"):  # a temperature may come with it
            part, _, setting = name.rpartition(".")
            positions = [i for i, method in enumerate(changed) if not part or part in _parts(method)]
            if not positions:
                named = ", ".join(method.name for method in methods)
                raise OtptError(f"--set was given {name!r}, but no method has the part {part!r} ({named}).")
            accepting = [i for i in positions if changed[i].has_setting(setting)]
            for i in accepting or positions[:1]:  # a method without the setting raises, and says why
                changed[i] = changed[i].override({setting: settings[name]})
        return tuple(changed)

    def read_records(
        self, class_list: ClassList | None, values: Mapping[str, object]
    ) -> tuple[Task, Protocol, Decision]:
        """Return the records of a classifier from keywords and these options.

        The settings in the file of a class list apply where no option is given. Without methods, the task decides.
        """
        values = {**values, **self.keywords()}
        if class_list is not None:
            values["classes"] = class_list.names
            if not values.get("multi_label") and len(class_list.names) > 1:
                values.setdefault("family", class_list.family)
        task, protocol, decision = read_records(None, values)
        protocol = protocol.for_task(task)
        has_texts = not values.keys().isdisjoint(("prompt", "templates"))
        from_words = any(method.starts_from_words for method in protocol.methods)
        if class_list is not None and class_list.prompt is not None and from_words and not has_texts:
            task = task.replace(prompt=class_list.prompt)
        protocol = protocol.replace(methods=self.with_settings(protocol.methods))
        if class_list is not None and class_list.augmix is not None and not task.independent_labels:
            protocol = protocol.with_recipe(replace(protocol.recipe, augmix=class_list.augmix))
        return task, protocol, decision


def _parts(method: Method) -> set[str]:
    """Return the names of the parts that a method consists of."""
    axes = (method.init, method.adapt, method.calibrate, method.aggregate, method.gate)
    return {method.name, *axes, *method.objectives}


@option_group("Method", fields_of=Protocol, without=("seed",))
class MethodOptions(SettingOptions):
    """Prompts, views and settings of the methods."""

    budget: int | None = None
    augmix: Annotated[Flag, setting(Protocol, "augmix", negative="--no-augmix", group=_WEIGHTS)] = None
    official_precision: Annotated[Flag, setting(Protocol, "official_precision", group=_WEIGHTS)] = None
    official_orientation: Annotated[Flag, setting(Protocol, "official_orientation", group=_WEIGHTS)] = None


@option_group("Prediction sets and abstention", fields_of=Decision, without=("threshold",))
class DecisionOptions(Options):
    """Calibration files, and what is done with probabilities."""

    calibration: Calibrations = ()
    coverage: float | None = None
    sets: str | None = None
    mondrian: Flag = None
    risk: float | None = None
    guarantee: float | None = None
    reject: Annotated[
        Several, setting(Decision, "reject", consume_multiple=(0, 1), metavar="[SCORE]", group="Rejection")
    ] = None
    reject_threshold: Annotated[float | None, setting(Decision, "reject_threshold", group="Rejection")] = None

    def keywords(self) -> dict[str, object]:
        """Return the given fields of records, with the calibration files read."""
        values = super().keywords()
        if self.calibration:
            del values["calibration"]
            values["calibrations"] = [read_calibration(path) for path in self.calibration]
        if self.reject is not None:
            values["reject"] = self.reject[0] if self.reject else True
        return values

    def note_promises(self, decision: Decision) -> None:
        """Print what the thresholds of a decision promise."""
        for path, calibrated in zip(self.calibration, decision.calibrated, strict=True):
            threshold = calibrated.threshold
            if threshold is not None:
                note(
                    f"{path}: images with uncalibrated_confidence > {threshold.shown}, the confidence before the "
                    f"calibration, are answered; at most {threshold.risk:g} of the answers are wrong, with probability "
                    f"{threshold.guarantee:g}; {threshold.answered} of {threshold.labels} labelled images are answered."
                )
            if calibrated.mondrian and calibrated.always_in:
                note(
                    f"{path}: {calibrated.always_in} classes have too few labels for this coverage and are in every "
                    "set."
                )
        if decision.reject is not None and decision.reject_threshold is None:
            note(NO_PROMISE)


@option_group("Data")
class DataOptions(Options):
    """Where data sets are, and which part of them is used."""

    data: Data = None
    classes: Classes = None
    split: Annotated[str, option("test, val or train")] = "test"
    limit: Limit = None
    column: Column = None
    drop_missing_texts: Annotated[
        bool, option("of a file of features, leave out classes without a text feature", group=_START)
    ] = False
    official_names: Annotated[bool, option("the papers' class names of Food101, with two swapped", group=_WEIGHTS)] = (
        False
    )

    def load(self, spec: str, *, multi_label: bool = False) -> Dataset:
        """Load a data set, or a table of images with several labels."""
        dataset = self._load(spec, multi_label=multi_label)
        source = dataset.classes_from
        if source:
            note(f"{dataset.name}: {len(dataset.class_names)} classes, from the {source}; --classes @FILE names others")
        return dataset

    def _load(self, spec: str, *, multi_label: bool) -> Dataset:
        """Load a data set without notes."""
        path = Path(spec).expanduser()
        if multi_label and path.is_file() and data.is_label_studio(path):
            return data.label_studio_dataset(path, read_classes(self.classes), root=self.data, multi_label=True)
        if multi_label:
            return data.label_table(path, read_classes(self.classes), self.column)
        return data.load_dataset(
            spec,
            root=self.data,
            classes=read_classes(self.classes),
            official_names=self.official_names,
            split=self.split,
            drop_missing_texts=self.drop_missing_texts,
            column=self.column,
        )

    def asks_one_class(self) -> bool:
        """Return whether there is a single class, so that the labels say yes or no."""
        class_list = read_classes(self.classes)
        return class_list is not None and len(class_list) == 1

    def keywords(self) -> dict[str, object]:
        """Return the given fields of records; the classes belong to the data sets."""
        return {name: value for name, value in super().keywords().items() if name != "classes"}


@option_group("Cache")
class CacheOptions(Options):
    """The feature cache."""

    cache: Cache = None
    no_cache: Annotated[bool, option("neither read nor write the feature cache")] = False
    cache_size: Annotated[
        float, option("bound of the cache", metavar="GB", validator=validators.Number(gt=0, lt=1e9))
    ] = 20

    def open(self) -> FeatureCache | None:
        """Return the cache, or None without one."""
        if not self.no_cache:
            return FeatureCache(self.cache, max_bytes=round(self.cache_size * 1e9))
        if self != CacheOptions(no_cache=True):
            raise OtptError("--no-cache was given with --cache or --cache-size; expected one of them.")
        return None


@option_group("Options")
class ResultOptions(Options):
    """Which results of runs are read, and how calibration errors are computed."""

    methods: ChosenMethods = None
    seeds: ChosenSeeds = None
    bins: Annotated[
        int | None,
        option("bins of the calibration errors, at most 100 (default: as in the runs)", "--bins", "--n-bins"),
    ] = None
    side: Annotated[str | None, option("bins (lo, hi] or [lo, hi) (default: as in the runs)")] = None

    def open(self, runs: Sequence[Path], *, methods: Several = None, one_backbone: bool = True) -> Results:
        """Open run folders."""
        return open_results(
            runs, n_bins=self.bins, side=self.side, seeds=self.seeds, methods=methods, one_backbone=one_backbone
        )


@option_group("Options")
class SelectionOptions(ResultOptions):
    """Which results of runs are read and shown."""

    datasets: ChosenDatasets = None
    prompt: ChosenPrompt = None


@option_group("Ray")
class RayOptions(Options):
    """A Ray cluster, or another pool of an installed package, instead of this machine."""

    engine: Annotated[
        str, option("local: this machine; ray: actors on a Ray cluster; or a plugin's pool", metavar="NAME")
    ] = "local"
    ray_address: Annotated[str | None, option("'auto' or HOST:PORT (default: start Ray here)")] = None
    ray_actors: Annotated[tuple[int, int] | None, option("(default: 1, all that fit)", metavar="MIN MAX")] = None
    ray_gpus: Annotated[float | None, option("GPUs per actor (default: 0)")] = None
    ray_cpus: Annotated[int | None, option("CPUs per actor (default: 1)")] = None

    @property
    def is_local(self) -> bool:
        """Whether this machine computes; ``OtptError`` for options of a cluster without one."""
        if self.engine == "local" and self.cluster_options():
            raise OtptError("Options of Ray were given without --engine ray; expected both.")
        return self.engine == "local"

    def cluster_options(self) -> dict[str, object]:
        """Return the given options of the cluster, as keywords of its pool or service."""
        prefix = "ray_"
        options = self.given().items()
        return {name.removeprefix(prefix): value for name, value in options if name.startswith(prefix)}

    def open_pool(self, workers: int | None, device: str) -> Pool:
        """Return the pool: this process, several processes of this machine, or a plugin's."""
        if self.is_local:
            return local_pool(workers, device)
        options = self.cluster_options()
        if workers is not None:
            if self.engine == "ray":
                raise OtptError("--workers was given with --engine ray; expected --ray-actors there.")
            options["workers"] = workers
        return get_pool(self.engine, **options)


def use_threads(threads: int | None) -> None:
    """Set the number of threads; None leaves it unchanged. It changes no prediction."""
    if threads is not None:
        torch.set_num_threads(max(threads, 1))


def pairs(words: Sequence[str], flag: str, example: str) -> dict[str, str]:
    """Parse ``["lambda=6", "steps=2"]`` to {"lambda": "6", "steps": "2"}."""
    values: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not (name and equals and value) or name in values:
            raise OtptError(f"{flag} was given {word!r}; expected NAME=VALUE, such as {example}, and each name once.")
        values[name] = value
    return values


def read_lines(words: Sequence[str], what: str) -> list[str]:
    """Return texts, with ``@FILE`` replaced by the non-empty lines of a UTF-8 file."""
    lines: list[str] = []
    for word in words:
        text = read_text(Path(word[1:]).expanduser(), what) if word.startswith("@") else word
        lines += [line.strip() for line in text.splitlines() if line.strip()]
    return lines


def read_templates(words: Sequence[str]) -> Templates:
    """Return the templates of ``--templates``, named after their file if there is one."""
    name = Path(words[0][1:]).stem if len(words) == 1 and words[0].startswith("@") else "templates"
    return Templates(name, read_lines(words, "template file"))


def read_classes(words: Sequence[str] | None, *, unique: bool = True) -> ClassList | None:
    """Return the class list of ``--classes``: names, ``@FILE``, or one comma list.

    Args:
        words: the words of the option; None if it was not given.
        unique: refuse a file that names a class twice.
    """
    if words is None:
        return None
    if len(words) == 1 and not words[0].startswith("@"):
        words = _comma_list(words[0])
    lists = []
    for word in words:
        if word.startswith("@"):
            lists.append(data.read_class_list(Path(word[1:]).expanduser(), unique=unique))
        else:
            lists.append(ClassList((word,), (word,)))
    if len(lists) == 1:
        return lists[0]  # with the settings of its file
    names = tuple(name for class_list in lists for name in class_list.names)
    return ClassList(names, names)


def _comma_list(text: str) -> list[str]:
    """Split at commas; a name in double quotes may contain commas."""
    try:
        (row,) = csv.reader([text], skipinitialspace=True, strict=True)
    except (csv.Error, ValueError) as error:
        raise OtptError(f"--classes was given {text!r}, which is no comma list ({error}); write @FILE.") from None
    names = [" ".join(cell.split()) for cell in row]
    return [name for name in names if name]
