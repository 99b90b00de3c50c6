"""Methods: one value on each axis (init, adapt, calibrate, aggregate, gate) with its hyperparameters."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache, cached_property
from os import PathLike
from typing import Literal, TypeVar, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

from otpt.errors import OtptError, unknown
from otpt.objectives import fraction_of
from otpt.plugins import is_registered
from otpt.registry import (
    ADAPTATIONS,
    AGGREGATIONS,
    CALIBRATIONS,
    CLEAN,
    CONTEXT,
    FAMILIES,
    GATES,
    IMAGE,
    INITS,
    NONE,
    OBJECTIVES,
    OTHERS,
    STREAM,
    SYSTEMS,
    TEXTS,
    VIEWS,
    Component,
    Count,
    Fraction,
    NonNegative,
    Positive,
    Preparation,
    Setting,
    TextSteps,
    listed_datasets,
    number_for,
)

_Value = TypeVar("_Value")


@dataclass(frozen=True, kw_only=True)
class Steps:
    """Hyperparameters of AdamW steps on the context.

    Attributes:
        steps: optimiser steps per image.
        learning_rate: one number, or one for each family of data sets.
        selection_ratio: fraction of selected views, rounded down (at least one view).
        reference: view whose logits give the range of the range objectives: the most "confident" selected view under
            the current prompt, as the released code does, or the "clean" view under the initial prompt.
        two_step: view objectives in a first step, text objectives in a second one with the same moments (C-TPT's
            two-step mode); the number of steps then counts such pairs.
        selection: "confident", the views of smallest entropy; or "strong", the clean view and the ratio of the
            augmented views of smallest entropy.
    """

    steps: TextSteps = 1
    learning_rate: Positive | Mapping[str, Positive] = field(default=5e-3, hash=False)
    weight_decay: NonNegative = 0.01
    selection_ratio: Fraction = 0.1
    reference: Literal["confident", "clean"] = "confident"
    two_step: bool = False
    selection: Literal["confident", "strong"] = "confident"


@dataclass(frozen=True)
class TuningConfig(Steps):
    """L = Σ weight·objective, minimised by AdamW steps on the context for one family of data sets.

    Attributes:
        weights: (objective's name, weight) pairs.
        settings: (name, value) pairs of the objectives' settings.
    """

    weights: tuple[tuple[str, float], ...]
    settings: tuple[tuple[str, object], ...] = ()
    learning_rate: float = field(default=5e-3, kw_only=True)

    def weights_on(self, kind: str) -> tuple[tuple[str, float], ...]:
        """Return the weights of the objectives on "views" or "texts"."""
        return tuple((name, weight) for name, weight in self.weights if OBJECTIVES[name].on == kind)

    def selected_count(self, views: int) -> int:
        """Return int(V·ratio), or with "strong" int((V − 1)·ratio) augmented views plus the clean one."""
        clean = int(self.selection == "strong")
        return fraction_of(views - clean, self.selection_ratio) + clean


@dataclass(frozen=True)
class Method(Steps):
    """Named combination of values on the axes, with the hyperparameters of its context :class:`Steps`.

    Example:
        >>> Method("gentle", objectives={"entropy": 1.0, "orthogonality": 6.0}).tuning("fine-grained").weights
        (('entropy', 1.0), ('orthogonality', 6.0))

    Attributes:
        objectives: weight of each objective of :data:`otpt.registry.OBJECTIVES`.
        init: the initial prompt: "words", or another of :data:`otpt.registry.INITS`.
        adapt: "context", steps on the context that minimise ``objectives`` (no adaptation if there are none); or a
            registered adaptation.
        calibrate: "none", or a registered calibrator such as "temperature" or "sals".
        aggregate: "clean", or a registered function of all views.
        gate: "none", or a registered function that decides whether an image is adapted.
        temperature: for "temperature"; None for the published constant of the backbone's kind of image tower.
        views: number of views, including the clean one; None for the recipe's.
        augmix: whether views are mixed; None for the data set's default.
        settings: settings that differ from their defaults. Those of functions, such as SoC's delta, are one number,
            one for each family of data sets, or one for each of some data sets and one for "others". Those of its
            init or system are the inputs of that class, such as the file of a learned context.
        caution: a warning for evaluations; see :meth:`caution_on`.
    """

    name: str
    objectives: Mapping[str, NonNegative | Mapping[str, NonNegative]] = field(default_factory=dict, hash=False)
    init: str = "words"
    adapt: str = CONTEXT
    calibrate: str = NONE
    aggregate: str = CLEAN
    gate: str = NONE
    temperature: Positive | None = None
    summary: str = ""
    source: str = ""
    views: Count | None = None
    augmix: bool | None = None
    settings: Mapping[str, object] = field(default_factory=dict, hash=False)
    caution: str = ""

    def __post_init__(self) -> None:
        for attribute in fields(self):
            name = attribute.name
            _validated(self.name, name, getattr(self, name), _adapter(name), strict=True)
        for axis, value, registry in self._axes:
            if not is_registered(value, registry, "methods"):
                raise unknown(axis, value, registry)
        # in the order of the loss: view objectives first, each kind in the order of the registry
        present = [name for name in OBJECTIVES if name in self.objectives]
        order = [name for kind in (VIEWS, TEXTS) for name in present if OBJECTIVES[name].on == kind]
        object.__setattr__(self, "objectives", {name: self.objectives[name] for name in order})
        for name, weight in {**self.objectives, "learning_rate": self.learning_rate}.items():
            if isinstance(weight, Mapping) and not set(FAMILIES) <= set(weight):
                raise self._missing_numbers(name, weight, "")
        object.__setattr__(self, "settings", self._valid_settings())
        self._check_combination()

    def __setstate__(self, state: Mapping[str, object]) -> None:
        """Restore a pickled method; another process may not have imported the plugin that it needs."""
        self.__dict__.update(state)
        for _, value, registry in self._axes:
            is_registered(value, registry, "methods")

    @property
    def _axes(self) -> list[tuple[str, str, Mapping[str, object]]]:
        """Name of the axis, value and registry of each axis and objective."""
        return [
            ("init", self.init, INITS),
            ("adaptation", self.adapt, ADAPTATIONS),
            ("calibrator", self.calibrate, CALIBRATIONS),
            ("aggregation", self.aggregate, AGGREGATIONS),
            ("gate", self.gate, GATES),
            *(("objective", name, OBJECTIVES) for name in self.objectives),
        ]

    def _check_combination(self) -> None:
        """Raise an ``OtptError`` for values that cannot be combined."""
        for value in (ADAPTATIONS[self.adapt], CALIBRATIONS[self.calibrate], AGGREGATIONS[self.aggregate]):
            for axis, allowed in value.only.items():
                if getattr(self, axis) not in allowed:
                    raise OtptError(
                        f"Method {self.name!r}: {value.name} cannot be combined with {axis} = {getattr(self, axis)!r}; "
                        f"expected {' or '.join(map(repr, allowed))}."
                    )
        init = INITS[self.init]
        for what, fits in (
            (self.adapt, init.one_text or self.adapt == CONTEXT),
            (self.adapt, init.shares_texts or not ADAPTATIONS[self.adapt].shared_texts),
            (self.adapt, init.tunable or not ADAPTATIONS[self.adapt].tunes),
            (self.calibrate, init.base_classes or "base_texts" not in CALIBRATIONS[self.calibrate].parameters),
        ):
            if not fits:
                raise OtptError(f"Method {self.name!r}: {what} cannot be combined with init = {self.init!r}.")
        if self.objectives and (not init.tunable or ADAPTATIONS[self.adapt].function):
            what = f"adaptation {self.adapt!r}" if init.tunable else f"init {self.init!r}"
            raise OtptError(
                f"Method {self.name!r} has objectives ({', '.join(self.objectives)}), but its {what} has no context to "
                "tune; remove one of them."
            )
        if self.temperature is not None and self.calibrate != "temperature":
            raise OtptError(
                f"Method {self.name!r} does not use a temperature; use 'tpt+ts', or set calibrate=temperature as well."
            )

    def _missing_numbers(self, what: str, value: Mapping[str, object], others: str) -> OtptError:
        return OtptError(
            f"Method {self.name!r}: {what} has numbers for {sorted(value)}; expected one for each of "
            f"{list(FAMILIES)}{others}, or one number."
        )

    def _valid_settings(self) -> dict[str, object]:
        """Validate the settings by the types of their functions' parameters and of the inputs."""
        inputs = self.input_settings
        settings = {**self._function_settings, **inputs}
        values: dict[str, object] = {}
        for name, value in self.settings.items():
            key = name.replace("-", "_")
            if key not in settings:
                shown = [setting.replace("_", "-") for setting in settings]
                raise unknown(f"setting of method {self.name!r}:", name.replace("_", "-"), shown)
            adapter = settings[key].adapter
            if isinstance(value, Mapping) and key not in inputs:
                if not (set(FAMILIES) <= set(value) or OTHERS in value):
                    raise self._missing_numbers(name, value, f", one for {OTHERS!r}")
                values[key] = {place: _validated(self.name, name, number, adapter) for place, number in value.items()}
            else:
                values[key] = _validated(self.name, name, value, adapter)
        return values

    @property
    def preparations(self) -> tuple[type[Preparation], ...]:
        """Its init and, if there is one, the system that runs it."""
        system = SYSTEMS.get(self.adapt)
        return (INITS[self.init],) if system is None else (INITS[self.init], system)

    @property
    def preparation(self) -> type[Preparation]:
        """The system that runs it, or else its init."""
        return self.preparations[-1]

    @property
    def input_settings(self) -> dict[str, Setting]:
        """Inputs of its init and system, by name."""
        return {name: setting for preparation in self.preparations for name, setting in preparation.settings().items()}

    @property
    def _function_settings(self) -> dict[str, Setting]:
        return {name: setting for function in self.functions for name, setting in function.settings.items()}

    @cached_property
    def prepared(self) -> Preparation:
        """The system that runs it, or else its init, with its inputs."""
        return self.preparation(**self.inputs_of(self.preparation))

    def inputs_of(self, preparation: type[Preparation]) -> dict[str, object]:
        """Return the inputs of its init or system that differ from the defaults."""
        return {name: value for name, value in self.settings.items() if name in preparation.model_fields}

    @property
    def functions(self) -> tuple[Component, ...]:
        """Functions on the axes, then objectives."""
        axes = (ADAPTATIONS[self.adapt], CALIBRATIONS[self.calibrate], AGGREGATIONS[self.aggregate], GATES[self.gate])
        return (*axes, *(OBJECTIVES[name] for name in self.objectives))

    @property
    def defaults(self) -> dict[str, object]:
        """Settings of the functions with their defaults."""
        return {name: setting.default for name, setting in self._function_settings.items()}

    @property
    def tunes(self) -> bool:
        """Whether a context is tuned by steps on objectives."""
        return bool(self.objectives) and self.adapt == CONTEXT

    @property
    def needs_context(self) -> bool:
        """Whether a context is tuned, by steps on objectives or by an adaptation function."""
        return self.tunes or ADAPTATIONS[self.adapt].tunes

    @property
    def sees_all_first(self) -> bool:
        """Whether the method makes a first pass over all images of a set."""
        return ADAPTATIONS[self.adapt].sees_all_first

    @property
    def starts_from_words(self) -> bool:
        """Whether the initial context consists of words."""
        return INITS[self.init].from_words

    @property
    def scope(self) -> str:
        """ "image": images are independent; "stream": state is carried from image to image, the order matters."""
        return STREAM if ADAPTATIONS[self.adapt].in_order else IMAGE

    def needs_views(self, family: str, dataset: str = "") -> bool:
        """Return whether the method needs more than the clean view on a data set."""
        sees_views = any(OBJECTIVES[name].on == VIEWS for name in self.objectives)
        return (self.tunes and sees_views) or self.needs_all_views(family, dataset)

    def needs_all_views(self, family: str, dataset: str = "") -> bool:
        """Return whether the prediction depends on a function of all views."""
        adaptation, numbers = ADAPTATIONS[self.adapt], self.settings_for(family, dataset)
        chosen = any(numbers.get(name) for name in adaptation.views_if)
        return self.needs_adapted_views or adaptation.views or chosen or GATES[self.gate].views

    @property
    def needs_adapted_views(self) -> bool:
        """Whether calibration or aggregation take the adapted logits of more than the clean view."""
        return CALIBRATIONS[self.calibrate].views or AGGREGATIONS[self.aggregate].views

    @property
    def numbers(self) -> dict[str, object]:
        """Settings of the functions that differ from their defaults."""
        inputs = self.input_settings
        return {name: value for name, value in self.settings.items() if name not in inputs}

    def settings_for(self, family: str, dataset: str = "") -> dict[str, object]:
        """Return the settings of the functions on a data set that differ from their defaults."""
        return {name: number_for(setting, family, dataset) for name, setting in self.numbers.items()}

    def inputs_for(self, dataset: str) -> Method:
        """Return a copy whose inputs have the name of a data set in place of ``{dataset}`` in paths."""
        inputs = self.input_settings
        changed = {
            name: str(value).replace("{dataset}", dataset)
            for name, value in self.settings.items()
            if name in inputs and isinstance(value, (str, PathLike)) and "{dataset}" in str(value)
        }
        return replace(self, settings={**self.settings, **changed}) if changed else self

    def caution_on(self, datasets: Collection[str]) -> str:
        """Return the caution, or "" if it concerns numbers by data set and none applies to ``datasets``."""
        listed = listed_datasets(self.numbers.values())
        return self.caution if not listed or listed & set(datasets) else ""

    def tuning(self, family: str, dataset: str = "") -> TuningConfig | None:
        """Return the context steps for a family of data sets, or None without objectives."""
        if family not in FAMILIES:
            raise unknown("family of data sets", family, FAMILIES)
        if not self.objectives:
            return None
        of_objectives = {name for objective in self.objectives for name in OBJECTIVES[objective].settings}
        settings = self.settings_for(family, dataset).items()
        steps = {step_field.name: getattr(self, step_field.name) for step_field in fields(Steps)}
        steps["learning_rate"] = float(number_for(self.learning_rate, family))
        return TuningConfig(
            tuple((name, float(number_for(weight, family))) for name, weight in self.objectives.items()),
            tuple((name, value) for name, value in settings if name in of_objectives),
            **steps,
        )

    def replace(self, **changes: object) -> Method:
        """Return a validated copy with some fields changed."""
        make: Callable[..., Method] = replace
        return make(self, **changes)

    def override(self, settings: Mapping[str, object]) -> Method:
        """Return a copy with settings replaced, as by ``--set name=value`` and ``name[setting=value]``.

        Names: an objective of the method, for its weight; ``lambda`` or ``weight`` for its one regulariser; the fields
        of its steps (steps, learning-rate …); calibrate and temperature; inputs of its init or system; and the
        settings of its functions (:attr:`defaults`).
        """
        method = self
        # set calibrate first, since it may enable a temperature
        for name in sorted(settings, key=lambda key: key != "calibrate"):
            method = method._with(name.replace("_", "-"), settings[name])
        return method

    def has_setting(self, name: str) -> bool:
        """Return whether :meth:`override` accepts ``name``; O-TPT has a lambda, TPT has none."""
        return name.replace("_", "-") in self._settable

    @property
    def _regularisers(self) -> list[str]:
        return [name for name in self.objectives if OBJECTIVES[name].on == TEXTS]

    @property
    def _settable(self) -> list[str]:
        weights = [*(["lambda", "weight"] if self._regularisers else []), *self.objectives]
        steps = [step_field.name for step_field in fields(Steps)] if self.objectives else []
        temperature = ["temperature"] if self.calibrate == "temperature" else []
        names = [*weights, *self.defaults, *self.input_settings, *steps, "calibrate", *temperature]
        return [name.replace("_", "-") for name in names]

    def _with(self, name: str, value: object) -> Method:
        if name in ("lambda", "weight"):
            candidates = self._regularisers or (list(self.objectives) if name == "weight" else [])
            if not candidates and not self.objectives:
                raise OtptError(f"Method {self.name!r} has no objective, so {name} has no effect; leave it out.")
            if len(candidates) != 1:
                raise OtptError(
                    f"Method {self.name!r} has {len(candidates)} objectives that {name} can set; expected one. Set a "
                    "weight by the name of its objective, or after its part, as in "
                    f"tpt+{(candidates or ['dispersion'])[-1]}[weight=20]."
                )
            name = candidates[0]
        key = name.replace("-", "_")
        if name in self.objectives:
            weight = _validated(self.name, f"the weight of {name}", value, TypeAdapter(NonNegative))
            return replace(self, objectives={**self.objectives, name: weight})
        if key in self.input_settings:
            return replace(self, settings={**self.settings, key: value})
        if key in self.defaults:
            changed = replace(self, settings={**self.settings, key: value})
            # a caution about numbers by data set does not apply to explicit values
            lapsed = listed_datasets(self.numbers.values()) and not listed_datasets(changed.numbers.values())
            return replace(changed, caution="") if lapsed else changed
        if name not in self._settable and name != "temperature":
            raise unknown(f"setting of method {self.name!r}:", name, self._settable)
        if key != "calibrate":
            return self.replace(**{key: _validated(self.name, name, value, _adapter(key))})
        calibrate = _validated(self.name, name, value, TypeAdapter(str))
        if not is_registered(calibrate, CALIBRATIONS, "methods"):
            raise unknown("calibrator", calibrate, CALIBRATIONS)
        without = replace(self, calibrate=calibrate, settings={}, temperature=None)
        remaining = {**without.defaults, **without.input_settings}
        settings = {setting: number for setting, number in self.settings.items() if setting in remaining}
        return replace(self, calibrate=calibrate, settings=settings, temperature=None)


@cache
def _adapter(name: str) -> TypeAdapter[object]:
    kind = get_type_hints(Method, include_extras=True)[name]
    return TypeAdapter(kind, config=ConfigDict(allow_inf_nan=False))


def _validated(method: str, name: str, value: object, adapter: TypeAdapter[_Value], *, strict: bool = False) -> _Value:
    """Validate a value by an adapter; without ``strict``, strings such as "2" and "on" are converted."""
    try:
        return adapter.validate_python(value, strict=strict)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join([name.replace("_", "-"), *(str(part) for part in first["loc"][:1])])
        expected = first["msg"].replace("Input should be ", "")
        raise OtptError(f"Method {method!r}: {where} is {first['input']!r:.80}; expected {expected}.") from None


Methods = tuple[Method, ...]
