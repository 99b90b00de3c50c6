"""The service on Ray Serve: replicas that hold the models, behind a door that sends a request again if one dies.

    otpt serve --engine ray --ray-actors 1 8
    serve run otpt.serve.ray_app:app models=pocket min_replicas=1 max_replicas=8

Ray's own proxies send a request to a replica once; if the replica dies before it has answered, the client gets status
500. The door keeps the request until it has an answer. The engine of each replica batches what waits there, image by
image as they come, with the bits of a single prediction; ``serve.batch``, which collects calls for a fixed time and
hands them over as lists, would have nothing left to do.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from ray import serve
from ray.exceptions import RayActorError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError
from starlette.requests import Request
from starlette.responses import Response

from otpt.errors import OtptError, unknown
from otpt.serve.app import create_app
from otpt.serve.errors import RequestError, busy
from otpt.serve.forwarding import Received, Sent, answer, create_door, plain_scope
from otpt.serve.settings import Settings, named_models, read_token

_ATTEMPTS = 5  # a request that kills replicas, for instance for want of memory, must not kill all of them
_PER_CPU = 2  # requests under way per CPU of a replica that autoscaling aims at: one is computed while another is read


class Replica:
    """Holds the models: the application of one process, asked without a socket."""

    def __init__(self, settings: Settings, threads: int) -> None:
        torch.set_num_threads(threads)
        self._service = settings.service()
        self._app = create_app(self._service, guarded=False)
        self._service.start()
        while not self._service.ready:  # Ray sends requests when this returns
            time.sleep(0.02)

    async def ask(self, sent: Sent) -> Received:
        """The application's answer."""
        return await answer(self._app, sent)

    def metrics(self) -> tuple[str, bytes]:
        """The replica's name and its counters."""
        return serve.get_replica_context().replica_id.unique_id, self._service.metrics.text()

    def __del__(self) -> None:
        """Called by Ray when a replica ends in order, after the requests that it had."""
        if service := getattr(self, "_service", None):
            service.close()


class RayReplicas:
    """Replicas behind a handle of Ray Serve; see :class:`otpt.serve.forwarding.Replicas`."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    async def ask(self, sent: Sent, again: Callable[[], None]) -> Received:
        """The answer of a replica; a replica that dies under it is replaced by another."""
        for attempt in range(_ATTEMPTS):
            if attempt:
                again()
            try:
                found: Received = await self._handle.ask.remote(sent)
            except RayActorError:
                continue
            except BackPressureError:
                raise busy(5, "All replicas have as many requests as they may.") from None
            except DeploymentUnavailableError:
                break
            return found
        raise RequestError(
            503,
            "no-replica",
            f"No replica answered; {attempt + 1} were asked.",
            "a replica that stays alive",
            "Send the request again later; the service's log says why replicas end.",
            {"Retry-After": "10"},
        )

    async def metrics(self) -> Mapping[str, bytes]:
        """Counters of all replicas."""
        return dict(await self._handle.broadcast("metrics").results_async())


class Door:
    """The door as a deployment, for clusters where Ray's proxies listen."""

    def __init__(self, replicas: Any, settings: Settings, token: str | None) -> None:
        self._app = create_door(RayReplicas(replicas), settings.limits, token=token)

    async def __call__(self, request: Request) -> Response:
        """One request."""
        found = await answer(self._app, Sent(plain_scope(request.scope), await request.body()))
        kept = Response(found.body, found.status)
        kept.raw_headers = list(found.headers)
        return kept


def replicas_of(
    settings: Settings, *, replicas: tuple[int, int | None] = (1, None), cpus: int = 1, gpus: float = 0.0
) -> Any:
    """The deployment of replicas, bound to its settings.

    Args:
        settings: of the service in each replica.
        replicas: fewest and most; between them Ray adds and removes replicas with the load. None as the most takes
            what the connected cluster has room for.
        cpus: of each replica, and so its threads.
        gpus: of each replica; a share such as 0.5 puts two on one GPU.
    """
    fewest, most = replicas[0], _most(cpus) if replicas[1] is None else replicas[1]
    most = max(fewest, most) if replicas[1] is None else most
    if fewest < 1 or most < fewest or cpus < 1 or gpus < 0:
        raise OtptError(
            f"{fewest} to {most} replicas of {cpus} CPUs and {gpus:g} GPUs were asked for; expected 1 ≤ fewest ≤ most, "
            "1 CPU or more, and 0 GPUs or more."
        )
    if settings.device == "auto":
        settings = replace(settings, device="cuda" if gpus else "cpu")
    scale: dict[str, Any] = {"num_replicas": fewest}
    if most > fewest:
        target = {"target_ongoing_requests": _PER_CPU * cpus}
        scale = {"autoscaling_config": {"min_replicas": fewest, "max_replicas": most, **target}}
    deployment = serve.deployment(
        name="replicas",
        ray_actor_options={"num_cpus": cpus, "num_gpus": gpus},
        max_ongoing_requests=settings.limits.queue,
        max_queued_requests=settings.limits.queue * most,
        graceful_shutdown_timeout_s=settings.limits.seconds,
        **scale,
    )
    return deployment(Replica).bind(settings, cpus)


def _most(cpus: int) -> int:
    import ray

    return int(ray.cluster_resources().get("CPU", 1) // cpus) if ray.is_initialized() else 1


_TEXTS = ("models", "device", "precision", "method", "classes", "calibrations", "token_file")
_NUMBERS = {"views": int, "min_replicas": int, "max_replicas": int, "cpus": int, "gpus": float, "doors": int}


def app(arguments: Mapping[str, Any]) -> Any:
    """The application for ``serve run`` and ``serve deploy``: replicas, and doors behind Ray's proxies.

    Args:
        arguments: ``models`` (names with commas, as ``otpt serve --models`` takes them), ``device``, ``precision``,
            ``method``, ``views``, the folders ``classes`` and ``calibrations``, ``token_file``; ``min_replicas``,
            ``max_replicas``, ``cpus`` and ``gpus`` of each; ``doors``.
    """
    given: dict[str, Any] = {}
    for name, value in arguments.items():
        if name not in (*_TEXTS, *_NUMBERS):
            raise unknown("argument of otpt.serve.ray_app", name, (*_TEXTS, *_NUMBERS))
        try:
            given[name] = _NUMBERS.get(name, str)(value)
        except ValueError:
            raise OtptError(f"{name} was given {value!r}; expected a number.") from None
    token_file = given.pop("token_file", None)
    scale = {name: given.pop(name) for name in ("cpus", "gpus") if name in given}
    counts = (given.pop("min_replicas", 1), given.pop("max_replicas", None))
    doors = given.pop("doors", 1)
    if "models" in given:
        given["models"] = named_models(given["models"].split(","))
    folders = {name: Path(given[name]) for name in ("classes", "calibrations") if name in given}
    settings = Settings(**{**given, **folders})
    replicas = replicas_of(settings, replicas=counts, **scale)
    door = serve.deployment(name="door", num_replicas=doors, ray_actor_options={"num_cpus": 0}, max_ongoing_requests=1000)
    return door(Door).bind(replicas, settings, None if token_file is None else read_token(Path(token_file)))
