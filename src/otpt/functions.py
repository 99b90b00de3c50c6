"""Functions that axes are made of: ours by "module:name" until they are needed, and those of users."""

from __future__ import annotations

import hashlib
import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

from otpt.errors import OtptError

PLUGIN = "otpt_plugin_"
"""Before the digest of a plugin's file: the name of the module that it becomes."""


def resolve(source: str | Callable[..., Any]) -> Callable[..., Any]:
    """The function of "module:name", imported now; a function as it is."""
    if not isinstance(source, str):
        return source
    module, _, name = source.partition(":")
    function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return function


@cache
def parameters(function: Callable[..., Any]) -> tuple[str, ...]:
    """Names of the arguments that a function must be given."""
    return tuple(name for name, each in _arguments(function).items() if each.default is each.empty)


def call_with(function: Callable[..., Any], given: Mapping[str, Any]) -> Any:
    """Calls a function with what its parameters name; it may be given more than it asks for."""
    return function(**{name: given[name] for name in _arguments(function) if name in given})


def asked_for(function: Callable[..., Any], available: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
    """What the parameters of a function name; nothing else of ``available`` is computed."""
    return {name: available[name]() for name in _arguments(function) if name in available}


@cache
def settings_of(function: Callable[..., Any]) -> tuple[str, ...]:
    """Names of the arguments with a default: the settings of a function, as in ``--set delta=0.3``."""
    return tuple(name for name, each in _arguments(function).items() if each.default is not each.empty)


@cache
def _arguments(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {name: each for name, each in inspect.signature(function).parameters.items() if each.kind in kinds}


def check_parameters(kind: str, function: Callable[..., Any], available: tuple[str, ...]) -> None:
    """``OtptError`` unless every parameter of a user's function is something that can be given to it."""
    strange = [name for name in parameters(function) if name not in available]
    if strange:
        raise OtptError(
            f"The {kind} {part_name(function)!r} takes a parameter {strange[0]!r}; expected some of "
            f"{', '.join(available)}."
        )


def part_name(function: Callable[..., Any]) -> str:
    """What a function is called in names of methods: ``median_probability`` → ``median-probability``."""
    name = getattr(function, "__name__", "")
    if not name.isidentifier():
        raise OtptError(f"{function!r} has no name that a method could have; expected a function made with 'def'.")
    return str(name.replace("_", "-"))


def source_digest(function: Callable[..., Any]) -> str:
    """16 hexadecimal digits of a function's source code.

    Of a plugin it is that of the whole file, whose constants and other functions it may use. Where the source cannot be
    had it is a digest of the compiled code.
    """
    text = f"{function.__module__}.{function.__qualname__}"
    if not str(function.__module__).startswith(PLUGIN):  # None in code run by exec()
        try:
            text = inspect.getsource(function)
        except (OSError, TypeError):
            code = getattr(function, "__code__", None)
            text += "" if code is None else f" {code.co_code.hex()} {code.co_names} {code.co_consts}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def reason(error: BaseException) -> str:
    """An exception of a user's function in an error message: its type and the first line of what it says."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0].rstrip('.')}" if lines else type(error).__name__


def describe(value: Any) -> str:
    """A value in an error message: a tensor's shape, another value's type.

    >>> describe("text")
    'a str'
    """
    shape = getattr(value, "shape", None)
    return f"a {type(value).__name__}" if shape is None else f"a tensor of shape {tuple(shape)}"


@dataclass(frozen=True)
class Value:
    """A value on an axis: a function, or something that is known by its name.

    Attributes:
        source: the function, or "module:name" of it; "" where there is nothing to call.
        views: whether it needs all views, not only the clean one.
        views_if: settings any of which, unless it is 0, makes it need all views.
        only: by axis, the values that it goes with; any on the other axes.
        in_order: it carries state from image to image.
        gives_texts: an adaptation that gives text features (C, D) in place of logits.
        settings: names of the function's arguments that a method may set.
        digest: of the source code of a user's function; "" for ours.
    """

    name: str
    source: str | Callable[..., Any] = ""
    views: bool = False
    views_if: tuple[str, ...] = ()
    only: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)
    in_order: bool = False
    gives_texts: bool = False
    settings: tuple[str, ...] = ()
    digest: str = ""

    @cached_property
    def function(self) -> Callable[..., Any]:
        """The function itself, imported when first asked for."""
        return resolve(self.source)

    @property
    def summary(self) -> str:
        """The first line of a function's docstring."""
        return (self.function.__doc__ or "").strip().partition("\n")[0] if self.source else ""


def values(*each: Value) -> dict[str, Value]:
    """A registry."""
    return {value.name: value for value in each}


def register(
    kind: str,
    registry: dict[str, Value],
    function: Callable[..., Any],
    available: tuple[str, ...],
    *,
    views: bool = True,
    gives_texts: bool = False,
) -> None:
    """Add a user's function to an axis, under its own name with hyphens.

    The same name may be registered again with the same source code only. Arguments with a default are its settings.
    """
    check_parameters(kind, function, available)
    name, digest = part_name(function), source_digest(function)
    known = registry.get(name)
    if known is not None and known.digest != digest:
        raise OtptError(f"There is a value {name!r} on this axis already; give your {kind} another name.")
    registry[name] = Value(
        name,
        function,
        views=views,
        in_order="state" in parameters(function),
        gives_texts=gives_texts,
        settings=settings_of(function),
        digest=digest,
    )
