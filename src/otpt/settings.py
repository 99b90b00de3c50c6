"""Configuration of predictions.

`Classifier`, `evaluate`, TOML files, HTTP requests and `config.json` files share the fields of :class:`Settings`; their
descriptions are the help texts of the command line. Importing this module does not import torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import fields as dataclass_fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_serializer, model_validator

from otpt.errors import OtptError, unknown

if TYPE_CHECKING:
    from typing import Self

    from otpt.calibration import Calibrated
    from otpt.groups import Groups
    from otpt.methods import Method
    from otpt.prompts import FixedTexts, Prompt, Templates
    from otpt.prompts.learned import LearnedPrompt
    from otpt.views import ViewRecipe
else:  # validated by the functions below, which import the classes lazily
    Calibrated = FixedTexts = LearnedPrompt = Method = Prompt = Templates = ViewRecipe = Any

DEFAULT_METHOD = "confident-half"
MULTI_LABEL = "multi-label"
EXAMPLES = "gda"
"""Default method with example images."""
MEMORY_BUDGET = 2 * 2**30
"""Memory limit for the graphs of text features, in bytes."""

Family = Literal["fine-grained", "shift"]
_OBJECTS = (
    "methods", "prompts", "templates", "texts", "views", "contexts", "calibrations", "attributes", "groups",
    "examples", "plugins",
)  # fmt: skip
"""Fields that may hold objects other than plain data."""
_SINGULAR = {"method": "methods", "prompt": "prompts", "calibration": "calibrations", "context": "contexts"}


class Frozen(BaseModel):
    """Immutable pydantic model that raises validation errors as :class:`OtptError`."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True, validate_default=True)

    def __init__(self, **given: Any) -> None:
        try:
            super().__init__(**given)
        except ValidationError as error:
            raise settings_error(error, type(self)) from None

    def replace(self, **changes: Any) -> Self:
        """Return a validated copy with some fields changed."""
        given = {name: getattr(self, name) for name in self.model_fields_set}
        return type(self)(**{**given, **changes})


def settings_error(error: ValidationError, model: type[Frozen]) -> OtptError:
    """Convert the first error of a ``ValidationError`` to an :class:`OtptError`."""
    first = error.errors()[0]
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, OtptError):
        return cause
    name = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        return unknown("setting", name, model.model_fields)
    message = first["msg"]
    return OtptError(f"{name} is {first['input']!r:.200}: {message[:1].lower()}{message[1:]}.")


class Fpp(Frozen):
    """Hyperparameters of FPP; the defaults are from the released code.

    The published noise levels 0.02 and 0.005 are **variances**: the standard deviations are √0.02 ≈ 0.141 and
    √0.005 ≈ 0.071.
    """

    words: str = Field("a photo of a", description="prompt whose text features the context is aligned with")
    tokens: int = Field(4, ge=1, description="length of a randomly initialised context")
    start_variance: float = Field(0.02, ge=0, allow_inf_nan=False, description="variance of a random init")
    noises: int = Field(4, ge=1, description="number of noisy copies of all texts per step")
    context_variance: float = Field(0.005, ge=0, allow_inf_nan=False, description="variance of noise on the context")
    token_variance: float = Field(0.02, ge=0, allow_inf_nan=False, description="variance of noise on other tokens")
    weight: float = Field(1.0, ge=0, allow_inf_nan=False, description="w in λ = w + p/C on fine-grained sets")
    weight_per_class: float = Field(15.0, ge=0, allow_inf_nan=False, description="p in λ = w + p/C, with C classes")
    shift_weight: float = Field(1.25, ge=0, allow_inf_nan=False, description="λ on distribution shifts")
    steps: int = Field(1000, ge=1, description="number of AdamW steps")
    learning_rate: float = Field(1e-2, ge=0, allow_inf_nan=False, description="initial learning rate (cosine schedule)")
    final_rate: float = Field(1e-4, ge=0, allow_inf_nan=False, description="final learning rate")
    weight_decay: float = Field(0.01, ge=0, allow_inf_nan=False, description="weight decay of AdamW")
    seed: int = Field(0, description="seed of init and noise; all seeds of a run share one context")

    def flatness_weight(self, classes: int, family: str) -> float:
        """Return λ; the paper's text has 0.15 instead of 15 for the weight per class."""
        return self.shift_weight if family == "shift" else self.weight + self.weight_per_class / classes

    def rate(self, step: int) -> float:
        """Return the learning rate of a step in 0 … ``steps`` − 1."""
        decay = (1 + math.cos(math.pi * step / self.steps)) / 2
        return self.final_rate + (self.learning_rate - self.final_rate) * decay


class Settings(Frozen):
    """Settings that determine a prediction, together with the model and the image.

    Plain values serialise to JSON (``model_dump(mode="json")``); objects in memory (:class:`Prompt`, tensors, loaded
    calibrations) are accepted as well.
    """

    methods: tuple[Method, ...] = Field(
        default=cast(Any, (DEFAULT_METHOD,)),  # converted by :meth:`_read`, like every other value
        min_length=1,
        description="method names (see 'otpt methods') or TOML files",
    )
    classes: tuple[str, ...] = Field((), description="class names; a single name predicts whether it is present")
    multi_label: bool = Field(False, description="several labels per image, with independent probabilities")
    groups: Any = Field(None, description="CSV file of class groups: a class, then its groups from narrow to broad")
    examples: Any = Field(None, description="folder of example images, with one sub-folder per class")
    prompts: tuple[Prompt, ...] | None = Field(
        None, description="context words, with [CLS] for a class name in the middle (default: 'a photo of a')"
    )
    templates: Templates | None = Field(
        None, description="sentences with {} for the class name, for methods with the init 'templates'"
    )
    texts: FixedTexts | None = Field(
        None, description="templates, descriptions per class or text features that replace the prompt"
    )
    attributes: Any = Field(None, description="file of attributes per class, for methods that use them ('tca')")
    contexts: tuple[Any, ...] = Field(
        (), description="files of learned prompts (CoOp, CoCoOp, MaPLe), for methods with such an init"
    )
    fpp: Fpp = Field(default_factory=Fpp, description="hyperparameters of FPP, for methods with the init 'fpp'")
    all_tokens: bool = Field(False, description="tune all tokens of the context, even if a word has several tokens")
    allow_duplicates: bool = Field(False, description="accept duplicate class names; ImageNet has two")
    views: Any = Field(64, description="number of views per image, including the clean view")
    augmix: bool | None = Field(
        None, description="AugMix instead of crops and flips only (default: depends on method and data set)"
    )
    budget: int | None = Field(
        None, ge=1, description="maximum number of views; fewer if the first 8 or 32 agree; replaces views"
    )
    seed: int = Field(0, description="random seed of the views")
    stream_length: int | None = Field(
        None, ge=1, description="number of images, for stream methods that require it (set by evaluations)"
    )
    family: Family | None = Field(
        None, description="family of published weights (default: the data set's, else fine-grained)"
    )
    dataset: str = Field("", description="registered data set whose published templates and numbers are used")
    official_precision: bool = Field(
        False, description="round logits and softmax to float16 as the official scripts do"
    )
    memory_budget: int = Field(
        MEMORY_BUDGET, ge=1, description="memory limit for the graphs of text features, in bytes"
    )
    calibrations: tuple[Any, ...] = Field((), description="calibration files of 'otpt calibrate', one per method")
    coverage: float | None = Field(
        None, gt=0, lt=1, description="probability that a prediction set contains the true class"
    )
    sets: Literal["lac", "aps", "raps"] = Field("aps", description="kind of prediction sets")
    mondrian: bool = Field(False, description="class-conditional coverage of the prediction sets")
    risk: float | None = Field(
        None, gt=0, lt=1, description="maximum error rate on answered images; abstain on the others"
    )
    guarantee: float = Field(0.95, gt=0, lt=1, description="probability with which the risk is controlled")
    reject: str | None = Field(
        None, description="score for rejecting images that fit none of the classes ('word-margin' is recommended)"
    )
    reject_threshold: float | None = Field(
        None, allow_inf_nan=False, description="reject images with a higher score (default: depends on the score)"
    )
    plugins: Mapping[str, Any] = Field(default_factory=dict, description="settings of plugin methods, by name")

    @model_validator(mode="before")
    @classmethod
    def _read(cls, given: Any) -> Any:
        """Convert names and plain data to objects; accept the singular of a field name for a single value."""
        from otpt.methods import Method, get_methods
        from otpt.rejection import DEFAULT_SCORE
        from otpt.views import ViewRecipe

        found = dict(given)
        if isinstance(found.get("classes"), Mapping):  # {name: descriptions}
            found["texts"] = {"descriptions": list(found["classes"].values())}
        for one, several in _SINGULAR.items():
            if one in found and one not in cls.model_fields:
                value = found.pop(one)
                if several in found:
                    raise OtptError(f"Both {one} and {several} are set; pass only one of them.")
                if value is not None:
                    found[several] = (value,)
        methods = found.get("methods", cls.model_fields["methods"].default)
        methods = [methods] if isinstance(methods, (str, Path, Method)) else list(methods)
        found["methods"] = get_methods([Method(**each) if isinstance(each, Mapping) else each for each in methods])
        if found["methods"] == get_methods(cls.model_fields["methods"].default):
            if found.get("multi_label") or (found.get("examples") is None and len(found.get("classes", ())) == 1):
                found["methods"] = get_methods([MULTI_LABEL])
            elif found.get("examples") is not None:
                found["methods"] = get_methods([EXAMPLES])
        for name in ("classes", "prompts"):
            if isinstance(found.get(name), str):
                raise OtptError(f"The {name} are the single string {found[name]!r}; expected a list.")
        if "classes" in found:
            found["classes"] = tuple(found["classes"])
        if found.get("examples") is not None:
            from otpt.tasks.examples import Examples

            found["examples"] = Examples.read(found["examples"], found.get("classes", ()))
            found["classes"] = found["examples"].names
        if found.get("prompts") is not None:
            found["prompts"] = tuple(_prompt(each) for each in found["prompts"])
        for name in ("templates", "texts"):
            if found.get(name) is not None:
                found[name] = _texts(found[name])
        for name in ("contexts", "calibrations"):
            if name in found and not isinstance(found[name], (list, tuple)):
                found[name] = (found[name],)
        views = found.get("views", 64)
        if isinstance(views, Mapping):
            fields: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in views.items()}
            found["views"] = ViewRecipe(**fields)
        elif not isinstance(views, ViewRecipe):
            ViewRecipe(n_views=views)  # validate the number
        seed = found.get("seed", 0)
        if isinstance(seed, bool) or not hasattr(seed, "__index__"):
            raise OtptError(f"The seed is {seed!r}; expected an integer.")
        found["seed"] = seed.__index__()
        if "reject" in found:
            found["reject"] = DEFAULT_SCORE if found["reject"] is True else found["reject"] or None
        return found

    @model_validator(mode="after")
    def _check_together(self) -> Settings:
        from otpt.prompts import check_class_names
        from otpt.rejection import get_threshold

        several = self.methods[0].adapt == MULTI_LABEL
        if self.classes:
            check_class_names(self.classes, allow_duplicates=self.allow_duplicates, least=1 if several else 2)
        if self.groups is not None:
            _ = self.grouping
        if self.reject is not None:
            get_threshold(self.reject, self.reject_threshold)
        elif self.reject_threshold is not None:
            raise OtptError(
                f"The rejection threshold is {self.reject_threshold}, but no score is set; set it with --reject."
            )
        if self.multi_label != several and len(self.classes) != 1:
            raise OtptError(
                f"multi_label is {self.multi_label}, but the method is {self.methods[0].name!r}; use "
                f"{MULTI_LABEL!r} for several labels per image, and any other method for one label."
            )
        if self.examples is not None and not several and self.methods[0].starts_from_words:
            raise OtptError(
                f"The method {self.methods[0].name!r} does not use example images; use 'gda', 'tip-adapter' or "
                "'prototypes', alone or combined with other parts, as in 'gda+confident-half'."
            )
        refused = [
            name for name in ("coverage", "risk", "reject", "groups", "examples") if getattr(self, name) is not None
        ]
        if several and refused:
            what = "multi_label" if self.multi_label else f"the single class {self.classes[0]!r}"
            raise OtptError(f"{refused[0]} cannot be combined with {what}; it requires exactly one label per image.")
        if (self.coverage is not None or self.risk is not None) and not self.calibrations:
            raise OtptError("A coverage or a risk is set without a calibration; pass a calibration as well.")
        return self

    @field_serializer(*_OBJECTS, when_used="json")
    def _to_json(self, value: Any) -> Any:
        return _plain(value)

    @property
    def asked_methods(self) -> Sequence[Method | str]:
        """Requested methods: the default if example images or a single class have replaced it."""
        derived = EXAMPLES if self.examples is not None else MULTI_LABEL if len(self.classes) == 1 else ""
        return (DEFAULT_METHOD,) if self.methods[0].name == derived and not self.multi_label else self.methods

    @property
    def place(self) -> tuple[str, str]:
        """(family, data set), which select the published numbers of a method."""
        return self.family or "fine-grained", self.dataset

    @cached_property
    def recipe(self) -> ViewRecipe:
        """View recipe of methods that use several views."""
        from otpt.views import ViewRecipe

        if self.budget is not None:
            return ViewRecipe.within(self.budget)
        found: ViewRecipe = self.views if isinstance(self.views, ViewRecipe) else ViewRecipe(n_views=self.views)
        return found

    @cached_property
    def grouping(self) -> Groups | None:
        """Groups of the classes, or None."""
        from otpt.groups import Groups

        return None if self.groups is None or not self.classes else Groups.read(self.groups, self.classes)

    @cached_property
    def learned(self) -> Mapping[str, LearnedPrompt]:
        """Learned prompts by init."""
        from otpt.prompts.learned import read_contexts

        return read_contexts(self.contexts)

    @cached_property
    def class_attributes(self) -> Mapping[str, Sequence[str]]:
        """Attributes by class name."""
        from otpt.methods import read_attributes

        if isinstance(self.attributes, (str, Path)):
            return read_attributes(self.attributes)
        found: Mapping[str, Sequence[str]] = self.attributes or {}
        return found

    @cached_property
    def calibrated(self) -> tuple[Calibrated, ...]:
        """Calibrations with the requested coverage and risk."""
        from otpt.calibration import Calibrated, Calibration, read_calibration

        found = []
        for source in self.calibrations:
            if isinstance(source, Calibrated):
                found.append(source)
                continue
            calibration = source if isinstance(source, Calibration) else read_calibration(source)
            found.append(
                Calibrated(
                    calibration,
                    coverage=self.coverage,
                    sets=self.sets,
                    mondrian=self.mondrian,
                    risk=self.risk,
                    guarantee=self.guarantee,
                )
            )
        return tuple(found)


def _texts(given: Any) -> Any:
    """Convert plain data, sentences or functions of a class name (as in open_clip) to texts that replace a prompt."""
    from otpt.prompts import Descriptions, Templates

    if isinstance(given, Mapping):
        return Descriptions(given["descriptions"]) if "descriptions" in given else Templates(**given)
    if isinstance(given, str):
        return Templates("templates", given)  # raises the error for a single string
    if isinstance(given, (list, tuple)):
        return Templates("templates", [each("{}") if callable(each) else each for each in given])
    return given


def _prompt(given: Any) -> Prompt:
    from otpt.prompts import Prompt

    if isinstance(given, Mapping):
        return Prompt(**given)
    return Prompt(given) if isinstance(given, str) else given


def _plain(value: Any) -> Any:
    """Convert a value to plain data for JSON; objects in memory become a digest or a type name."""
    from otpt.calibration import Calibrated
    from otpt.methods import Method, get_method
    from otpt.prompts import Descriptions, Prompt, Templates
    from otpt.views import ViewRecipe

    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, Sequence):
        return [_plain(each) for each in value]
    if isinstance(value, Prompt):
        if value.vectors is not None:
            return {"vectors": value.digest}
        return value.words if value.tokens is None else {"words": value.words, "tokens": value.tokens}
    if isinstance(value, Templates):
        return {"name": value.name, "sentences": list(value.sentences)}
    if isinstance(value, Descriptions):
        return {"descriptions": [list(own) for own in value.texts]}
    if isinstance(value, Calibrated):
        return _plain(value.key)
    if isinstance(value, Method):
        with suppress(OtptError):  # the name suffices, except for a method created in memory
            if get_method(value.name) == value:
                return value.name
    if isinstance(value, (Method, ViewRecipe)):
        return {each.name: _plain(getattr(value, each.name)) for each in dataclass_fields(value)}
    return {type(value).__name__: str(getattr(value, "digest", ""))}
