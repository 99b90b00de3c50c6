"""Values for the fields of records, from their types or from a table of cases, and what counts as their effect."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

import pytest
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from otpt.records import Frozen

NUMBERS = (0.9, 0.1, 0.5, 2, 3, -1, 0)
"""Values that are tried for a number, in this order."""
BOUNDS = ("ge", "gt", "le", "lt")
TOLERANCE = 1e-6
"""Largest difference of floats that is no effect."""


class Case(NamedTuple):
    """Further fields with which a field has an effect, and its value.

    Attributes:
        value: value of the field; None for one that its type gives.
        context: fields that are set too; None leaves a field out.
        unlocks: whether the context alone is refused.
    """

    value: Any = None
    context: Mapping[str, Any] = {}
    unlocks: bool = False


def members(annotation: Any) -> list[Any]:
    """The members of a union, or the type itself, without what pydantic adds to them."""
    if get_origin(annotation) in (Union, UnionType):
        return [part for member in get_args(annotation) for part in members(member)]
    return members(get_args(annotation)[0]) if get_origin(annotation) is Annotated else [annotation]


def other_values(field: FieldInfo) -> list[Any]:
    """Values of the field's type that are not its default; none for objects."""
    adapter: TypeAdapter[Any] = TypeAdapter(field.rebuild_annotation())
    candidates: list[Any] = []
    for kind in members(field.annotation):
        if kind is bool:
            candidates += [True, False]
        elif kind in (int, float):
            candidates += NUMBERS
        elif get_origin(kind) is Literal:
            candidates += get_args(kind)
        elif kind is str:
            candidates.append("x")
    found = []
    for value in candidates:
        with suppress(ValidationError):
            adapter.validate_python(value, strict=True)
            if value != field.default or type(value) is not type(field.default):
                found.append(value)
    return found


def values_to_try(name: str, field: FieldInfo, case: Case) -> list[Any]:
    """Values of a field, of which one must be accepted and have an effect: the case's, or those of the field's type."""
    if case.value is not None:
        return [case.value() if callable(case.value) else case.value]
    values = other_values(field)
    if not values:
        pytest.fail(
            f"No value of {name!r} is evident from its type {field.annotation}; add a Case with a value of {name!r} to "
            "the table of this test."
        )
    return values


def strategy_of(field: FieldInfo) -> st.SearchStrategy[Any] | None:
    """All plain values of a field within its bounds; None for a field that needs objects."""
    bounds = {bound: getattr(one, bound) for one in field.metadata for bound in BOUNDS if hasattr(one, bound)}
    least, most = bounds.get("ge", bounds.get("gt")), bounds.get("le", bounds.get("lt"))
    whole = st.integers(least if "gt" not in bounds else least + 1, most if "lt" not in bounds else most - 1)
    real = st.floats(
        least,
        most,
        exclude_min="gt" in bounds,
        exclude_max="lt" in bounds,
        allow_nan=False,
        allow_infinity=False,
    )
    plain = {bool: st.booleans(), int: whole, float: real, str: st.text(max_size=5), NoneType: st.none()}
    strategies = []
    for kind in members(field.annotation):
        if get_origin(kind) is Literal:
            strategies.append(st.sampled_from(get_args(kind)))
        elif kind in plain:
            strategies.append(plain[kind])
        else:
            return None
    return st.one_of(strategies)


def plain_fields(record: type[Frozen], without: Collection[str] = ()) -> dict[str, st.SearchStrategy[Any]]:
    """Strategies for the fields of a record that take plain values, except those that a test draws by itself."""
    strategies = {name: strategy_of(field) for name, field in record.model_fields.items() if name not in without}
    return {name: strategy for name, strategy in strategies.items() if strategy is not None}


def same(one: Any, other: Any) -> bool:
    """Whether two results are equal up to rounding; the order of calculations may change the last digits."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=0, abs_tol=TOLERANCE) or (math.isnan(one) and math.isnan(other))
    return bool(one == other)


def toml_value(value: Any) -> str:
    """A plain value in TOML."""
    if isinstance(value, Path):
        value = str(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(str(key))} = {toml_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    if isinstance(value, (str, bool, int, float)):
        return json.dumps(value, ensure_ascii=False)
    raise TypeError(f"{value!r} is not plain")


def toml_text(values: Mapping[str, Any]) -> str:
    """Plain fields as the text of a TOML file."""
    return "".join(f"{name} = {toml_value(value)}\n" for name, value in values.items())
