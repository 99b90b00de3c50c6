"""Immutable records: the base class of all settings, and the way keywords find the record that has the field."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar, Self

from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError
from pydantic.fields import FieldInfo

from otpt.errors import OtptError, unknown

ELSEWHERE: dict[str, JsonValue] = {"recorded": "elsewhere"}
"""``json_schema_extra`` of fields that ``config.json`` records with each data set or column, or that change no row."""
NOT_SERVED = "not_served"
"""Key of ``json_schema_extra``: why requests of the service cannot set a field, to be shown after its name."""
NO_OPTION = "no_option"
"""Key of ``json_schema_extra``: why the commands have no option for a field, or {command: why}."""


class Frozen(BaseModel):
    """Immutable pydantic model that raises validation errors as :class:`OtptError`.

    Attributes:
        spellings: further keywords that the constructor accepts, such as the singular of a field's name, by the field
            that they set.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True, validate_default=True)
    spellings: ClassVar[Mapping[str, str]] = {}

    def __init__(self, **values: object) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise settings_error(error, type(self)) from None

    def __hash__(self) -> int:
        """Return the hash of the fields; of mappings, of their items in any order."""
        values = [getattr(self, name) for name in type(self).model_fields]
        return hash(tuple(frozenset(value.items()) if isinstance(value, Mapping) else value for value in values))

    def replace(self, **changes: object) -> Self:
        """Return a validated copy with some fields changed."""
        values = {name: getattr(self, name) for name in self.model_fields_set}
        return type(self)(**{**values, **changes})

    def to_json(self) -> dict[str, JsonValue]:
        """Return plain data, from which the constructor makes an equal record; objects in memory become digests."""
        return self.model_dump(mode="json")

    def recorded(self) -> dict[str, JsonValue]:
        """Return the plain values that all results of a run share; see :data:`ELSEWHERE`."""
        return self.model_dump(mode="json", include=set(self.recorded_fields()))

    @classmethod
    def recorded_fields(cls) -> tuple[str, ...]:
        """Return the names of the fields that all results of a run share; see :data:`ELSEWHERE`."""
        fields = cls.model_fields.items()
        return tuple(name for name, field in fields if mark_of(field, "recorded") != ELSEWHERE["recorded"])

    @classmethod
    def keywords(cls) -> tuple[str, ...]:
        """Return the keywords that the constructor accepts: its fields and their other spellings."""
        return (*cls.model_fields, *cls.spellings)


def mark_of(field: FieldInfo, name: str) -> JsonValue:
    """Return an entry of a field's ``json_schema_extra``, or None."""
    marks = field.json_schema_extra
    return marks.get(name) if isinstance(marks, dict) else None


def settings_error(error: ValidationError, model: type[Frozen]) -> OtptError:
    """Convert the first error of a ``ValidationError`` to an :class:`OtptError`."""
    first = error.errors()[0]
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, OtptError):
        return cause
    if isinstance(cause, ValidationError):
        return OtptError(f"{'.'.join(map(str, first['loc']))} is not valid: {describe_mistake(cause)}.")
    name = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        return unknown("setting", name, model.keywords())
    message = first["msg"]
    return OtptError(f"{name} is {first['input']!r:.200}: {message[:1].lower()}{message[1:]}.")


def describe_mistake(error: ValidationError) -> str:
    """Describe the first mistake in plain data, such as the content of a file, in a few words of our own.

    >>> class Size(BaseModel):
    ...     width: int
    >>> try:
    ...     Size.model_validate({})
    ... except ValidationError as error:
    ...     print(describe_mistake(error))
    'width' is missing
    """
    first = error.errors()[0]
    name = ".".join(map(str, first["loc"]))
    if first["type"] == "missing":
        return f"{name!r} is missing"
    if first["type"] == "extra_forbidden":
        return f"{name!r} is unknown"
    if first["type"] in ("model_type", "dict_type"):
        return f"{name!r} is no mapping of names to values" if name else "it is no mapping of names to values"
    cause = first.get("ctx", {}).get("error")
    reason = str(cause) if cause else first["msg"].replace("Input should be ", "expected ")
    return f"{name!r} is {first['input']!r:.80}: {reason.rstrip('.')}" if name else reason.rstrip(".")


def sort_keywords(values: Mapping[str, object], records: Iterable[type[Frozen]]) -> list[dict[str, object]]:
    """Return the keywords of each record; a keyword that no record has raises an :class:`OtptError`.

    Example:
        >>> class Size(Frozen):
        ...     width: int = 1
        >>> sort_keywords({"width": 3}, [Size])
        [{'width': 3}]
    """
    records = list(records)
    accepted = {name: record for record in reversed(records) for name in record.keywords()}
    for name in values:
        if name not in accepted:
            raise unknown("setting", name, accepted)
    return [{name: value for name, value in values.items() if accepted[name] is record} for record in records]


def one_or_several(value: object) -> tuple[object, ...]:
    """Return a value as a tuple: a list or tuple of values, or a single one."""
    return tuple(value) if isinstance(value, (list, tuple)) else (value,)


def join_spelling(values: dict[str, object], one: str, several: str) -> None:
    """Move the value of the keyword ``one``, the singular of ``several``, to the latter."""
    if one not in values:
        return
    value = values.pop(one)
    if several in values:
        raise OtptError(f"Both {one} and {several} are set; pass only one of them.")
    if value is not None:
        values[several] = (value,)
