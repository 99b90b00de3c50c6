"""Validation of plain arguments of public functions by their annotations."""

from __future__ import annotations

import inspect
import os
from collections import abc
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, wraps
from numbers import Real
from pathlib import Path
from types import NoneType, UnionType
from typing import Literal, NamedTuple, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

from otpt.errors import OtptError

P = ParamSpec("P")
R = TypeVar("R")

_LARGEST = 2**63
"""Integers that no array can hold are refused."""


class _Kind(NamedTuple):
    """Values that a type accepts, and their name in messages."""

    words: str
    accepts: Callable[[object], bool]


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Make a function raise :class:`OtptError` for arguments of another type than their annotations (a decorator).

    Validated are numbers, texts, flags, paths, choices, lists, mappings, functions and classes of this package.
    Annotations with anything else, such as arrays, are left to the function.

    Example:
        >>> @checked
        ... def half(number: float) -> float:
        ...     return number / 2
        >>> half("x")
        Traceback (most recent call last):
            ...
        otpt.errors.OtptError: number is 'x'; expected a number.
    """
    signature = inspect.signature(function)

    @wraps(function)
    def validated(*args: P.args, **kwargs: P.kwargs) -> R:
        kinds = _kinds(function)
        arguments = signature.bind(*args, **kwargs).arguments
        for name, value in arguments.items():
            if name in kinds and not any(kind.accepts(value) for kind in kinds[name]):
                expected = " or ".join(dict.fromkeys(kind.words for kind in kinds[name]))
                hint = _single_item_hint(name, value, kinds[name])
                raise OtptError(f"{name} is {_shown(value)}; expected {expected}{hint}.")
        return function(*args, **kwargs)

    return validated


def _single_item_hint(name: str, value: object, kinds: Sequence[_Kind]) -> str:
    """Return how to pass a single text, path or object of this package where a list is expected; else nothing."""
    expects_list = any(kind in (_LIST, _TEXTS) for kind in kinds)
    is_item = isinstance(value, (str, os.PathLike)) or type(value).__module__.startswith("otpt.")
    if not (expects_list and is_item):
        return ""
    item = _shown(value) if isinstance(value, str) else name
    return f"; for a single one, pass [{item}]"


def _shown(value: object) -> str:
    try:
        return f"{value!r:.80}"
    except Exception:  # an integer of thousands of digits, or an object of somebody else
        return f"a {type(value).__name__}"


@cache
def _kinds(function: Callable[..., object]) -> Mapping[str, tuple[_Kind, ...]]:
    """Return what the parameters of a function accept, without those that are not validated."""
    kinds: dict[str, tuple[_Kind, ...]] = {}
    hints = getattr(function, "__annotations__", {})
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    for name, parameter in inspect.signature(function).parameters.items():
        if name not in hints or parameter.kind in variable:
            continue
        members = _members(function, name)
        found = [_kind(member) for member in members]
        if found and all(kind is not None for kind in found):
            kinds[name] = tuple(kind for kind in found if kind is not None)
    return kinds


def _members(function: Callable[..., object], name: str) -> list[object]:
    """Return the members of the union that annotates a parameter; none if its names cannot be resolved."""

    class Holder:
        __annotations__ = {name: function.__annotations__[name]}

    try:
        hint = get_type_hints(Holder, vars(inspect.getmodule(function)))[name]
    except (NameError, TypeError):  # imported for type checkers only
        return []
    return _flat(hint)


def _flat(hint: object) -> list[object]:
    if get_origin(hint) in (Union, UnionType):
        return [member for part in get_args(hint) for member in _flat(part)]
    return [hint]


def _kind(hint: object) -> _Kind | None:
    """Return what a type accepts, or None if it is not validated."""
    origin = get_origin(hint)
    if hint in _PLAIN:
        return _PLAIN[hint]
    if origin is Literal:
        choices = get_args(hint)
        *first, last = map(repr, choices)
        words = f"{', '.join(first)} or {last}" if first else last
        return _Kind(words, lambda value: isinstance(value, (str, int)) and value in choices)
    if origin in (Sequence, list, tuple) and get_args(hint)[:1] == (str,):
        return _TEXTS
    if origin in _CONTAINERS:
        return _CONTAINERS[origin]
    if inspect.isclass(hint) and hint.__module__.startswith("otpt") and not getattr(hint, "_is_protocol", False):
        return _Kind(f"a {hint.__name__}", lambda value: isinstance(value, hint))
    return None


def _is_integer(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and abs(int(value)) < _LARGEST


def _is_number(value: object) -> bool:
    real = isinstance(value, Real) and not isinstance(value, bool)
    return real and (not isinstance(value, int) or _is_integer(value))


def _is_list(value: object) -> bool:
    return not isinstance(value, (str, bytes, Mapping)) and hasattr(value, "__len__") and hasattr(value, "__getitem__")


def _are_texts(value: object) -> bool:
    return isinstance(value, Iterable) and all(isinstance(text, str) for text in value)


_PATH = _Kind("a path", lambda value: isinstance(value, (str, os.PathLike)))
_PLAIN: dict[object, _Kind] = {
    NoneType: _Kind("None", lambda value: value is None),
    bool: _Kind("True or False", lambda value: isinstance(value, (bool, np.bool_))),
    int: _Kind("an integer", _is_integer),
    float: _Kind("a number", _is_number),
    str: _Kind("a text", lambda value: isinstance(value, str)),
    Path: _PATH,
    os.PathLike: _PATH,
}
_LIST = _Kind("a list", _is_list)
_TEXTS = _Kind("a list of texts", lambda value: _is_list(value) and _are_texts(value))
_CONTAINERS: dict[object, _Kind] = {
    Sequence: _LIST,
    list: _LIST,
    tuple: _LIST,
    Iterable: _Kind("a list", lambda value: isinstance(value, Iterable) or hasattr(value, "__getitem__")),
    Mapping: _Kind("a mapping", lambda value: isinstance(value, Mapping)),
    dict: _Kind("a mapping", lambda value: isinstance(value, Mapping)),
    abc.Callable: _Kind("a function", callable),
    os.PathLike: _PATH,
}
