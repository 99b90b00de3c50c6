"""The registry: functions on the axes of a method, and the parts that names of methods are made of.

| axis | question | a value is |
|---|---|---|
| init | what is the initial prompt? | words, prompts learned before, templates, or a context made for the class list |
| adapt | how do the views of this image change texts or logits? | steps on the context, or a function |
| objective | what does a step on the context minimise? | a function of the selected views' logits or of the texts |
| calibrate | how are logits rescaled? | a function of (logits, zero_shot), both (…, C), that returns logits |
| aggregate | which views decide, and how? | a function of the views' logits or probabilities (V, C), returns (C,) |
| gate | adapt this image, or keep zero-shot? | a function of the zero-shot logits (V, C) that returns True or False |

The decorators below register built-in and user functions alike. A function names what it needs as parameters
(:data:`AVAILABLE`, :data:`OF_VIEWS`, :data:`OF_TEXTS`). Parameters with a default are its settings: their annotations
hold the bounds. A default that is a frozen dataclass stands for several settings, its fields. The function's name, with
hyphens, is a part of methods' names; its docstring's first line is the summary. ``methods.toml`` names combinations of
functions.
"""

from __future__ import annotations

import hashlib
import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cache, cached_property, wraps
from types import MappingProxyType
from typing import (
    TYPE_CHECKING,
    Annotated,
    ClassVar,
    Concatenate,
    Literal,
    ParamSpec,
    Protocol,
    TypeVar,
    cast,
    get_args,
    get_type_hints,
    overload,
)

from pydantic import ConfigDict, Field, TypeAdapter

from otpt.errors import OtptError, describe_error, unknown
from otpt.plugins import MODULE_PREFIX, restorable
from otpt.records import Frozen

if TYPE_CHECKING:  # the command line imports this module without torch
    from torch import Tensor

Function = Callable[..., object]
"""Function of an axis, built in or a user's; it names what it needs as parameters."""
_Function = TypeVar("_Function", bound=Function)
_Options = ParamSpec("_Options")
_Value = TypeVar("_Value")

QUESTIONS = {
    "init": "What is the initial prompt? Default: words.",
    "adapt": "How do the views of an image change the text features or the logits? Default: not at all.",
    "objective": "What does a step on the context minimise? Joined with a method, as in `tpt+dispersion`.",
    "calibrate": "How are the logits rescaled? Default: they are not.",
    "aggregate": "Which views decide, and how? Default: the clean view.",
    "gate": "Adapt this image, or keep zero-shot? Default: adapt.",
}
AXES = tuple(QUESTIONS)
NONE, CLEAN, CONTEXT = "none", "clean", "context"
IMAGE, STREAM = "image", "stream"
LOGITS, TEXTS, VIEWS = "logits", "texts", "views"
STATE = "state"
PROMPT_STATE, INPUTS, FIRST_PASS = "prompt_state", "inputs", "first_pass"

FAMILIES = ("fine-grained", "shift")
"""Families of data sets, on which weights may depend."""
OTHERS = "others"
"""Key for all other data sets in a table of numbers by data set."""

Weight = float | Mapping[str, float]
"""One number, or one for each family of data sets."""
Numbers = float | Mapping[str, float]
"""One number; one for each family; or one for each of some data sets, and one for "others"."""

Fraction = Annotated[float, Field(gt=0, le=1)]
Probability = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]
"""Bounds of settings, as annotations of a function's parameters."""


@dataclass(frozen=True)
class Multiplies:
    """Mark of a setting whose value multiplies the work of its part: ``Annotated[Count, Multiplies("logits")]``.

    Estimates (:mod:`otpt.methods.work`) count it, and the service refuses requests by it. A setting without this mark
    may take any value of its range at about the cost of its default: it is bounded by the number of views or classes,
    or is a weight.

    Attributes:
        work: what is done as often as the value says: "texts", all texts are encoded with their gradients; "logits",
            one pass over the logits of all views; "entries", one feature of each class is stored and read.
    """

    work: Literal["texts", "logits", "entries"]


TextSteps = Annotated[Count, Multiplies("texts")]
"""Number of steps that each encode all texts with their gradients."""
Rounds = Annotated[Count, Multiplies("logits")]
"""Number of passes over the logits of all views."""
Entries = Annotated[Count, Multiplies("entries")]
"""Number of features that are stored of each class."""

AVAILABLE = (
    "logits",
    "zero_shot",
    "probabilities",
    "uncalibrated",
    "features",
    "text_features",
    "adapted_text_features",
    "mean_cosine",
    "logit_scale",
)
"""Parameters that a function of an image may have:

| name | shape | |
|---|---|---|
| ``logits`` | (V, C) | of all views after the steps before this one, the clean view first |
| ``zero_shot`` | (V, C) | under the initial prompt |
| ``probabilities`` | (V, C) | softmax of ``logits`` |
| ``uncalibrated`` | (V, C) | logits before calibration; for aggregations only |
| ``features`` | (V, D) | unit image features |
| ``text_features`` | (C, D) | unit text features under the initial prompt |
| ``adapted_text_features`` | (C, D) | after the adaptation; for calibrators and aggregations only |
| ``mean_cosine`` | number | between ``adapted_text_features`` of different classes |
| ``logit_scale`` | number | logits = scale · features · text_featuresᵀ + bias |

An adaptation may also take ``state``, a dictionary that is carried from image to image: its scope is the stream;
``prompt_state``, the :class:`otpt.methods.state.PromptState`, to tune contexts itself; ``inputs``, what
that state sees of the image (V, …); and ``first_pass``, for which a set is seen twice: True while the images are seen
without being predicted. A function returns its tensor, or (tensor, {name: number}) to add columns to the results.
"""
BEFORE = tuple(name for name in AVAILABLE if name not in ("uncalibrated", "adapted_text_features", "mean_cosine"))
"""Available before anything is adapted."""
OF_VIEWS = ("logits", "zero_shot", "cosines", "all_views", "current_range", "initial_range")
"""Parameters of an objective of the views. ``logits`` (…, k, C) of the selected views carries the gradient;
``zero_shot`` (…, k, C) and ``cosines`` (…, k, C) are those under the initial prompt, ``all_views`` (…, V, C) the logits
of all views there. ``current_range`` and ``initial_range`` are (low, high), (…) each: the logit range of the reference
view in this step and in the first step."""
OF_TEXTS = ("text_features", "initial_text_features", "attributes")
"""Parameters of an objective of the texts: (…, C, D) with gradient, those under the initial prompt, and the number of
texts that each class has in a row (1 unless the init is made of attributes)."""


State = dict[str, object]
"""What an adaptation carries from image to image; :func:`carried` reads it."""


def carried(state: State, name: str, make: Callable[[], _Value]) -> _Value:
    """Return what a stream carries under a name; ``make`` creates it for the first image.

    >>> state: State = {}
    >>> carried(state, "labels", list).append(3)
    >>> state
    {'labels': [3]}
    """
    if name not in state:
        state[name] = make()
    return cast(_Value, state[name])


def parameters(function: Function) -> tuple[str, ...]:
    """Return the names of the required parameters."""
    arguments = _arguments(function).items()
    return tuple(name for name, parameter in arguments if parameter.default is parameter.empty)


@cache
def _arguments(function: Function) -> dict[str, inspect.Parameter]:
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    arguments = inspect.signature(function).parameters.items()
    return {name: parameter for name, parameter in arguments if parameter.kind in kinds}


@dataclass(frozen=True)
class Setting:
    """A parameter with a default, which a method may set: ``--set delta=0.3``.

    Attributes:
        name: name of the parameter.
        default: its default value.
        kind: its type, with bounds if it is ``Annotated``.
    """

    name: str
    default: object
    kind: object = field(hash=False, compare=False)

    @cached_property
    def adapter(self) -> TypeAdapter[object]:
        """Validates values of the parameter."""
        make: Callable[..., TypeAdapter[object]] = TypeAdapter
        return make(self.kind, config=ConfigDict(allow_inf_nan=False, arbitrary_types_allowed=True))

    @cached_property
    def multiplies(self) -> Multiplies | None:
        """What its value multiplies, or None."""
        marks = (mark for mark in _metadata(self.kind) if isinstance(mark, Multiplies))
        return next(marks, None)


def _metadata(kind: object) -> list[object]:
    """Return what types are annotated with, also the members of a union; of a field, its metadata."""
    marks: list[object] = list(getattr(kind, "metadata", ()))
    for argument in get_args(kind):
        marks += [argument] if isinstance(argument, Multiplies) else _metadata(argument)
    return marks


@cache
def settings_of(function: Function) -> Mapping[str, Setting]:
    """Return the settings of a function by name."""
    hints = _hints(function)
    settings: dict[str, Setting] = {}
    for name, parameter in _arguments(function).items():
        default = parameter.default
        if default is parameter.empty:
            continue
        if is_dataclass(default) and not isinstance(default, type):
            settings |= _fields_of(default)
        else:
            settings[name] = Setting(name, default, hints.get(name, _kind(default)))
    return settings


def _fields_of(record: object) -> dict[str, Setting]:
    """Return the fields of a dataclass as settings."""
    assert is_dataclass(record)
    hints = _hints(type(record))
    settings = {}
    for name in (attribute.name for attribute in fields(record)):
        default = getattr(record, name)
        settings[name] = Setting(name, default, hints.get(name, _kind(default)))
    return settings


def _hints(annotated: Function) -> dict[str, object]:
    """Return the annotations of a function or a class; none if those of a user cannot be evaluated."""
    try:
        return get_type_hints(annotated, include_extras=True)
    except Exception:
        return {}


def _kind(default: object) -> object:
    """Return the type of a parameter without annotation; integers count as floats."""
    if type(default) in (int, float):
        return float
    return type(default) if type(default) in (bool, str) else object


@dataclass(frozen=True)
class Component:
    """A value on an axis: a registered function, or one that the engine knows by its name.

    Attributes:
        function: None where the engine does the work.
        views: whether it needs all views, not only the clean one.
        views_if: settings any of which makes it need all views.
        only: by axis, the values that it can be combined with; any on other axes.
        gives_texts: an adaptation that returns text features (C, D) instead of logits.
        shared_texts: an adaptation that needs the same text features for all images.
        digest: of the source code of a user's function; "" for ours.
    """

    name: str
    function: Function | None = None
    views: bool = False
    views_if: tuple[str, ...] = ()
    only: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)
    gives_texts: bool = False
    shared_texts: bool = False
    digest: str = ""

    @cached_property
    def parameters(self) -> tuple[str, ...]:
        """Names of the required parameters."""
        return parameters(self.function) if self.function else ()

    @cached_property
    def settings(self) -> Mapping[str, Setting]:
        """The function's settings."""
        return settings_of(self.function) if self.function else {}

    @cached_property
    def in_order(self) -> bool:
        """Whether it carries state from image to image."""
        return STATE in self.parameters

    @cached_property
    def tunes(self) -> bool:
        """Whether it tunes contexts itself."""
        return PROMPT_STATE in self.parameters

    @cached_property
    def sees_all_first(self) -> bool:
        """Whether all images of a set are seen before the first is predicted."""
        return FIRST_PASS in self.parameters

    def call(self, available: Mapping[str, object], settings: Mapping[str, object]) -> object:
        """Call the function with the arguments and settings that its parameters name."""
        assert self.function is not None
        values = {**available, **{name: value for name, value in settings.items() if name in self.settings}}
        keywords: dict[str, object] = {}
        for name, parameter in _arguments(self.function).items():
            default = parameter.default
            if is_dataclass(default) and not isinstance(default, type):
                changes = {setting: values[setting] for setting in _fields_of(default) if setting in values}
                keywords[name] = replace(default, **changes)
            elif name in values:
                keywords[name] = values[name]
        return self.function(**keywords)


@dataclass(frozen=True)
class Objective(Component):
    """A function that steps on the context minimise.

    Attributes:
        maximise: minimise its negative.
        weight: default in names of methods.
    """

    maximise: bool = False
    weight: Weight = field(default=1.0, hash=False)

    @cached_property
    def on(self) -> str:
        """ "views" or "texts": what it is a function of."""
        return VIEWS if "logits" in self.parameters else TEXTS

    @cached_property
    def takes_range(self) -> bool:
        """Whether it depends on the reference range of the logits."""
        return not {"current_range", "initial_range"}.isdisjoint(self.parameters)

    def __call__(self, available: Mapping[str, object], settings: Mapping[str, object]) -> Tensor:
        """Return the value (…) to minimise; ``available`` has the names of :data:`OF_VIEWS` or :data:`OF_TEXTS`."""
        needed = {name: available[name] for name in self.parameters}
        value = self._call_users(needed, settings) if self.digest else cast("Tensor", self.call(needed, settings))
        return -value if self.maximise else value

    def _call_users(self, needed: Mapping[str, object], settings: Mapping[str, object]) -> Tensor:
        """Call a user's function, which may raise and return anything."""
        from torch import Tensor

        name = "logits" if self.on == VIEWS else "text_features"
        values = needed[name]
        assert isinstance(values, Tensor)
        where = f"{name.replace('_', ' ')} of shape {tuple(values.shape)}"
        try:
            result = self.call(needed, settings)
        except Exception as error:
            raise OtptError(f"The objective {self.name!r} failed on {where}: {describe_error(error)}.") from error
        expected = tuple(values.shape[:-2])
        if not isinstance(result, Tensor) or tuple(result.shape) != expected:
            returned = describe(result)
        elif values.requires_grad and not result.requires_grad:
            returned = "a number without gradient"
        elif bool(values.isfinite().all()) and not bool(result.isfinite().all()):
            returned = "nan or infinity"
        else:
            return result
        raise OtptError(
            f"The objective {self.name!r} returned {returned} for {where}; expected a tensor of shape {expected}, one "
            "number per image."
        )


@dataclass(frozen=True)
class Part:
    """A part of methods' names.

    Attributes:
        values: fields of :class:`otpt.Method` that it sets.
        objectives: weights that it adds.
        weights: replace weights of objectives that other parts add.
        rename, drop: objectives of other parts that it replaces or removes.
        needs: an objective, or a kind of objectives, that another part must add.
        settings: published numbers, where they differ from the function's defaults.
    """

    name: str
    axis: str
    summary: str = ""
    source: str = ""
    caution: str = ""
    values: Mapping[str, object] = field(default_factory=dict)
    objectives: Mapping[str, Weight] = field(default_factory=dict)
    weights: Mapping[str, Weight] = field(default_factory=dict)
    rename: Mapping[str, str] = field(default_factory=dict)
    drop: tuple[str, ...] = ()
    needs: str = ""
    settings: Mapping[str, Numbers] = field(default_factory=dict)


class Preparation(Frozen):
    """How methods are prepared for a class list: their init, or the system that runs them.

    The fields of a subclass are its inputs, such as the file of a learned context. They are settings of the methods
    (``coop[context=FILE]``, ``--set context=FILE``). :mod:`otpt.methods.preparation` defines what a subclass does.

    Attributes:
        name: value of a method's ``init`` or, for a system, ``adapt``.
        from_words: whether it uses the words of the task's prompt; a prompt is refused next to other methods.
        tunable: whether there is a context to tune.
        one_text: whether a class has one text, as adaptations other than steps on the context require.
        shares_texts: whether all images have the same text features.
        base_classes: whether the context was learned on base classes, which calibrators may need (``base_texts``).
        needs_features: whether the methods need features of views.
        needs_text_encoder: False for methods on an image tower alone.
        served: whether a request of the service can bring all inputs.
        own_network: whether the methods predict with their own trained network, available only in evaluations.
    """

    name: ClassVar[str] = ""
    from_words: ClassVar[bool] = False
    tunable: ClassVar[bool] = True
    one_text: ClassVar[bool] = True
    shares_texts: ClassVar[bool] = True
    base_classes: ClassVar[bool] = False
    needs_features: ClassVar[bool] = True
    needs_text_encoder: ClassVar[bool] = True
    served: ClassVar[bool] = False
    own_network: ClassVar[bool] = False

    @property
    def needs_image(self) -> bool:
        """Whether the methods need the image itself."""
        return False

    @classmethod
    def settings(cls) -> Mapping[str, Setting]:
        """Return its inputs as settings of methods."""
        return {
            name: Setting(name, field.default, Annotated[field.annotation, field])
            for name, field in cls.model_fields.items()
        }


_Component = TypeVar("_Component", bound=Component)

INITS: dict[str, type[Preparation]] = restorable({})
"""Inits by name."""
SYSTEMS: dict[str, type[Preparation]] = restorable({})
"""Systems by the adaptation that they run: methods with their own network or their own views."""
OBJECTIVES: dict[str, Objective] = restorable({})
"""All objectives, in the order in which a loss adds them up within their kind."""
ADAPTATIONS: dict[str, Component] = restorable({CONTEXT: Component(CONTEXT)})
CALIBRATIONS: dict[str, Component] = restorable({name: Component(name) for name in (NONE, "temperature")})
AGGREGATIONS: dict[str, Component] = restorable({CLEAN: Component(CLEAN)})
GATES: dict[str, Component] = restorable({NONE: Component(NONE)})
PARTS: dict[str, Part] = restorable({})


class Decorator(Protocol[_Options]):
    """``@decorator`` and ``@decorator(option=…)``; both return the function unchanged."""

    @overload
    def __call__(self, *args: _Options.args, **options: _Options.kwargs) -> Callable[[_Function], _Function]: ...
    @overload
    def __call__(self, function: _Function, /) -> _Function: ...


def _decorator(register: Callable[Concatenate[Function, _Options], None]) -> Decorator[_Options]:
    """Make a decorator of a function that registers another one."""

    @wraps(register)
    def decorator(function: Function | None = None, /, *args: _Options.args, **options: _Options.kwargs) -> object:
        def registered(function: Function) -> Function:
            register(function, *args, **options)
            return function

        return registered if function is None else registered(function)

    return cast(Decorator[_Options], decorator)


@_decorator
def objective(
    function: Function, /, *, name: str = "", weight: Weight = 1.0, maximise: bool = False, **part: object
) -> None:
    """Register an objective (a decorator); ``tpt+name`` minimises it together with TPT's entropy.

    A function of ``text_features`` (…, C, D), or of the ``logits`` (…, k, C) of the selected views. It returns one
    number per image (…), differentiable.

    Args:
        name: in names of methods; the function's own name with hyphens by default.
        weight: default; ``tpt+name[weight=20]`` takes another one.
        maximise: minimise its negative.
        part: source, caution and other fields of :class:`Part` and :class:`otpt.Method`.

    Example:
        >>> import otpt
        >>> @otpt.objective(weight=20.0)
        ... def norm_of_mean(text_features):
        ...     return text_features.mean(dim=-2).norm(dim=-1)
        >>> otpt.get_method("tpt+norm-of-mean").objectives
        {'entropy': 1.0, 'norm-of-mean': 20.0}
    """
    allowed = OF_VIEWS if "logits" in parameters(function) else OF_TEXTS
    name, digest = _checked("objective", function, name, allowed)
    if not {"logits", "text_features"} & set(parameters(function)):
        raise OtptError(f"The objective {name!r} takes neither text_features nor logits; expected one of them.")
    component = Objective(name, function, digest=digest, maximise=maximise, weight=weight)
    _add(OBJECTIVES, component, {"axis": "objective", "objectives": {name: weight}, **part})


@_decorator
def adaptation(
    function: Function,
    /,
    *,
    name: str = "",
    gives: str = LOGITS,
    needs_views: bool = True,
    views_if: tuple[str, ...] = (),
    shared_texts: bool = False,
    only: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
    **part: object,
) -> None:
    """Register an adaptation (a decorator): a function that returns logits (V, C) of an image's views.

    With ``gives="texts"`` it returns unit text features (C, D) instead. One that takes ``state`` is a stream method:
    the dictionary is carried from image to image, in an order that the seed decides; its setting ``stream_length``, if
    it has one, is the number of images of an evaluation. With ``needs_views=False`` the clean view is enough; with
    ``views_if`` it is enough unless one of these settings is non-zero. ``shared_texts`` refuses inits that give each
    image its own texts; ``only`` restricts by axis the values that it can be combined with.

    Example:
        >>> import otpt
        >>> @otpt.adaptation
        ... def centred_views(logits):
        ...     return logits - logits.mean(dim=0)
        >>> otpt.get_method("centred-views").scope
        'image'
    """
    if gives not in (LOGITS, TEXTS):
        raise unknown("kind of adaptation", gives, (LOGITS, TEXTS))
    name, digest = _checked("adaptation", function, name, (*BEFORE, STATE, PROMPT_STATE, INPUTS, FIRST_PASS))
    component = Component(
        name,
        function,
        views=needs_views and not views_if,
        views_if=views_if,
        only=only,
        gives_texts=gives == TEXTS,
        shared_texts=shared_texts,
        digest=digest,
    )
    _add(ADAPTATIONS, component, {"axis": "adapt", "adapt": name, **part})


@_decorator
def calibrator(function: Function, /, *, name: str = "", views: bool = False, **part: object) -> None:
    """Register a function that rescales ``logits`` (…, C) (a decorator); it may also take ``zero_shot`` (…, C).

    With ``views`` it is called with all views of one image, (V, C) with the clean view first, and may take the
    parameters of an aggregation; without, it is called with what is needed, which may be the clean view alone.

    Example:
        >>> import otpt
        >>> @otpt.calibrator
        ... def half_as_confident(logits):
        ...     return logits / 2
        >>> otpt.get_method("tpt+half-as-confident").calibrate
        'half-as-confident'
    """
    allowed = (*(AVAILABLE if views else ("logits", "zero_shot")), "base_texts")
    name, digest = _checked("calibrator", function, name, allowed)
    component = Component(name, function, views, digest=digest)
    _add(CALIBRATIONS, component, {"axis": "calibrate", "calibrate": name, **part})


@_decorator
def aggregation(
    function: Function,
    /,
    *,
    name: str = "",
    only: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
    **part: object,
) -> None:
    """Register an aggregation (a decorator): a function of all views that returns probabilities (C,).

    Example:
        >>> import otpt
        >>> @otpt.aggregation
        ... def median(probabilities):
        ...     found = probabilities.median(dim=0).values
        ...     return found / found.sum()
        >>> otpt.get_method("median").aggregate
        'median'
    """
    name, digest = _checked("aggregation", function, name, AVAILABLE)
    component = Component(name, function, views=True, only=only, digest=digest)
    _add(AGGREGATIONS, component, {"axis": "aggregate", "aggregate": name, **part})


@_decorator
def gate(function: Function, /, *, name: str = "", **part: object) -> None:
    """Register a gate (a decorator): a function that says whether an image is adapted (True) or keeps zero-shot.

    Example:
        >>> import otpt
        >>> @otpt.gate
        ... def unsure(zero_shot):
        ...     return zero_shot[0].softmax(dim=-1).max() < 0.5
        >>> otpt.get_method("tpt+unsure").gate
        'unsure'
    """
    name, digest = _checked("gate", function, name, ("zero_shot", "features", "text_features"))
    _add(GATES, Component(name, function, views=True, digest=digest), {"axis": "gate", "gate": name, **part})


def _checked(kind: str, function: Function, name: str, allowed: tuple[str, ...]) -> tuple[str, str]:
    """Return the name of a function, and its digest if it is a user's; raise for parameters that do not exist."""
    identifier = getattr(function, "__name__", "")
    if not name and not identifier.isidentifier():
        raise OtptError(f"{function!r} has no name that a method could have; expected a function made with 'def'.")
    name = name or identifier.replace("_", "-").lower()
    for parameter in parameters(function):
        if parameter not in allowed:
            raise OtptError(
                f"The {kind} {name!r} takes a parameter {parameter!r}; expected some of {', '.join(allowed)}."
            )
    built_in = str(function.__module__).partition(".")[0] == "otpt"
    return name, "" if built_in else source_digest(function)


def _add(registry: dict[str, _Component], component: _Component, part: Mapping[str, object]) -> None:
    """Add a component and its part; the same name again only with the same source code."""
    name = component.name
    registered = registry.get(name)
    same = registered is not None and registered.digest == component.digest != ""
    if not same and (registered is not None or name in PARTS):
        axis = PARTS[name].axis if name in PARTS else part["axis"]
        raise OtptError(f"The axis {axis!r} already has a part {name!r}; rename your function.")
    summary = (inspect.getdoc(component.function) or "").partition("\n")[0]
    registry[name] = component
    PARTS[name] = make_part(name, {"summary": summary, **part})


def make_part(name: str, table: Mapping[str, object]) -> Part:
    """Return a part from a table of its own fields and of fields of a method."""
    make: Callable[..., Part] = Part
    of_part = {key: value for key, value in table.items() if key in Part.__dataclass_fields__}
    return make(name, **of_part, values={key: value for key, value in table.items() if key not in of_part})


def source_digest(function: Function) -> str:
    """Return 16 hexadecimal digits of a function's source code.

    For a plugin it is that of the whole file, whose constants and other functions it may use; for a function without
    source code that of the compiled code.
    """
    text = f"{function.__module__}.{function.__qualname__}"
    if not str(function.__module__).startswith(MODULE_PREFIX):  # None in code run by exec()
        try:
            text = inspect.getsource(function)
        except (OSError, TypeError):
            code = getattr(function, "__code__", None)
            text += "" if code is None else f" {code.co_code.hex()} {code.co_names} {code.co_consts}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def describe(value: object) -> str:
    """Describe a value in an error message: the shape of an array, the type of anything else.

    >>> describe("text")
    'a str'
    """
    shape = getattr(value, "shape", None)
    return f"a {type(value).__name__}" + ("" if shape is None else f" of shape {tuple(shape)}")


def number_for(numbers: _Value | Mapping[str, _Value], family: str, dataset: str = "") -> _Value | float:
    """Return the number for a data set: its own, else that of its family, else that of "others"."""
    if not isinstance(numbers, Mapping):
        return numbers
    return numbers.get(dataset, numbers.get(family, numbers.get(OTHERS, math.nan)))


def listed_datasets(settings: Iterable[object]) -> set[str]:
    """Return the data sets that settings have numbers for."""
    names = {name for numbers in settings if isinstance(numbers, Mapping) for name in numbers}
    return names - {*FAMILIES, OTHERS}
