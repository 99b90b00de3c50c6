"""The service as an application of Ray Serve, for clusters where Ray's own proxies listen.

    serve run otpt.serve.replicas.ray_app:app models=pocket min_replicas=1 max_replicas=8

``otpt serve --engine ray`` needs no proxies: there the door is the process that was started.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ray import serve
from starlette.requests import Request
from starlette.responses import Response

from otpt.errors import OtptError, unknown
from otpt.serve.replicas.forwarding import answer, create_door, plain_scope
from otpt.serve.replicas.ray_replicas import RayReplicas, replicas_of
from otpt.serve.settings import Settings, named_models, read_token

_AT_A_DOOR = 1000  # requests under way at a door, which only waits for them
TEXTS = ("models", "device", "precision", "method", "classes", "calibrations", "token_file")
SWITCHES = ("compile",)
NUMBERS = {
    "views": int,
    "seed": int,
    "min_replicas": int,
    "max_replicas": int,
    "cpus": int,
    "gpus": float,
    "doors": int,
}


class Door:
    """The door as a deployment, for clusters where Ray's proxies listen."""

    def __init__(self, replicas: Any, settings: Settings, token: str | None) -> None:
        self._app = create_door(RayReplicas(replicas), settings.limits, token=token)

    async def __call__(self, request: Request) -> Response:
        """One request."""
        found = await answer(self._app, plain_scope(request.scope), request.receive)  # the guard counts what comes
        kept = Response(found.body, found.status)
        kept.raw_headers = list(found.headers)
        return kept


def app(arguments: Mapping[str, Any]) -> Any:
    """The application for ``serve run`` and ``serve deploy``: replicas, and doors behind Ray's proxies.

    Args:
        arguments: ``models`` (names with commas, as ``otpt serve --models`` takes them), ``device``, ``precision``,
            ``compile`` (true or false), ``method``, ``views``, ``seed``, the folders ``classes`` and
            ``calibrations``, ``token_file``;
            ``min_replicas``, ``max_replicas``; ``cpus`` and ``gpus`` of each; ``doors``.
    """
    given: dict[str, Any] = {}
    readers: dict[str, Callable[[Any], Any]] = {**NUMBERS, **dict.fromkeys(SWITCHES, _switch)}
    for name, value in arguments.items():
        if name not in (*TEXTS, *readers):
            raise unknown("argument of otpt.serve.replicas.ray_app", name, (*TEXTS, *readers))
        try:
            given[name] = readers.get(name, str)(value)
        except ValueError:
            expected = "true or false" if name in SWITCHES else "a number"
            raise OtptError(f"{name} was given {value!r}; expected {expected}.") from None
    token_file = given.pop("token_file", None)
    scale = {name: given.pop(name) for name in ("cpus", "gpus") if name in given}
    counts = (given.pop("min_replicas", 1), given.pop("max_replicas", None))
    doors = given.pop("doors", 1)
    if "models" in given:
        given["models"] = named_models(given["models"].split(","))
    given |= {name: Path(given[name]) for name in ("classes", "calibrations") if name in given}
    settings = Settings(**given)
    replicas = replicas_of(settings, replicas=counts, **scale)
    options = {"num_replicas": doors, "ray_actor_options": {"num_cpus": 0}, "max_ongoing_requests": _AT_A_DOOR}
    return serve.deployment(name="door", **options)(Door).bind(
        replicas, settings, None if token_file is None else read_token(Path(token_file))
    )


def _switch(value: Any) -> bool:
    """YAML's true and false, or these words, as ``serve run`` passes them."""
    word = str(value).lower()
    if word not in ("true", "false"):
        raise ValueError(word)
    return word == "true"
