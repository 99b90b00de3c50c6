"""Fields of requests that are fields of the records :class:`Task`, :class:`Protocol` and :class:`Decision`.

A new field of a record needs no change here. If its values are plain JSON (a number, a text, a choice, yes or no), then
requests accept it, with its description, bounds and default. Otherwise they refuse it in a sentence, which is the
record's own if the field has the mark :data:`otpt.records.NOT_SERVED`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import NoneType, UnionType
from typing import Annotated, Literal, Union, get_args, get_origin

from pydantic import Field
from pydantic.fields import FieldInfo

from otpt.decision import Decision
from otpt.methods import Protocol, Task
from otpt.records import NOT_SERVED, Frozen, mark_of
from otpt.serve.config import ServiceConfig

RECORDS: tuple[type[Frozen], ...] = (Task, Protocol, Decision)

FORMS: Mapping[str, str] = {
    "classes": "labels, or classes for a list of the service",
    "texts": "prompt or templates",
    "groups": "groups",
    "methods": "method in /v1/predict and as methods in /v1/compare",
    "calibrations": "calibration",
    "reject": "reject",
}
"""Fields of the records that requests have in a form of their own."""

Name = Annotated[str, Field(max_length=200)]


def plain_type(annotation: object) -> object:
    """Return the part of a type that JSON has, or None if there is none.

    >>> plain_type(int | FieldInfo | None)
    int | None
    """
    parts = list(_plain_parts(annotation))
    return Union[tuple(parts)] if any(part is not NoneType for part in parts) else None  # noqa: UP007


def _plain_parts(annotation: object) -> Iterator[object]:
    origin = get_origin(annotation)
    if origin in (Union, UnionType):
        for member in get_args(annotation):
            yield from _plain_parts(member)
    elif annotation is str:
        yield Name
    elif origin is Annotated:
        if plain_type(get_args(annotation)[0]) is not None:
            yield annotation
    elif annotation in (bool, int, float, NoneType) or origin is Literal:
        yield annotation


def record_fields() -> dict[str, FieldInfo]:
    """Return the fields of the records that requests have as they are."""
    fields = {}
    for record in RECORDS:
        for name, field in record.model_fields.items():
            if name not in FORMS and mark_of(field, NOT_SERVED) is None and plain_type(field.annotation) is not None:
                fields[name] = field
    return fields


def request_fields() -> dict[str, tuple[object, FieldInfo]]:
    """Return type and field of each of :func:`record_fields`, for :func:`pydantic.create_model`."""
    fields: dict[str, tuple[object, FieldInfo]] = {}
    for name, field in record_fields().items():
        kind, default = plain_type(field.annotation), field.default
        metadata = list(field.metadata)
        if name in ServiceConfig.model_fields:  # the service has its own default, and bounds
            kind, default = Union[kind, None], None  # noqa: UP007
            metadata += ServiceConfig.model_fields[name].metadata
        for bound in metadata:
            kind = Annotated[kind, bound]
        fields[name] = kind, Field(default, description=field.description)
    return fields


def refusals() -> dict[str, str]:
    """Return why requests do not have a keyword of the records, by keyword.

    Keywords that only some routes have are among them, for the others.
    """
    served = record_fields()
    reasons = {}
    for record in RECORDS:
        for keyword in record.keywords():
            name = record.spellings.get(keyword, keyword)
            if keyword not in served:
                reasons[keyword] = _refusal(name, record.model_fields[name])
    return reasons


def _refusal(name: str, field: FieldInfo) -> str:
    if name in FORMS:
        return f"requests give the {name} as {FORMS[name]}"
    reason = mark_of(field, NOT_SERVED)
    return str(reason) if reason else "it takes objects that a request cannot bring; use Python or the command line"
