"""What is evaluated: methods, prompts, seeds and limits, and the resulting tasks of each data set."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import product
from typing import ClassVar, Literal, NamedTuple, SupportsIndex

import torch
from pydantic import Field, InstanceOf, TypeAdapter, field_serializer, field_validator, model_validator

from otpt.calibration import Calibrated
from otpt.data import Dataset, stratified
from otpt.decision import Decision
from otpt.errors import OtptError, unknown
from otpt.evaluation.sweeps import VIEW_FIELDS, Value, applies, combinations, label_of, read_values, sweep_method
from otpt.evaluation.systems import EvaluationSystem
from otpt.files import Json
from otpt.methods import (
    MULTI_LABEL,
    Method,
    Methods,
    Protocol,
    Task,
    by_preparer,
    init_of,
    preparer_of,
    refuse_features,
    refuse_no_methods,
)
from otpt.prompts import Prompt, TextFeatures
from otpt.records import ELSEWHERE, NO_OPTION, Frozen, join_spelling, one_or_several
from otpt.runs import folder_name

DEFAULT_METHODS = ("zero-shot", "tpt", "c-tpt", "o-tpt")
CALIBRATED = "+calibrated"
"""Suffix of a method's name in the results if a calibration file was used with it."""
SWEPT_DECISION: Mapping[str, TypeAdapter[float | str | bool]] = {
    **dict.fromkeys(("coverage", "risk", "guarantee"), TypeAdapter(float)),
    "sets": TypeAdapter(str),
    "mondrian": TypeAdapter(bool),
}
"""Fields of a decision that a sweep can vary for methods with a calibration."""
_INSTEAD = {
    "seed": "give several seeds (--seeds 0 1 2)",
    "seeds": "give several seeds (--seeds 0 1 2)",
    "prompt": "give several prompts (--prompts)",
    "prompts": "give several prompts (--prompts)",
    "methods": "give several methods (--methods)",
    "method": "give several methods (--methods)",
    "budget": "sweep over views",
}
"""What to do in place of a sweep over a field."""
FROM_DATASET = ("dataset", "stream_length")
"""Fields of a protocol that each data set determines."""


class DatasetPlan(NamedTuple):
    """What is predicted on a data set.

    Attributes:
        tasks: the classes under each prompt.
        protocol: methods and views.
    """

    tasks: tuple[Task, ...]
    protocol: Protocol


class Evaluation(Frozen):
    """What determines an evaluation's results, except the model and the data sets.

    It has a :class:`~otpt.Protocol` and a :class:`~otpt.Decision`, whose fields may be given directly
    (``Evaluation(methods=["tpt"], views=8)``); the :class:`~otpt.Task` comes from each data set. Methods and prompts
    are all run in one pass. In paths of a method's inputs, ``{dataset}`` is replaced by the data set's name.

    Example:
        >>> Evaluation(methods=["zero-shot"], views=8, seeds=[0, 1]).protocol.recipe.n_views
        8
    """

    spellings: ClassVar[Mapping[str, str]] = {
        "seed": "seeds",
        "prompt": "prompts",
        **dict.fromkeys(Protocol.keywords(), "protocol"),
        **dict.fromkeys(Decision.keywords(), "decision"),
    }

    protocol: InstanceOf[Protocol] = Field(
        default_factory=Protocol,
        description="methods and views",
        json_schema_extra={**ELSEWHERE, NO_OPTION: "each of its fields has an option"},
    )
    decision: InstanceOf[Decision] = Field(
        default_factory=Decision,
        description="calibrations and what they are used for",
        json_schema_extra={**ELSEWHERE, NO_OPTION: "each of its fields has an option"},
    )
    sweep: Mapping[str, tuple[str | int | float | bool, ...]] = Field(
        default_factory=dict,
        description="values to sweep over, each method with all combinations: settings of methods, views, augmix, and "
        "with calibrations coverage, risk …",
        json_schema_extra=ELSEWHERE,
    )
    prompts: tuple[InstanceOf[Prompt], ...] | None = Field(
        None,
        description="context words, with [CLS] for a class name in the middle (default: 'a photo of a', or the data "
        "set's own)",
        json_schema_extra=ELSEWHERE,
    )
    all_tokens: bool = Field(
        False,
        description="tune all tokens of the context, even if a word has several tokens",
        json_schema_extra={**ELSEWHERE, NO_OPTION: "write --prompt-tokens N, the number of tokens to tune"},
    )
    seeds: tuple[int, ...] = Field(
        (0,), min_length=1, description="seeds of the views, one pass each", json_schema_extra=ELSEWHERE
    )
    limit: int | None = Field(
        None,
        ge=1,
        description="only this many images of each set, all classes in proportion",
        json_schema_extra=ELSEWHERE,
    )
    shard_size: int = Field(
        64, ge=1, description="images per shard; a killed process loses at most one shard", json_schema_extra=ELSEWHERE
    )
    features: Literal["full", "float16"] = Field("full", description="float16 rounds image features; half the cache")
    save_probabilities: bool = Field(False, description="store all probabilities of every row")
    n_bins: int = Field(20, ge=1, le=100, description="bins of the calibration errors", json_schema_extra=ELSEWHERE)
    side: Literal["right", "left"] = Field(
        "right",
        description="closed side of the bins",
        json_schema_extra={**ELSEWHERE, NO_OPTION: "write 'otpt metrics RUN --side left'"},
    )

    @model_validator(mode="before")
    @classmethod
    def _read(cls, values: dict[str, object]) -> dict[str, object]:
        values = dict(values)
        join_spelling(values, "seed", "seeds")
        join_spelling(values, "prompt", "prompts")
        refuse_no_methods(values)
        for name in values:
            if name in Task.keywords() and name not in cls.keywords():
                raise OtptError(
                    f"{name} comes from the data set in an evaluation; give the data set other classes or texts, or "
                    "predict the images with otpt.load."
                )
        for field, record in (("protocol", Protocol), ("decision", Decision)):
            names = [name for name in values if name in record.keywords() and name not in cls.model_fields]
            keywords = {name: values.pop(name) for name in names}
            if not keywords:
                continue
            whole = values.get(field)
            if whole is not None and not isinstance(whole, record):
                raise OtptError(f"Both {field} and {names[0]} are set; pass only one of them.")
            values[field] = record(**keywords) if whole is None else whole.replace(**keywords)
        for field, record in (("protocol", Protocol), ("decision", Decision)):
            table = values.get(field)
            if isinstance(table, Mapping):
                values[field] = record(**table)
        for name in values:
            if name not in cls.model_fields:
                raise unknown("setting", name, cls.keywords())
        return values

    @field_validator("seeds", mode="before")
    @classmethod
    def _read_seeds(cls, value: object) -> tuple[int, ...]:
        seeds = list(value) if isinstance(value, Iterable) else [None]
        whole = [seed for seed in seeds if isinstance(seed, SupportsIndex) and not isinstance(seed, bool)]
        if len(whole) < len(seeds):
            raise OtptError(f"The seeds are {value!r:.80}; expected a list of whole numbers, such as [0, 1, 2].")
        return tuple(seed.__index__() for seed in whole)

    @field_validator("sweep", mode="before")
    @classmethod
    def _read_sweep(cls, value: object) -> dict[str, tuple[Value, ...]]:
        return read_values(value)

    @field_validator("prompts", mode="before")
    @classmethod
    def _read_prompts(cls, value: object) -> tuple[Prompt, ...] | None:
        if isinstance(value, str):
            raise OtptError(f"The prompts are the single string {value!r}; expected a list.")
        return None if value is None else tuple(Prompt.read(item) for item in one_or_several(value))

    @field_serializer("prompts", when_used="json")
    def _prompts_to_json(self, value: tuple[Prompt, ...] | None) -> Json:
        return None if value is None else [prompt.to_json() for prompt in value]

    @model_validator(mode="after")
    def _check(self) -> Evaluation:
        default = Protocol()
        set_there = [name for name in (*FROM_DATASET, "seed") if getattr(self.protocol, name) != getattr(default, name)]
        if set_there:
            what = "seeds of the evaluation" if set_there[0] == "seed" else "data set"
            raise OtptError(f"{set_there[0]} of the protocol is set, but the {what} determines it; leave it out.")
        if self.decision.within is not None:
            raise OtptError("within is set, but the labels of a data set are of all its classes; leave it out.")
        if self.decision.threshold != Decision().threshold:
            raise OtptError("A threshold is set, but rows of an evaluation have all probabilities; leave it out.")
        each_once("seed", self.seeds)
        if self.prompts is not None:
            each_once("prompt", [prompt.name for prompt in self.prompts])
        if self.protocol.methods:
            self._check_methods()
        return self

    def _check_methods(self) -> None:
        each_once("method", [method.name for method in self.run_methods])
        networks = {method.adapt if method.preparation.own_network else "" for method in self.methods}
        named = ", ".join(method.name for method in self.methods)
        if len(networks) > 1:
            raise OtptError(f"{named}: {max(networks)} runs on a network of its own; give a command for each.")
        from_words = any(method.starts_from_words for method in self.methods) and networks == {""}
        if self.prompts is not None and not from_words:
            raise OtptError(f"Words of a prompt were given, but no method starts from words ({named}); leave them out.")
        for system, methods in _systems(self.run_methods):
            system.check_evaluation(self.seeds, methods)

    @property
    def methods(self) -> Methods:
        """Methods as they were given."""
        return self.protocol.methods

    def for_datasets(self, datasets: Sequence[Dataset]) -> Evaluation:
        """Return a copy with the default methods for the data sets if none are set; check that they fit."""
        several = [dataset for dataset in datasets if dataset.label_sets is not None]
        if several and len(several) < len(datasets):
            raise OtptError(f"The images of {several[0].name!r} have several labels; evaluate them by themselves.")
        evaluation = self
        if not self.methods:
            names = (MULTI_LABEL,) if several else DEFAULT_METHODS
            evaluation = self.replace(protocol=self.protocol.replace(methods=names))
        for method in evaluation.methods:
            if (method.adapt == MULTI_LABEL) != bool(several):
                raise OtptError(
                    f"The method is {method.name!r}, and the images of {datasets[0].name!r} have "
                    f"{'several labels' if several else 'one label each'}; use {MULTI_LABEL!r} for several labels per "
                    "image, and any other method for one."
                )
        if several:
            evaluation.protocol.check_independent_labels()
            if evaluation.seeds != Evaluation().seeds:
                raise OtptError(
                    f"The seeds are {evaluation.seeds}, but several labels per image need none; leave them out."
                )
        for dataset in datasets:
            if dataset.views is not None:
                place = Protocol(family=self.protocol.family or dataset.family, dataset=dataset.registered_name)
                refuse_features(evaluation.methods, dataset.name, dataset.views, place)
        return evaluation

    @property
    def multi_label(self) -> bool:
        """Whether images have several labels."""
        return any(method.adapt == MULTI_LABEL for method in self.methods)

    @cached_property
    def run_methods(self) -> Methods:
        """Methods as named in the results.

        A method with a calibration file gets the suffix "+calibrated", and those of a sweep their values.
        """
        return tuple(method for method, _ in self._run_methods)

    def calibration_of(self, method: str) -> Calibrated | None:
        """Return the calibration of a method by its name in the results, or None."""
        return self._calibrations.get(method)

    @cached_property
    def _calibrations(self) -> dict[str, Calibrated]:
        return {method.name: calibrated for method, calibrated in self._run_methods if calibrated is not None}

    @cached_property
    def _run_methods(self) -> list[tuple[Method, Calibrated | None]]:
        """Methods as named in the results, each with its calibration."""
        by_method = self._calibrations_by_method()
        self._check_sweep(by_method)
        methods: list[tuple[Method, Calibrated | None]] = []
        for method in self.methods:
            calibrated = by_method.get(method.name)
            variants = sweep_method(method, self.sweep)
            if calibrated is None:
                methods += [(variant, None) for variant in variants]
                continue
            of_decision = {name: values for name, values in self.sweep.items() if name in SWEPT_DECISION}
            for variant, values in product(variants, combinations(of_decision)):
                label = variant.name.removeprefix(method.name).strip("[]")
                labels = ",".join(filter(None, (label, label_of(values).strip("[]"))))
                name = f"{method.name}{CALIBRATED}{f'[{labels}]' if labels else ''}"
                decision = self.decision.with_calibrations([calibrated.calibration]).replace(
                    **{field: SWEPT_DECISION[field].validate_python(value) for field, value in values.items()}
                )
                methods.append((replace(variant, name=name), decision.calibrated[0] if values else calibrated))
        return methods

    def _calibrations_by_method(self) -> dict[str, Calibrated]:
        """Return the calibrations by method; raise for two of one method, and for unexpected methods."""
        names = [method.name for method in self.methods]
        calibrated = [each.calibration.method for each in self.decision.calibrated]
        for name in calibrated:
            if calibrated.count(name) > 1:
                raise OtptError(f"Two calibrations of the method {name!r} were given; expected one per method.")
            if name not in names and name + CALIBRATED not in names:
                raise OtptError(
                    f"The calibration was made for the method {name!r}, not for {', '.join(map(repr, names))}; name "
                    "that method, or leave the calibration out."
                )
        return dict(zip(calibrated, self.decision.calibrated, strict=True))

    def _check_sweep(self, calibrated: Mapping[str, Calibrated]) -> None:
        """Raise for what cannot be swept, or has no effect on any method."""
        named = ", ".join(method.name for method in self.methods)
        for name in self.sweep:
            field = name.replace("-", "_")
            if any(applies(method, name) for method in self.methods):
                continue
            if name in SWEPT_DECISION:
                if not calibrated:
                    raise OtptError(f"The sweep is over {name}, which needs a calibration; pass one (--calibration).")
            elif name in VIEW_FIELDS:
                raise OtptError(f"The sweep is over {name}, but none of {named} uses several views; leave it out.")
            elif field in _INSTEAD:
                raise OtptError(f"A sweep over {name} is not possible; {_INSTEAD[field]}.")
            elif field in (*self.keywords(), *Task.keywords()):
                raise OtptError(
                    f"All rows of a run share {name}; make a run for each value, and give 'otpt table' or 'otpt plot' "
                    "both runs."
                )
            else:
                self.methods[0].override({name: self.sweep[name][0]})  # raises with the settings that there are

    def variants(self, dataset: Dataset) -> list[Dataset]:
        """Return the variants in which a data set is evaluated, usually only itself."""
        datasets = [dataset]
        for system, methods in _systems([_with_inputs(method, dataset) for method in self.run_methods]):
            variants: list[Dataset] = []
            for each in datasets:
                variants += system.variants(each, methods)
            datasets = variants
        return datasets

    def on(self, dataset: Dataset) -> DatasetPlan:
        """Return the tasks and the protocol of a data set."""
        family = self.protocol.family or dataset.family
        recipe = replace(self.protocol.recipe, augmix=dataset.augmix)
        changes = {
            "methods": self.methods_on(dataset),
            "family": family,
            "dataset": dataset.registered_name,
            "stream_length": min(len(dataset), self.limit or len(dataset)),
        }
        if dataset.views is not None:
            recipe = recipe.of(dataset.views)
        protocol = self.protocol.with_recipe(recipe).replace(**changes)
        texts: Sequence[Prompt | TextFeatures] = self.prompts or (Prompt.read(dataset.prompt),)
        if dataset.text_features is not None:
            texts = (TextFeatures(torch.from_numpy(dataset.text_features)),)
        tasks = [
            Task(
                classes=dataset.class_names,
                texts=text,
                multi_label=dataset.label_sets is not None,
                allow_duplicates=dataset.allow_duplicates,
                all_tokens=self.all_tokens,
            )
            for text in texts
        ]
        return DatasetPlan(tuple(tasks), protocol)

    def methods_on(self, dataset: Dataset) -> Methods:
        """Return the methods with their inputs for a data set."""
        methods = []
        for method in self.run_methods:
            with_inputs = _with_inputs(method, dataset)
            system = preparer_of(with_inputs)
            if isinstance(system, EvaluationSystem):
                with_inputs = with_inputs.override({**system.settings_on(dataset, self.prompts), **dataset.system})
            methods.append(with_inputs)
        return tuple(methods)


def _systems(methods: Sequence[Method]) -> list[tuple[EvaluationSystem, Methods]]:
    """Return the systems that extend an evaluation, each with all its methods, whose inputs may differ."""
    systems: dict[str, EvaluationSystem] = {}
    members: dict[str, list[Method]] = {}
    for method in methods:
        system = preparer_of(method)
        if isinstance(system, EvaluationSystem):
            systems.setdefault(system.name, system)
            members.setdefault(system.name, []).append(method)
    return [(system, tuple(members[name])) for name, system in systems.items()]


def _with_inputs(method: Method, dataset: Dataset) -> Method:
    """Return a method with the name of a data set in the paths of its inputs."""
    return method.inputs_for(folder_name(dataset.base_name))


def each_once(kind: str, names: Sequence[object]) -> None:
    """Raise ``OtptError`` for an empty list or duplicate names."""
    if not names:
        raise OtptError(f"No {kind} was given; expected at least one.")
    twice = next((name for i, name in enumerate(names) if name in names[:i]), None)
    if twice is not None:
        raise OtptError(f"The {kind} {twice!r} is given twice; each is run once.")


def overlaps(evaluation: Evaluation, dataset: Dataset) -> Iterator[str]:
    """Yield a sentence for each learned prompt or network that is known to be trained on images of ``dataset``."""
    learned: dict[str, Sequence[str]] = {}
    for preparer, methods in by_preparer(evaluation.methods_on(dataset)):
        learned |= {**init_of(methods[0]).learned_from(), **preparer.learned_from()}
    keys = stratified(dataset).image_keys(evaluation.limit) if any(learned.values()) else ()
    for what, images in learned.items():
        known = set(images)
        seen = sum(key in known for key in keys)
        if seen:
            yield (
                f"{seen} of the {len(keys)} images of {dataset.name!r} are among those that {what} was learned from: "
                "accuracy and calibration on them are not those on new images. Evaluate on another split or folder."
            )
