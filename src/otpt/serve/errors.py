"""Errors as answers: an HTTP status and JSON with the fields type, message, given, expected and hint."""

from __future__ import annotations

import difflib
import json
import reprlib
from collections.abc import Iterable, Mapping
from typing import Any

from fastapi import HTTPException
from fastapi.responses import JSONResponse

from otpt.errors import OtptError

_short = reprlib.Repr()
_short.maxstring = _short.maxother = 60  # characters: the value may be an image


class Json(JSONResponse):
    """JSON in UTF-8; a lone surrogate of a request stays the escape that it was."""

    def render(self, content: Any) -> bytes:
        """The body."""
        text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return text.encode("utf-8", "backslashreplace")


class RequestError(HTTPException):
    """A request that is not answered; ``type`` is a short name for programs, such as "too-many-labels"."""

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
        self.fields = {"type": type, "message": message, "given": given, "expected": expected, "hint": hint}

    def content(self) -> dict[str, Any]:
        """The body of the answer; fields without a value are absent."""
        return {"error": {name: value for name, value in self.fields.items() if value is not None}}

    def response(self) -> Json:
        """The answer."""
        return Json(self.content(), self.status_code, self.headers)


def unusable(error: OtptError, type: str = "unusable") -> RequestError:
    """422 for an error of the library: the request can be read, but not used."""
    return RequestError(422, type, str(error))


def invalid_field(error: Mapping[str, Any], names: Iterable[str]) -> RequestError:
    """One of pydantic's errors; ``names``: fields of requests, for suggestions."""
    if error["type"] == "json_invalid":
        return RequestError(400, "invalid-json", f"The body is not JSON: {error['ctx']['error']}.", expected="JSON")
    place = [str(each)[:100] for each in error["loc"] if each != "body"]
    where = ".".join(place) or "body"
    near = difflib.get_close_matches(place[-1], names, n=1) if error["type"] == "extra_forbidden" else []
    return RequestError(
        422,
        "invalid-field",
        f"{where[:200]}: {error['msg']}.",
        given=None if error["type"] == "missing" else _short.repr(error.get("input")),
        hint=f"Did you mean {near[0]!r}?" if near else "GET /openapi.json describes the fields.",
    )


def busy(seconds: int, message: str) -> RequestError:
    """429: come back later."""
    hint = f"Send the request again after {seconds} s."
    return RequestError(429, "busy", message, hint=hint, headers={"Retry-After": str(seconds)})


def unavailable(type: str, message: str, hint: str) -> RequestError:
    """503: shutting down, or not answered in time."""
    return RequestError(503, type, message, hint=hint, headers={"Retry-After": "5"})
