"""A method: one value on each axis (init, adapt, calibrate, aggregate, gate), and the numbers that belong to them."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from types import MappingProxyType
from typing import Any

from otpt.calibration.registry import CALIBRATIONS
from otpt.errors import OtptError, unknown
from otpt.functions import Value
from otpt.methods.axes import (
    ADAPTATIONS,
    AGGREGATIONS,
    ATTRIBUTES,
    CLEAN,
    GATES,
    IMAGE,
    INITS,
    NONE,
    OF_WORDS,
    STREAM,
    TEMPLATES,
)
from otpt.methods.prompt_tuning.config import TuningConfig
from otpt.methods.settings import FAMILIES, Setting, check_setting, listed_datasets, setting_bounds, setting_for
from otpt.objectives.registry import OBJECTIVES, TEXTS, VIEWS, Objective, find_objective, in_order

CONTEXT = "context"
CONDITIONS = ("unit", "raw")

Weight = float | Mapping[str, float]
"""One number, or one for each family of data sets."""

_NUMBERS = ("steps", "learning-rate", "weight-decay", "selection-ratio", "temperature", "frozen-below")
_WORDS = ("reference", "two-step", "calibrate")
_OF_TUNING = {*_NUMBERS, *_WORDS} - {"temperature", "calibrate"}

_OWN_PROMPTS = ("cocoop", "maple")
"""Inits with a context of its own for each image, or prompts in both towers."""


@dataclass(frozen=True)
class Method:
    """A named point on the axes.

    Example:
        >>> Method("gentle", objectives={"entropy": 1.0, "orthogonality": 6.0}).tuning("fine-grained").weights
        (('entropy', 1.0), ('orthogonality', 6.0))

    Attributes:
        name: what to call it.
        init: the initial prompt: "words"; "attributes", words with several texts per class; one that was learned before
            ("coop", "cocoop", "maple") and is read from a file; templates ("templates-7", "templates-80",
            "dataset-templates", "templates"), which leave no context to tune; or a context made for the class list
            ("fpp", "fpp-words").
        adapt: "context", steps on the context that minimise ``objectives`` (nothing is adapted if there are none); or
            an adaptation of its own.
        objectives: weight of each objective of :data:`otpt.objectives.OBJECTIVES`.
        calibrate: "none", "temperature", "sals", or a registered function.
        temperature: for "temperature"; None takes the published constant for the backbone's kind of image tower.
        aggregate: "clean", or a registered function of all views.
        gate: "none", or a registered function that says whether to adapt an image.
        summary, source: for people.
        caution: what people should know who evaluate it; see :meth:`caution_on`.
        condition: the image feature that CoCoOp's network sees: of norm one ("unit", as it was trained) or not ("raw",
            as TPT's code feeds it).
        learning_rate: one number, or one for each family of data sets.
        steps, weight_decay, selection_ratio, selection, reference, two_step, frozen_below: see :class:`TuningConfig`.
        settings: of the functions that it is made of, such as SoC's delta; one number, one for each family of data
            sets, or one for each of some data sets and one for "others".
        views: how many it needs, the clean one included; None: as many as the recipe says.
        augmix: whether they are mixed; None: as the data set says.
    """

    name: str
    objectives: Mapping[str, Weight] = field(default_factory=dict)
    init: str = "words"
    adapt: str = CONTEXT
    calibrate: str = NONE
    aggregate: str = CLEAN
    gate: str = NONE
    temperature: float | None = None
    summary: str = ""
    source: str = ""
    steps: int = 1
    learning_rate: Weight = 5e-3
    weight_decay: float = 0.01
    selection_ratio: float = 0.1
    reference: str = "confident"
    two_step: bool = False
    condition: str = "unit"
    views: int | None = None
    augmix: bool | None = None
    selection: str = "confident"
    settings: Mapping[str, Setting] = field(default_factory=dict)
    caution: str = ""
    frozen_below: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "objectives", MappingProxyType(dict(in_order(self.objectives))))
        for name, weight in self.objectives.items():
            find_objective(name)
            self._check_families(name, weight)
        self._check_families("learning_rate", self.learning_rate)
        if isinstance(self.learning_rate, Mapping):
            object.__setattr__(self, "learning_rate", MappingProxyType(dict(self.learning_rate)))
        settings = {name.replace("-", "_"): value for name, value in self.settings.items()}
        object.__setattr__(self, "settings", MappingProxyType(settings))
        for name, setting in settings.items():
            if name not in _all_settings():
                raise unknown("setting", name.replace("_", "-"), [each.replace("_", "-") for each in _all_settings()])
            check_setting(self.name, name.replace("_", "-"), setting, setting_bounds().get(name.replace("_", "-"), {}))
        for axis, value, known in (
            ("init", self.init, INITS),
            ("adaptation", self.adapt, ADAPTATIONS),
            ("calibration", self.calibrate, CALIBRATIONS),
            ("aggregation", self.aggregate, AGGREGATIONS),
            ("gate", self.gate, GATES),
            ("condition", self.condition, CONDITIONS),
        ):
            if value not in known:
                raise unknown(axis, value, known)
        if self.temperature is not None and not 0 < self.temperature < math.inf:
            raise OtptError(
                f"Method {self.name!r}: the temperature is {self.temperature}; expected a finite number above 0."
            )
        if self.temperature is not None and self.calibrate != "temperature":
            raise OtptError(
                f"Method {self.name!r} does not use a temperature; take 'tpt+ts', or set calibrate=temperature too."
            )
        self._check_axes()
        if self.views is not None and self.views < 1:
            raise OtptError(f"Method {self.name!r}: the number of views is {self.views}; expected 1 or more.")
        for family in FAMILIES:
            self.tuning(family)

    def __hash__(self) -> int:
        axes = (self.name, self.init, self.adapt, self.calibrate, self.aggregate, self.gate, self.condition)
        views = (self.temperature, self.views, self.augmix)
        return hash((*axes, *views, *self.settings, *(self.tuning(family) for family in FAMILIES)))

    def __reduce__(self) -> tuple[Any, tuple[()]]:
        """For pickle, which cannot take a read-only mapping: worker processes are sent methods."""
        values: dict[str, Any] = {each.name: getattr(self, each.name) for each in fields(self)}
        plain: dict[str, Any] = {
            name: dict(value) if isinstance(value, Mapping) else value for name, value in values.items()
        }
        return partial(Method, **plain), ()

    @property
    def tunes(self) -> bool:
        """Whether a context is tuned."""
        return bool(self.objectives) and self.adapt == CONTEXT

    @property
    def starts_from_words(self) -> bool:
        """Whether its initial context is made of words, not learned before."""
        return self.init in OF_WORDS

    @property
    def scope(self) -> str:
        """ "image": each image for itself; "stream": the order matters, state is carried from image to image."""
        return STREAM if ADAPTATIONS[self.adapt].in_order else IMAGE

    def needs_views(self, family: str, dataset: str = "") -> bool:
        """Whether it needs more than the clean view on a data set."""
        sees_views = any(OBJECTIVES[name].on == VIEWS for name in self.objectives)
        return (self.tunes and sees_views) or self.needs_all_views(family, dataset)

    def needs_all_views(self, family: str, dataset: str = "") -> bool:
        """Whether a function of all views decides; with the clean view alone it would have nothing to do."""
        adaptation, numbers = ADAPTATIONS[self.adapt], self.settings_for(family, dataset)
        chosen = any(numbers.get(name) for name in adaptation.views_if)
        return self.needs_adapted_views or adaptation.views or chosen or GATES[self.gate].views

    @property
    def needs_adapted_views(self) -> bool:
        """Whether calibration or aggregation take the adapted logits of more than the clean view."""
        return CALIBRATIONS[self.calibrate].views or AGGREGATIONS[self.aggregate].views

    def _check_axes(self) -> None:
        """``OtptError`` if values on two axes do not go together."""
        for value in (ADAPTATIONS[self.adapt], CALIBRATIONS[self.calibrate], AGGREGATIONS[self.aggregate]):
            for axis, allowed in value.only.items():
                if getattr(self, axis) not in allowed:
                    raise OtptError(
                        f"Method {self.name!r}: {value.name} does not go with {axis} = {getattr(self, axis)!r}; "
                        f"expected {' or '.join(map(repr, allowed))}."
                    )
        if self.init == ATTRIBUTES and self.adapt != CONTEXT:
            raise OtptError(
                f"Method {self.name!r}: {self.adapt} does not go with init = 'attributes', where a class has several "
                "texts; expected steps on the context, or nothing adapted."
            )
        if self.objectives and self.init in TEMPLATES:
            raise OtptError(
                f"Method {self.name!r} has objectives, which belong to steps on the context, but its init is "
                f"{self.init!r}, which leaves no context to tune; leave one of them out."
            )
        if self.frozen_below and (not self.tunes or self.init in _OWN_PROMPTS):
            raise OtptError(
                f"Method {self.name!r}: frozen-below is {self.frozen_below}; it is for steps on a context that all "
                f"images start from, not for init = {self.init!r}, adapt = {self.adapt!r}. Leave it out."
            )
        if self.objectives and ADAPTATIONS[self.adapt].source:
            raise OtptError(
                f"Method {self.name!r} has objectives, which belong to steps on the context, but its adaptation is "
                f"{self.adapt!r}; leave one of them out."
            )

    def _check_families(self, what: str, value: Weight) -> None:
        if isinstance(value, Mapping) and set(value) != set(FAMILIES):
            kind = "weights" if what in self.objectives else "numbers"
            raise OtptError(
                f"Method {self.name!r}: {what} has {kind} for {sorted(value)}; "
                f"expected one for each of {list(FAMILIES)}, or one number."
            )

    def settings_for(self, family: str, dataset: str = "") -> dict[str, float]:
        """The settings of its functions on a data set."""
        return {name: setting_for(setting, family, dataset) for name, setting in self.settings.items()}

    def caution_on(self, datasets: Collection[str]) -> str:
        """The caution, if it concerns these data sets; one about numbers by data set concerns those that have some."""
        listed = listed_datasets(self.settings.values())
        return self.caution if not listed or listed & set(datasets) else ""

    def tuning(self, family: str, dataset: str = "") -> TuningConfig | None:
        """The context steps for a family of data sets; None where nothing is tuned."""
        if family not in FAMILIES:
            raise unknown("family of data sets", family, FAMILIES)
        if not self.objectives:
            return None
        try:
            return TuningConfig(
                tuple((name, _weight(weight, family)) for name, weight in self.objectives.items()),
                steps=self.steps,
                learning_rate=_weight(self.learning_rate, family),
                weight_decay=self.weight_decay,
                selection_ratio=self.selection_ratio,
                reference=self.reference,
                two_step=self.two_step,
                selection=self.selection,
                frozen_below=self.frozen_below,
                settings=self._objective_settings(family, dataset),
            )
        except OtptError as error:
            raise OtptError(f"Method {self.name!r}: {error}") from None

    def _objective_settings(self, family: str, dataset: str) -> tuple[tuple[str, float], ...]:
        own = {name for objective in self.objectives for name in OBJECTIVES[objective].settings}
        return tuple((name, value) for name, value in self.settings_for(family, dataset).items() if name in own)

    @property
    def functions(self) -> tuple[Value | Objective, ...]:
        """What it is made of: its values on the axes, then its objectives."""
        axes = (ADAPTATIONS[self.adapt], CALIBRATIONS[self.calibrate], AGGREGATIONS[self.aggregate], GATES[self.gate])
        return (*axes, *(OBJECTIVES[name] for name in self.objectives))

    @property
    def known_settings(self) -> tuple[str, ...]:
        """Names of the settings that its functions have, with hyphens."""
        names = (name.replace("_", "-") for each in self.functions for name in each.settings)
        return tuple(dict.fromkeys(names))

    def override(self, settings: Mapping[str, str | float | bool]) -> Method:
        """The method with some settings replaced, as ``--set name=value`` does.

        Names: an objective of the method; ``lambda`` for its one regulariser; steps, learning-rate, weight-decay,
        selection-ratio, temperature, reference, two-step, frozen-below, calibrate; condition for CoCoOp; and the
        settings of its functions (:attr:`known_settings`).
        """
        method = self
        # calibrate first, so that a temperature given together with it finds it in place
        for name in sorted(settings, key=lambda key: key != "calibrate"):
            method = method._with(name.replace("_", "-"), settings[name])
        return method

    def has_setting(self, name: str) -> bool:
        """Whether :meth:`override` can set it: O-TPT has a lambda, TPT has none, zero-shot has no steps."""
        name = name.replace("_", "-")
        if name in self.known_settings:
            return True
        if name == "lambda":
            return bool(self._regularisers())
        if name == "temperature":
            return self.calibrate == "temperature"
        if name == "condition":
            return self.init == "cocoop"
        return name in self.objectives or name == "calibrate" or (name in _OF_TUNING and bool(self.objectives))

    def _with(self, name: str, value: str | float | bool) -> Method:
        if name == "lambda":
            name = self._regulariser()
        if name in self.objectives:
            return replace(self, objectives={**self.objectives, name: _number(name, value)})
        if name in self.known_settings:
            return self._with_setting(name.replace("-", "_"), _number(name, value))
        if name == "condition" and self.init == "cocoop":
            return replace(self, condition=str(value))
        if name not in (*_NUMBERS, *_WORDS):
            raise unknown(
                f"setting of method {self.name!r}:",
                name,
                ("lambda", *self.objectives, *self.known_settings, *_NUMBERS, *_WORDS),
            )
        if not self.objectives and name in _OF_TUNING:
            raise OtptError(f"Method {self.name!r} tunes nothing, so it has no {name} to set.")
        if name == "steps":
            number = _number(name, value)
            if not number.is_integer():
                raise OtptError(f"The setting steps is {value!r}; expected a whole number.")
            return replace(self, steps=int(number))
        if name == "two-step":
            return replace(self, two_step=_flag(name, value))
        given: Any = _number(name, value) if name in _NUMBERS else str(value)
        return replace(self, **{name.replace("-", "_"): given})

    def _with_setting(self, name: str, value: float) -> Method:
        settings = {**self.settings, name: value}
        # a caution about numbers by data set does not concern those that are given
        lapsed = listed_datasets(self.settings.values()) and not listed_datasets(settings.values())
        return replace(self, settings=settings, caution="" if lapsed else self.caution)

    def _regularisers(self) -> list[str]:
        return [name for name in self.objectives if OBJECTIVES[name].on == TEXTS]

    def _regulariser(self) -> str:
        found = self._regularisers()
        if len(found) == 1:
            return found[0]
        if not found:
            raise OtptError(f"Method {self.name!r} has no regulariser, so no lambda to set; c-tpt and o-tpt have one.")
        raise OtptError(
            f"Method {self.name!r} has {len(found)} regularisers; set each by its name: {', '.join(found)}."
        )


def _weight(weight: Weight, family: str) -> float:
    return float(weight[family] if isinstance(weight, Mapping) else weight)


def _number(name: str, value: str | float | bool) -> float:
    try:
        return float(value)
    except ValueError:
        raise OtptError(f"The setting {name} is {value!r}; expected a number.") from None


def _flag(name: str, value: str | float | bool) -> bool:
    text = str(value).lower()
    if text in {"on", "true", "yes", "1"}:
        return True
    if text in {"off", "false", "no", "0"}:
        return False
    raise OtptError(f"The setting {name} is {value!r}; expected on or off.")


def _all_settings() -> list[str]:
    """Names of the settings that any function has: a method whose calibration was replaced may keep some in vain."""
    found = {name for objective in OBJECTIVES.values() for name in objective.settings}
    for axis in (ADAPTATIONS, CALIBRATIONS, AGGREGATIONS, GATES):
        found |= {name for value in axis.values() for name in value.settings}
    return sorted(found)
