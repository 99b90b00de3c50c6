"""Values for the fields of records: evident from their types, or from a table of cases."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, get_origin

import pytest
from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

NUMBERS = (0.9, 0.1, 0.5, 2, 3, -1)
"""Values that are tried for a number, in this order."""


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


def other_value(name: str, field: FieldInfo) -> Any:
    """A value of the field's type that is not its default."""
    kinds = get_args(field.annotation) if type(None) in get_args(field.annotation) else (field.annotation,)
    adapter: TypeAdapter[Any] = TypeAdapter(field.rebuild_annotation())
    for kind in kinds:
        values: tuple[Any, ...] = ()
        if kind is bool or bool in get_args(kind):
            values = (True, False)
        elif kind in (int, float):
            values = NUMBERS
        elif get_origin(kind) is Literal:
            values = get_args(kind)
        for value in values:
            try:
                adapter.validate_python(value, strict=True)
            except ValidationError:
                continue
            if value != field.default:
                return value
    pytest.fail(
        f"No value of {name!r} is evident from its type {field.annotation}; add a Case with a value of {name!r} to the "
        "table of this test."
    )


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
