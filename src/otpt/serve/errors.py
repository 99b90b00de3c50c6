"""Error responses: an HTTP status and JSON with type, message, given, expected and hint."""

from __future__ import annotations

import difflib
import json
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from typing import NoReturn, final

from fastapi import HTTPException
from fastapi.responses import JSONResponse
from pydantic import JsonValue
from typing_extensions import TypedDict

_MAX_VALUES = 200_000  # values of a JSON body: each takes about a hundred times its bytes
_MAX_KEYS = 100  # of a JSON object
_short = reprlib.Repr()
_short.maxstring = _short.maxother = 60  # characters: the value may be an image


class ErrorFields(TypedDict, total=False):
    """What an error says; ``type`` and ``message`` are always present."""

    type: str
    message: str
    given: str | int
    expected: str
    hint: str


@final
class ErrorAnswer(TypedDict):
    """Body of every response that is not 2xx."""

    error: ErrorFields


class FieldError(TypedDict, total=False):
    """The parts of a validation error of pydantic that are used here."""

    type: str
    loc: Sequence[int | str]
    msg: str
    input: object
    ctx: Mapping[str, object]


class Json(JSONResponse):
    """JSON in UTF-8; lone surrogates are escaped."""

    def render(self, content: object) -> bytes:
        """Return the body."""
        text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return text.encode("utf-8", "backslashreplace")


class RequestError(HTTPException):
    """Refused request.

    Args:
        status: HTTP status.
        type: short machine-readable name, such as "too-many-labels".
        message: one sentence.
        given: the value that was refused.
        expected: values that are accepted.
        hint: what to do.
        headers: headers of the response.
    """

    def __init__(
        self,
        status: int,
        type: str,
        message: str,
        *,
        given: str | int | None = None,
        expected: str | None = None,
        hint: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(status, message, dict(headers or {}))
        fields: ErrorFields = {"type": type, "message": message}
        if given is not None:
            fields["given"] = given
        if expected is not None:
            fields["expected"] = expected
        if hint is not None:
            fields["hint"] = hint
        self.content: ErrorAnswer = {"error": fields}

    def response(self) -> Json:
        """Return the HTTP response."""
        return Json(self.content, self.status_code, self.headers)


def invalid_field(error: FieldError, names: Iterable[str], refused: Mapping[str, str]) -> RequestError:
    """Convert a validation error.

    Args:
        error: one of pydantic's errors.
        names: names of all fields of requests, for suggestions.
        refused: reasons by name, for fields of the records that requests do not have.
    """
    if error["type"] == "json_invalid":
        reason = error["ctx"]["error"]
        return RequestError(400, "invalid-json", f"The body is not JSON: {reason}.", expected="JSON")
    place = [str(part)[:100] for part in error["loc"] if part != "body" and not str(part).startswith("list[")]
    where = ".".join(place) or "body"
    value = None if error["type"] == "missing" else _shown(error.get("input"))
    if error["type"] == "extra_forbidden" and where in refused:
        return RequestError(422, "refused-field", f"{where}: {refused[where]}.", given=value)
    hint = "GET /openapi.json describes the fields."
    if error["type"] == "extra_forbidden":
        near = difflib.get_close_matches(where, names, n=1, cutoff=0.5)
        hint = f"Did you mean {near[0]!r}?" if near else hint
    return RequestError(422, "invalid-field", f"{where[:200]}: {error['msg']}.", given=value, hint=hint)


def _shown(value: object) -> str:
    """Return a value of JSON as text; of an object of this program, what it stands for."""
    if value is None or isinstance(value, (str, int, float, list, dict)):
        text = _short.repr(value)
        return text if " object at 0x" not in text and "UploadFile(" not in text else "a file"
    return "a file"


def read_json(body: bytes) -> JsonValue:
    """Parse JSON, refusing duplicate keys, which parsers resolve differently, and very many values."""
    if sum(map(body.count, (b",", b"[", b"{"))) > _MAX_VALUES:
        raise RequestError(400, "invalid-json", "The body has too many values.", expected=f"at most {_MAX_VALUES:,}")
    try:
        value: JsonValue = json.loads(body, object_pairs_hook=_unique_keys, parse_constant=_refuse_constant)
    except json.JSONDecodeError:
        raise
    except (ValueError, RecursionError) as error:  # an encoding, a very long number, very deep nesting
        raise RequestError(400, "invalid-json", f"The body is not JSON: {error}"[:200]) from None
    return value


def _unique_keys(pairs: list[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
    values = dict(pairs)
    if len(pairs) > _MAX_KEYS:
        message = f"A JSON object has {len(pairs):,} keys."
        raise RequestError(400, "invalid-json", message, expected=f"at most {_MAX_KEYS}")
    if len(values) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in values if keys.count(key) > 1)
        raise RequestError(400, "duplicate-key", "A JSON object has a key twice.", given=twice[:60])
    return values


def _refuse_constant(text: str) -> NoReturn:
    raise RequestError(400, "invalid-json", f"{text} is not JSON.", given=text, expected="a finite number")


def check_count(what: str, count: int, most: int) -> None:
    """Raise 422 above a limit."""
    if count > most:
        message = f"The request has {count:,} {what}."
        raise RequestError(422, f"too-many-{what}", message, given=count, expected=f"at most {most:,}")


def busy(seconds: int, message: str) -> RequestError:
    """Return 429 with ``Retry-After``."""
    hint = f"Send the request again after {seconds} s."
    return RequestError(429, "busy", message, hint=hint, headers={"Retry-After": str(seconds)})


def unavailable(type: str, message: str) -> RequestError:
    """Return 503: shutting down, or not answered in time."""
    hint = "Send the request again later, or with fewer images, labels, views or methods."
    return RequestError(503, type, message, hint=hint, headers={"Retry-After": "5"})
