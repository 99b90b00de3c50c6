"""A field that a request's model does not take, as an answer: what was given, what is expected, what to do."""

from __future__ import annotations

import difflib
import json
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from otpt.serve.http.errors import RequestError

_LONGEST = 60  # characters of a value that an answer repeats: it may be an image
_SHOULD = "Input should be "


def field_error(error: ValidationError, model: type[BaseModel]) -> RequestError:
    """The first field that cannot be used; of a field that may be of several kinds, all of them are expected."""
    found = error.errors(include_url=False, include_context=False)
    first = found[0]
    if first["type"] == "json_invalid":
        return RequestError(400, "invalid-json", f"{first['msg']}.", "a JSON object")
    if first["type"] == "extra_forbidden":
        return _no_such_field(str(first["loc"][-1]), _path(first["loc"], model)[1])
    where, owner = _path(first["loc"], model)
    if not where:
        return RequestError(422, "invalid-field", f"The request is {_shown(first['input'])}.", "a JSON object")
    name = ".".join(str(each) for each in where)
    same = [each for each in found if _path(each["loc"], model)[0] == where]
    expected = " or ".join(dict.fromkeys(_expected(each) for each in same))
    about = _description(where, owner)
    missing = first["type"] == "missing"
    return RequestError(
        422,
        "invalid-field",
        f"The field {name!r} is missing." if missing else f"The field {name!r} is {_shown(first['input'])}.",
        about if missing and about else f"{expected} ({about})" if about else expected,
    )


def _path(place: tuple[int | str, ...], model: type[BaseModel]) -> tuple[tuple[int | str, ...], type[BaseModel]]:
    """A place in a request, and the model of its last field.

    Where a field may be of several kinds, pydantic's places name the kind that was tried; the client gave only fields.
    """
    found: list[int | str] = []
    owner = within = model
    for each in place:
        if isinstance(each, str):
            if each not in within.model_fields:
                continue
            owner, within = within, _model_of(within, each) or within
        found.append(each)
    return tuple(found), owner


def _model_of(owner: type[BaseModel], name: str) -> type[BaseModel] | None:
    field = owner.model_fields.get(name)
    kind = None if field is None else field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def _no_such_field(name: str, owner: type[BaseModel]) -> RequestError:
    names = list(owner.model_fields)
    near = difflib.get_close_matches(name, names, n=1)
    do = f"Write {near[0]!r}, or leave it out." if near else "Leave it out."
    return RequestError(422, "invalid-field", f"There is no field {name[:200]!r}.", f"one of {', '.join(names)}", do)


def _description(where: tuple[int | str, ...], owner: type[BaseModel]) -> str:
    last = next(each for each in reversed(where) if isinstance(each, str))
    field = owner.model_fields.get(last)
    return (field.description or "") if field is not None else ""


def _expected(error: ErrorDetails) -> str:
    """Pydantic's sentence as what is expected: "Input should be less than 1" is "less than 1"."""
    message = error["msg"]
    if error["type"] == "missing":
        return f"an object with {error['loc'][-1]!r}"
    if error["type"] == "too_short":
        return "one at least"
    return message[len(_SHOULD) :] if message.startswith(_SHOULD) else message


def _shown(value: Any) -> str:
    """A value in short."""
    if isinstance(value, str):
        return repr(value) if len(value) <= _LONGEST else f"{value[:_LONGEST]!r}…"
    if isinstance(value, list | tuple):
        return f"a list of {len(value):,}" if value else "an empty list"
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, int) and value.bit_length() > _LONGEST * 3:
        return "a number of very many digits"
    return json.dumps(value, default=repr)
