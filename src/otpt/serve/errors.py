"""Error responses: an HTTP status and JSON with type, message, given, expected and hint."""

from __future__ import annotations

import difflib
import json
import reprlib
from collections.abc import Iterable, Mapping
from typing import Any

from fastapi import HTTPException
from fastapi.responses import JSONResponse

_VALUES = 200_000  # values of a JSON body: each takes about a hundred times its bytes
_KEYS = 100  # of a JSON object
_short = reprlib.Repr()
_short.maxstring = _short.maxother = 60  # characters: the value may be an image


class Json(JSONResponse):
    """JSON in UTF-8; lone surrogates are escaped."""

    def render(self, content: Any) -> bytes:
        """The body."""
        text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return text.encode("utf-8", "backslashreplace")


class RequestError(HTTPException):
    """A refused request; ``type`` is a short machine-readable name such as "too-many-labels"."""

    def __init__(
        self,
        status: int,
        type: str,
        message: str,
        *,
        given: Any = None,
        expected: str | None = None,
        hint: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(status, message, dict(headers or {}))
        fields = {"type": type, "message": message, "given": given, "expected": expected, "hint": hint}
        self.content = {"error": {name: value for name, value in fields.items() if value is not None}}

    def response(self) -> Json:
        """The answer."""
        return Json(self.content, self.status_code, self.headers)


def invalid_field(error: Mapping[str, Any], names: Iterable[str], elsewhere: Iterable[str]) -> RequestError:
    """One of pydantic's errors; ``names``: fields of requests, ``elsewhere``: settings that requests do not have."""
    if error["type"] == "json_invalid":
        return RequestError(400, "invalid-json", f"The body is not JSON: {error['ctx']['error']}.", expected="JSON")
    place = [str(each)[:100] for each in error["loc"] if each != "body" and not str(each).startswith("list[")]
    where = ".".join(place) or "body"
    hint = "GET /openapi.json describes the fields."
    if error["type"] == "extra_forbidden" and where in elsewhere:
        hint = "It needs files or objects that a request cannot bring: use Python or the command line."
    elif error["type"] == "extra_forbidden" and (near := difflib.get_close_matches(where, names, n=1, cutoff=0.5)):
        hint = f"Did you mean {near[0]!r}?"
    given = None if error["type"] == "missing" else _short.repr(error.get("input"))
    return RequestError(422, "invalid-field", f"{where[:200]}: {error['msg']}.", given=given, hint=hint)


def read_json(body: bytes) -> Any:
    """Parse JSON, refusing duplicate keys, which parsers resolve differently, and very many values."""
    if sum(map(body.count, (b",", b"[", b"{"))) > _VALUES:
        raise RequestError(400, "invalid-json", "The body has too many values.", expected=f"at most {_VALUES:,}")
    try:
        return json.loads(body, object_pairs_hook=_unique, parse_constant=_no_number)
    except json.JSONDecodeError:
        raise
    except (ValueError, RecursionError) as error:  # an encoding, a very long number, very deep nesting
        raise RequestError(400, "invalid-json", f"The body is not JSON: {error}"[:200]) from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(pairs) > _KEYS:
        raise RequestError(400, "invalid-json", f"A JSON object has {len(pairs):,} keys.", expected=f"at most {_KEYS}")
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in found if keys.count(key) > 1)
        raise RequestError(400, "duplicate-key", "A JSON object has a key twice.", given=twice[:60])
    return found


def _no_number(text: str) -> Any:
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
