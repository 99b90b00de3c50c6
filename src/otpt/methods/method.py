"""A method: one value on each axis (init, adapt, calibrate, aggregate, gate), and the numbers that belong to them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Any, Literal, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

from otpt.errors import OtptError, unknown
from otpt.methods.kinds import INITS
from otpt.objectives import fraction_of
from otpt.registry import (
    ADAPTATIONS,
    AGGREGATIONS,
    CALIBRATIONS,
    CLEAN,
    CONTEXT,
    FAMILIES,
    GATES,
    IMAGE,
    NONE,
    OBJECTIVES,
    OTHERS,
    STREAM,
    TEXTS,
    VIEWS,
    Component,
    Count,
    Fraction,
    NonNegative,
    Positive,
    listed_datasets,
    number_for,
)


@dataclass(frozen=True, kw_only=True)
class Steps:
    """The numbers of AdamW steps on the context, of a method and of its configs.

    Attributes:
        steps: optimiser steps per image.
        learning_rate: one number, or one for each family of data sets.
        selection_ratio: fraction of the views that is selected, rounded down (at least one view).
        reference: whose logits give the range of the range objectives: the most "confident" selected view under
            the current prompt, as the released code does, or the "clean" view under the initial prompt.
        two_step: view objectives in a first step, text objectives in a second one with the same moments (C-TPT's
            two-step mode); the number of steps then counts such pairs.
        selection: "confident", the views of smallest entropy; or "strong", the clean view and then those of smallest
            entropy among the augmented ones, of which the ratio is taken.
    """

    steps: Count = 1
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
        settings: (name, value) pairs of the objectives' own settings.
    """

    weights: tuple[tuple[str, float], ...]
    settings: tuple[tuple[str, float], ...] = ()
    learning_rate: float = field(default=5e-3, kw_only=True)

    @property
    def view_weights(self) -> tuple[tuple[str, float], ...]:
        """The weights of objectives on the views."""
        return tuple((name, weight) for name, weight in self.weights if OBJECTIVES[name].on == VIEWS)

    @property
    def text_weights(self) -> tuple[tuple[str, float], ...]:
        """The weights of objectives on the text features."""
        return tuple((name, weight) for name, weight in self.weights if OBJECTIVES[name].on == TEXTS)

    def selected_count(self, views: int) -> int:
        """int(V·ratio): 6 of 64 at 10 %; with "strong" int((V − 1)·ratio) augmented views and the clean one."""
        clean = int(self.selection == "strong")
        return fraction_of(views - clean, self.selection_ratio) + clean


@dataclass(frozen=True)
class Method(Steps):
    """A named point on the axes; the numbers of its steps on the context are those of :class:`Steps`.

    Example:
        >>> Method("gentle", objectives={"entropy": 1.0, "orthogonality": 6.0}).tuning("fine-grained").weights
        (('entropy', 1.0), ('orthogonality', 6.0))

    Attributes:
        name: in results and messages.
        objectives: weight of each objective of :data:`otpt.registry.OBJECTIVES`.
        init: the initial prompt: "words", or another of :data:`otpt.registry.INITS`: with attributes of the classes,
            learned before and read from a file, templates, which leave no context to tune, or made for the classes.
        adapt: "context", steps on the context that minimise ``objectives`` (nothing is adapted if there are none); or
            a registered adaptation.
        calibrate: "none", "temperature", "sals", or another registered calibrator.
        aggregate: "clean", or a registered function of all views.
        gate: "none", or a registered function that says whether to adapt an image.
        temperature: for "temperature"; None takes the published constant for the backbone's kind of image tower.
        summary, source: for people.
        condition: the image feature that a conditional context (CoCoOp) sees: of norm one ("unit", as it was trained)
            or not ("raw", as TPT's code feeds it).
        views: number of views, the clean one included; None: as the recipe says.
        augmix: whether views are mixed; None: as the data set says.
        settings: of its functions, such as SoC's delta, where they differ from the defaults; one number, one for each
            family of data sets, or one for each of some data sets and one for "others".
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
    condition: Literal["unit", "raw"] = "unit"
    views: Count | None = None
    augmix: bool | None = None
    settings: Mapping[str, Any] = field(default_factory=dict, hash=False)
    caution: str = ""

    def __post_init__(self) -> None:
        for each in fields(self):
            _validated(self.name, each.name, getattr(self, each.name), _adapter(each.name), strict=True)
        axes: list[tuple[str, str, Mapping[str, Any]]] = [
            ("init", self.init, INITS),
            ("adaptation", self.adapt, ADAPTATIONS),
            ("calibrator", self.calibrate, CALIBRATIONS),
            ("aggregation", self.aggregate, AGGREGATIONS),
            ("gate", self.gate, GATES),
            *(("objective", name, OBJECTIVES) for name in self.objectives),
        ]
        for axis, value, known in axes:
            if value not in known:
                raise unknown(axis, value, known)
        # as a loss adds them up: view objectives first, each kind in the order of the registry
        present = [name for name in OBJECTIVES if name in self.objectives]
        order = [name for kind in (VIEWS, TEXTS) for name in present if OBJECTIVES[name].on == kind]
        object.__setattr__(self, "objectives", {name: self.objectives[name] for name in order})
        for name, weight in {**self.objectives, "learning_rate": self.learning_rate}.items():
            if isinstance(weight, Mapping):
                self._check_families(name, weight)
        object.__setattr__(self, "settings", self._valid_settings())
        self._check_combination()

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
                f"Method {self.name!r} has objectives ({', '.join(self.objectives)}), but its {what} leaves no context "
                "to tune; leave one of them out."
            )
        if self.temperature is not None and self.calibrate != "temperature":
            raise OtptError(
                f"Method {self.name!r} does not use a temperature; take 'tpt+ts', or set calibrate=temperature too."
            )

    def _check_families(self, what: str, value: Mapping[str, Any], *, by_dataset: bool = False) -> None:
        if not (set(FAMILIES) <= set(value) or (by_dataset and OTHERS in value)):
            raise OtptError(
                f"Method {self.name!r}: {what} has numbers for {sorted(value)}; expected one for each of "
                f"{list(FAMILIES)}{f', one for {OTHERS!r}' if by_dataset else ''}, or one number."
            )

    def _valid_settings(self) -> dict[str, Any]:
        """The settings in the types of their functions' parameters."""
        known = {name: setting for each in self.functions for name, setting in each.settings.items()}
        found: dict[str, Any] = {}
        for name, value in self.settings.items():
            key = name.replace("-", "_")
            if key not in known:
                raise unknown(f"setting of method {self.name!r}:", name.replace("_", "-"), self.known_settings)
            adapter = known[key].adapter
            if isinstance(value, Mapping):
                self._check_families(name, value, by_dataset=True)
                found[key] = {each: _validated(self.name, name, number, adapter) for each, number in value.items()}
            else:
                found[key] = _validated(self.name, name, value, adapter)
        return found

    @property
    def functions(self) -> tuple[Component, ...]:
        """What it is made of: its values on the axes, then its objectives."""
        axes = (ADAPTATIONS[self.adapt], CALIBRATIONS[self.calibrate], AGGREGATIONS[self.aggregate], GATES[self.gate])
        return (*axes, *(OBJECTIVES[name] for name in self.objectives))

    @property
    def known_settings(self) -> tuple[str, ...]:
        """Names of the settings of its functions, with hyphens."""
        return tuple(name.replace("_", "-") for name in self.defaults)

    @property
    def defaults(self) -> dict[str, Any]:
        """The settings of its functions with their defaults."""
        return {name: setting.default for each in self.functions for name, setting in each.settings.items()}

    @property
    def tunes(self) -> bool:
        """Whether a context is tuned by steps on objectives."""
        return bool(self.objectives) and self.adapt == CONTEXT

    @property
    def needs_context(self) -> bool:
        """Whether it tunes a context, by steps on objectives or by a function of its own."""
        return self.tunes or ADAPTATIONS[self.adapt].tunes

    @property
    def sees_all_first(self) -> bool:
        """Whether it sees all images of a set before it predicts the first, so that it works on whole sets alone."""
        return ADAPTATIONS[self.adapt].sees_all_first

    @property
    def starts_from_words(self) -> bool:
        """Whether its initial context is made of words."""
        return INITS[self.init].from_words

    @property
    def scope(self) -> str:
        """ "image": images are independent; "stream": state is carried from image to image, the order matters."""
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

    def settings_for(self, family: str, dataset: str = "") -> dict[str, Any]:
        """The settings that differ from the functions' defaults, on a data set."""
        return {name: number_for(setting, family, dataset) for name, setting in self.settings.items()}

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
        own = {name for objective in self.objectives for name in OBJECTIVES[objective].settings}
        steps = {each.name: getattr(self, each.name) for each in fields(Steps)}
        steps["learning_rate"] = float(number_for(self.learning_rate, family))
        return TuningConfig(
            tuple((name, float(number_for(weight, family))) for name, weight in self.objectives.items()),
            tuple(each for each in self.settings_for(family, dataset).items() if each[0] in own),
            **steps,
        )

    def override(self, settings: Mapping[str, str | float | bool]) -> Method:
        """The method with some settings replaced, as ``--set name=value`` and ``name[setting=value]`` do.

        Names: an objective of the method, for its weight; ``lambda`` or ``weight`` for its one regulariser; the fields
        of its steps (steps, learning-rate …); calibrate and temperature; options of its init; and the settings of its
        functions (:attr:`known_settings`).
        """
        method = self
        # calibrate first, so that a temperature given together with it finds it in place
        for name in sorted(settings, key=lambda key: key != "calibrate"):
            method = method._with(name.replace("_", "-"), settings[name])
        return method

    def has_setting(self, name: str) -> bool:
        """Whether :meth:`override` can set it: O-TPT has a lambda, TPT has none, zero-shot has no steps."""
        return name.replace("_", "-") in self._settable

    @property
    def _settable(self) -> list[str]:
        weights = [*(["lambda", "weight"] if self._regularisers() else []), *self.objectives]
        steps = [each.name.replace("_", "-") for each in fields(Steps)] if self.objectives else []
        temperature = ["temperature"] if self.calibrate == "temperature" else []
        return [*weights, *self.known_settings, *steps, "calibrate", *temperature, *INITS[self.init].options]

    def _with(self, name: str, value: str | float | bool) -> Method:
        if name in ("lambda", "weight"):
            name = self._regulariser(name)
        key = name.replace("-", "_")
        if name in self.objectives:
            number = _validated(self.name, f"the weight of {name}", value, TypeAdapter(NonNegative))
            return replace(self, objectives={**self.objectives, name: number})
        if name in self.known_settings:
            return self._with_setting(key, value)
        if name not in self._settable and name != "temperature":
            raise unknown(f"setting of method {self.name!r}:", name, self._settable)
        number = _validated(self.name, name, value, _adapter(key))
        if key != "calibrate":
            return replace(self, **{key: number})
        if number not in CALIBRATIONS:
            raise unknown("calibrator", number, CALIBRATIONS)
        known = replace(self, calibrate=number, settings={}, temperature=None).known_settings
        own = {each: setting for each, setting in self.settings.items() if each.replace("_", "-") in known}
        return replace(self, calibrate=number, settings=own, temperature=None)

    def _with_setting(self, name: str, value: Any) -> Method:
        settings = {**self.settings, name: value}
        # a caution about numbers by data set does not concern those that are given
        lapsed = listed_datasets(self.settings.values()) and not listed_datasets(settings.values())
        return replace(self, settings=settings, caution="" if lapsed else self.caution)

    def _regularisers(self) -> list[str]:
        return [name for name in self.objectives if OBJECTIVES[name].on == TEXTS]

    def _regulariser(self, asked: str) -> str:
        found = self._regularisers() or (list(self.objectives) if asked == "weight" else [])
        if len(found) == 1:
            return found[0]
        if not found:
            raise OtptError(f"Method {self.name!r} has no regulariser, so no {asked} to set; c-tpt and o-tpt have one.")
        raise OtptError(
            f"Method {self.name!r} has {len(found)} objectives, so {asked} is ambiguous; set each by its name "
            f"({', '.join(found)}), or write the weight after its part, as in tpt+{found[-1]}[weight=20]."
        )


@cache
def _adapter(name: str) -> TypeAdapter[Any]:
    kind = get_type_hints(Method, include_extras=True)[name]
    return TypeAdapter(kind, config=ConfigDict(allow_inf_nan=False))


def _validated(method: str, name: str, value: Any, adapter: TypeAdapter[Any], *, strict: bool = False) -> Any:
    """The value in the adapter's type; without ``strict`` texts such as "2" and "on" are converted."""
    try:
        return adapter.validate_python(value, strict=strict)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join([name.replace("_", "-"), *(str(each) for each in first["loc"][:1])])
        expected = first["msg"].replace("Input should be ", "")
        raise OtptError(f"Method {method!r}: {where} is {first['input']!r:.80}; expected {expected}.") from None
