"""A method: objectives with weights, the optimiser's numbers, and what is done to the logits afterwards."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from types import MappingProxyType
from typing import Any

from otpt.errors import OtptError, unknown
from otpt.tuning import OBJECTIVES, TEXT_OBJECTIVES, TuningPlan

FAMILIES = ("fine-grained", "shift")
CALIBRATIONS = ("none", "temperature", "sals")
STARTS = ("words", "coop", "cocoop", "maple")
CONDITIONS = ("unit", "raw")
SYSTEMS = ("", "baple", "fpt", "promptsmooth")

Weight = float | Mapping[str, float]
"""One number, or one for each family of data sets."""

_NUMBERS = ("steps", "learning-rate", "weight-decay", "selected", "temperature")
_WORDS = ("reference", "two-step", "calibration")


@dataclass(frozen=True)
class Method:
    """A named recipe.

    Example:
        >>> Method("gentle", objectives={"entropy": 1.0, "orthogonality": 6.0}).plan("fine-grained").weights
        (('entropy', 1.0), ('orthogonality', 6.0))

    Attributes:
        name: what to call it.
        objectives: weight of each objective of :data:`otpt.tuning.OBJECTIVES`; none means zero-shot.
        calibration: "none", "temperature" or "sals".
        temperature: for "temperature"; None takes the published constant of the backbone's family.
        summary, source: for people.
        start: what the prompt starts as: "words", or one that was learned before ("coop", "cocoop", "maple") and is
            read from a file.
        condition: the image feature that CoCoOp's net sees: of norm one ("unit", as it was trained) or not ("raw", as
            TPT's code feeds it).
        system: "" for test-time tuning on views; else the medical system that it belongs to ("baple", "fpt",
            "promptsmooth"), which judges pictures in its own way.
        learning_rate: one number, or one for each family of data sets.
        steps, weight_decay, selected, reference, two_step: see :class:`TuningPlan`.
    """

    name: str
    objectives: Mapping[str, Weight] = field(default_factory=dict)
    calibration: str = "none"
    temperature: float | None = None
    summary: str = ""
    source: str = ""
    steps: int = 1
    learning_rate: Weight = 5e-3
    weight_decay: float = 0.01
    selected: float = 0.1
    reference: str = "confident"
    two_step: bool = False
    start: str = "words"
    condition: str = "unit"
    system: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "objectives", MappingProxyType(dict(self.objectives)))
        for name, weight in self.objectives.items():
            if name not in OBJECTIVES:
                raise unknown("objective", name, OBJECTIVES)
            self._check_families(name, weight)
        self._check_families("learning_rate", self.learning_rate)
        if isinstance(self.learning_rate, Mapping):
            object.__setattr__(self, "learning_rate", MappingProxyType(dict(self.learning_rate)))
        if self.start not in STARTS:
            raise unknown("start", self.start, STARTS)
        if self.condition not in CONDITIONS:
            raise unknown("condition", self.condition, CONDITIONS)
        if self.system not in SYSTEMS:
            raise unknown("system", self.system, SYSTEMS[1:])
        if self.calibration not in CALIBRATIONS:
            raise unknown("calibration", self.calibration, CALIBRATIONS)
        if self.temperature is not None and not 0 < self.temperature < math.inf:
            raise OtptError(
                f"Method {self.name!r}: the temperature is {self.temperature}; expected a finite number above 0."
            )
        if self.temperature is not None and self.calibration != "temperature":
            raise OtptError(
                f"Method {self.name!r} does not use a temperature; take 'tpt+ts', or set calibration=temperature too."
            )
        for family in FAMILIES:
            self.plan(family)

    def __hash__(self) -> int:
        plans = self.plan("fine-grained"), self.plan("shift")
        return hash((self.name, self.start, self.condition, self.system, *plans, self.calibration, self.temperature))

    def __reduce__(self) -> tuple[Any, tuple[()]]:
        """For pickle, which cannot take a read-only mapping: worker processes are sent methods."""
        values: dict[str, Any] = {each.name: getattr(self, each.name) for each in fields(self)}
        plain: dict[str, Any] = {
            name: dict(value) if isinstance(value, Mapping) else value for name, value in values.items()
        }
        return partial(Method, **plain), ()

    @property
    def ready(self) -> bool:
        """Whether a backbone and class names are all that it needs."""
        return self.start == "words" and not self.system

    def _check_families(self, what: str, value: Weight) -> None:
        if isinstance(value, Mapping) and set(value) != set(FAMILIES):
            kind = "weights" if what in self.objectives else "numbers"
            raise OtptError(
                f"Method {self.name!r}: {what} has {kind} for {sorted(value)}; "
                f"expected one for each of {list(FAMILIES)}, or one number."
            )

    def plan(self, family: str) -> TuningPlan | None:
        """The tuning for a family of data sets; None where nothing is tuned."""
        if family not in FAMILIES:
            raise unknown("family of data sets", family, FAMILIES)
        if not self.objectives:
            return None
        weights = tuple((name, _weight(weight, family)) for name, weight in self.objectives.items())
        try:
            return TuningPlan(
                weights,
                steps=self.steps,
                learning_rate=_weight(self.learning_rate, family),
                weight_decay=self.weight_decay,
                selected=self.selected,
                reference=self.reference,
                two_step=self.two_step,
            )
        except OtptError as error:
            raise OtptError(f"Method {self.name!r}: {error}") from None

    def override(self, settings: Mapping[str, str | float | bool]) -> Method:
        """The method with some settings replaced, as ``--set name=value`` does.

        Names: an objective of the method; ``lambda`` for its one regulariser; steps, learning-rate, weight-decay,
        selected, temperature, reference, two-step, calibration; and condition for CoCoOp.
        """
        method = self
        # calibration first, so that a temperature given together with it finds it in place
        for name in sorted(settings, key=lambda key: key != "calibration"):
            method = method._with(name.replace("_", "-"), settings[name])
        return method

    def has_setting(self, name: str) -> bool:
        """Whether :meth:`override` can set it: O-TPT has a lambda, TPT has none, zero-shot has no steps."""
        name = name.replace("_", "-")
        if name == "lambda":
            return any(objective in TEXT_OBJECTIVES for objective in self.objectives)
        if name == "temperature":
            return self.calibration == "temperature"
        if name == "condition":
            return self.start == "cocoop"
        return (
            name in self.objectives or name == "calibration" or (name in (*_NUMBERS, *_WORDS) and bool(self.objectives))
        )

    def _with(self, name: str, value: str | float | bool) -> Method:
        if name == "lambda":
            name = self._regulariser()
        if name in self.objectives:
            weight = _number(name, value)
            return replace(self, objectives={**self.objectives, name: weight})
        if name == "condition" and self.start == "cocoop":
            return replace(self, condition=str(value))
        if name not in (*_NUMBERS, *_WORDS):
            raise unknown(f"setting of method {self.name!r}:", name, ("lambda", *self.objectives, *_NUMBERS, *_WORDS))
        if not self.objectives and name not in {"temperature", "calibration"}:
            raise OtptError(f"Method {self.name!r} tunes nothing, so it has no {name} to set.")
        key = name.replace("-", "_")
        if name == "steps":
            number = _number(name, value)
            if number != int(number):
                raise OtptError(f"The setting steps is {value!r}; expected a whole number.")
            return replace(self, steps=int(number))
        if name == "two-step":
            return replace(self, two_step=_flag(name, value))
        return replace(self, **{key: _number(name, value) if name in _NUMBERS else str(value)})  # type: ignore[arg-type]

    def _regulariser(self) -> str:
        found = [name for name in self.objectives if name in TEXT_OBJECTIVES]
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
    words = {
        "on": True,
        "true": True,
        "yes": True,
        "1": True,
        "off": False,
        "false": False,
        "no": False,
        "0": False,
    }
    if str(value).lower() not in words:
        raise OtptError(f"The setting {name} is {value!r}; expected on or off.")
    return words[str(value).lower()]
