"""From the body of a request, JSON or multipart, to a checked request. Only bytes and names come out: no paths."""

from __future__ import annotations

import base64
import binascii
from collections.abc import AsyncGenerator, Callable
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from otpt.files import parse_json as parse_plain_json
from otpt.images import is_url
from otpt.serve.http.errors import RequestError
from otpt.serve.http.field_errors import field_error
from otpt.serve.limits import Limits

_Model = TypeVar("_Model", bound=BaseModel)
_LISTS = ("labels", "templates", "methods", "calibration")
_NUMBERS = {"top": int, "seed": int, "views": int, "coverage": float, "risk": float}
_SWITCHES = {"true": True, "false": False, "1": True, "0": False}
_FIELDS = 4000  # parts of a form: labels may be repeated


async def read_request(
    headers: Headers, body: bytes, model: type[_Model], limits: Limits
) -> tuple[_Model, list[bytes]]:
    """The request and the files that came with it."""
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "application/json":
        return parse_json(body, model), []
    if kind == "multipart/form-data":
        fields, files = await _form(headers, body, limits)
        return _checked(lambda: model.model_validate(fields), model), files
    raise RequestError(
        415,
        "unsupported-media-type",
        f"The content type is {kind[:100]!r}.",
        "application/json or multipart/form-data",
        "Send JSON with images in base64, or a form with a file part 'image'.",
    )


def parse_json(body: bytes, model: type[_Model]) -> _Model:
    """A request of JSON."""
    return _checked(lambda: model.model_validate_json(body), model)


def image_bytes(text: str) -> bytes | str:
    """The file that a text holds in base64, or as a data URL; an http(s) address as it is."""
    if is_url(text):
        return text
    data = text
    if text[:5].lower() == "data:":
        head, _, data = text.partition(",")
        if not head.lower().endswith(";base64"):
            raise RequestError(400, "not-base64", "An image is a data URL without base64.", "data:image/…;base64,…")
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        shown = f"{text[:40]}…" if len(text) > 40 else text
        raise RequestError(
            400,
            "not-base64",
            f"An image is the text {shown!r}, which is not base64.",
            "the bytes of an image file in base64",
            "Send the file's content; paths are not read here.",
        ) from None


def _checked(make: Callable[[], _Model], model: type[_Model]) -> _Model:
    try:
        return make()
    except ValidationError as error:
        raise field_error(error, model) from None


class _InMemory(MultiPartParser):
    """Files stay in memory, which the limit of the body bounds; nothing is written to the disk."""

    spool_max_size = 1 << 40


async def _form(headers: Headers, body: bytes, limits: Limits) -> tuple[dict[str, Any], list[bytes]]:
    async def stream() -> AsyncGenerator[bytes, None]:
        yield body
        yield b""

    try:
        parser = _InMemory(headers, stream(), max_files=limits.images, max_fields=_FIELDS, max_part_size=limits.body)
        form = await parser.parse()
    except MultiPartException as error:
        raise _bad_form(error.message) from None
    except (KeyError, ValueError, LookupError) as error:  # a missing boundary, text in an unknown charset
        raise _bad_form(f"it cannot be read ({type(error).__name__})") from None
    fields: dict[str, Any] = {}
    files: list[bytes] = []
    for name, value in form.multi_items():
        if isinstance(value, UploadFile):
            if name not in ("image", "images"):
                raise RequestError(422, "unknown-part", f"There is a file part {name[:100]!r}.", "file parts 'image'")
            files.append(await value.read())
            await value.close()
        else:
            fields.setdefault(name, []).append(value)
    return {name: _field(name, values) for name, values in fields.items()}, files


def _field(name: str, values: list[str]) -> Any:
    """A form's values as JSON would have them."""
    if name == "images" or (name in _LISTS and len(values) > 1):
        return values
    if len(values) > 1:
        raise RequestError(422, "repeated-field", f"The field {name[:100]!r} is given {len(values)} times.", "once")
    (value,) = values
    if name in _LISTS:
        return _json_list(value) if value.lstrip().startswith("[") else [each.strip() for each in value.split(",")]
    if name in _NUMBERS:
        try:
            return _NUMBERS[name](value)
        except ValueError:
            return value  # refused with the reason by the model
    if name in ("reject", "show_views"):
        return _SWITCHES.get(value.lower(), value)
    return value


def _json_list(text: str) -> Any:
    try:
        return parse_plain_json(text)
    except ValueError:
        raise RequestError(400, "invalid-json", "A field begins with '[' but is no JSON.", "a JSON list") from None


def _bad_form(reason: str) -> RequestError:
    return RequestError(400, "invalid-form", f"The form is damaged: {reason}.", "multipart/form-data, as in RFC 7578")
