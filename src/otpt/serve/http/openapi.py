"""The description of the interface in ``/openapi.json``: bodies that are read by hand, and errors."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

from otpt.serve.http.schemas import CompareRequest, ErrorAnswer, HubRequest, PredictRequest

BAD: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorAnswer, "description": words}
    for status, words in {
        400: "not JSON, not base64, a damaged form",
        401: "no token, or a wrong one",
        403: "for another host, or from a page of another site",
        408: "the request did not arrive in time",
        413: "too many bytes",
        415: "neither JSON nor a form",
        422: "it can be read but not used: an image, a label, a name, a number",
        429: "busy; see Retry-After",
        503: "not answered in time, or shutting down; see Retry-After",
    }.items()
}
_READ_BY_HAND: tuple[type[BaseModel], ...] = (PredictRequest, CompareRequest, HubRequest)
_REFERENCE = "#/components/schemas/{model}"


def body_of(model: type[BaseModel], *, forms: bool = False) -> dict[str, Any]:
    """The body of a route that reads it by hand."""
    schema = {"$ref": _REFERENCE.format(model=model.__name__)}
    content: dict[str, Any] = {"application/json": {"schema": schema}}
    if forms:
        properties = _definitions(model)[model.__name__]["properties"]
        plain = {name: _form_field(each) for name, each in properties.items() if name not in ("image", "images")}
        files = {"type": "array", "items": {"type": "string", "format": "binary"}}
        form = {"type": "object", "properties": {"image": files, **plain}, "required": ["image"]}
        content["multipart/form-data"] = {"schema": form}
    return {"requestBody": {"required": True, "content": content}}


def describe(app: FastAPI) -> dict[str, Any]:
    """The whole description; made once."""
    if app.openapi_schema is None:
        found = get_openapi(title=app.title, version=app.version, summary=app.summary, routes=app.routes)
        schemas = found.setdefault("components", {}).setdefault("schemas", {})
        for model in _READ_BY_HAND:
            schemas |= _definitions(model)
        app.openapi_schema = found
    return app.openapi_schema


def _definitions(model: type[BaseModel]) -> dict[str, Any]:
    schema = model.model_json_schema(ref_template=_REFERENCE)
    return {**schema.pop("$defs", {}), model.__name__: schema}


def _form_field(schema: dict[str, Any]) -> dict[str, Any]:
    """A field of JSON as a form has it: without null."""
    choices = [each for each in schema.get("anyOf", []) if each.get("type") != "null"]
    return {**choices[0], "description": schema.get("description", "")} if choices else schema
