"""Replicas of the service on Ray Serve; also as an application for clusters where Ray's own proxies listen.

    serve run otpt.serve.ray:app models=pocket min_replicas=1 max_replicas=8

``otpt serve --engine ray`` needs no proxies of Ray: there the proxy is the process that was started. Ray sends a
request to a replica once: if it dies before it has answered, the request fails. Here it is sent again, to another one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ray
import torch
from pydantic import Field
from ray import serve
from ray.exceptions import RayActorError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError
from starlette.requests import Request
from starlette.responses import Response

from otpt.errors import OtptError
from otpt.serve.app import create_app
from otpt.serve.config import ServiceConfig, named_models, read_token
from otpt.serve.errors import RequestError, busy
from otpt.serve.proxy import Received, Sent, answer, answer_sent, create_proxy, plain_scope
from otpt.serve.service import Service

_ATTEMPTS = 5  # a request that kills replicas, for instance for want of memory, must not kill all of them
_PER_CPU = 2  # requests in progress per CPU of a replica that autoscaling aims at: one computed, another read
_AT_A_PROXY = 1000  # requests in progress at a proxy, which only waits for them


class Replica:
    """Holds the models: the application of one process, asked without a socket."""

    def __init__(self, config: ServiceConfig, threads: int, folder: str) -> None:
        if os.path.isdir(folder):  # where relative paths of the configuration begin
            os.chdir(folder)
        torch.set_num_threads(threads)
        self._service = Service.from_config(config)
        self._app = create_app(self._service, guarded=False)
        self._service.start()
        while not self._service.ready:  # Ray sends requests when this returns
            time.sleep(0.02)

    async def ask(self, sent: Sent) -> Received:
        """The application's answer."""
        return await answer_sent(self._app, sent)

    def metrics(self) -> tuple[str, bytes]:
        """The replica's name and its counters."""
        return serve.get_replica_context().replica_id.unique_id, self._service.metrics.text()

    def __del__(self) -> None:
        """Called by Ray when a replica ends in order, after the requests that it had."""
        if service := getattr(self, "_service", None):
            service.close()


class RayReplicas:
    """Replicas behind a handle of Ray Serve; see :class:`otpt.serve.proxy.Replicas`."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    async def ask(self, sent: Sent, again: Callable[[], None]) -> Received:
        """The answer of a replica; a replica that dies meanwhile is replaced by another."""
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
        message = f"No replica answered; {attempt + 1} were asked."
        raise RequestError(503, "no-replica", message, hint="Send it again later.", headers={"Retry-After": "10"})

    async def metrics(self) -> Mapping[str, bytes]:
        """Counters of all replicas; one that dies meanwhile is left out."""
        found = await self._handle.broadcast("metrics").results_async(return_exceptions=True)
        return dict(each for each in found if not isinstance(each, BaseException))


def bind_replicas(
    config: ServiceConfig, *, replicas: tuple[int, int | None] = (1, None), cpus: int = 1, gpus: float = 0.0
) -> Any:
    """The deployment of replicas, bound to its configuration.

    Args:
        config: of the service in each replica.
        replicas: fewest and most; between them Ray adds and removes replicas with the load. None as the most takes
            what fits into the connected cluster.
        cpus: of each replica, and so its threads.
        gpus: of each replica; a fraction such as 0.5 puts two on one GPU.
    """
    fewest, most = replicas
    if most is None:
        connected = ray.is_initialized()  # type: ignore[no-untyped-call]
        most = max(fewest, int(ray.cluster_resources().get("CPU", 1) // cpus) if connected and cpus > 0 else 1)  # type: ignore[no-untyped-call]
    if fewest < 1 or most < fewest or cpus < 1 or gpus < 0:
        raise OtptError(
            f"{fewest} to {most} replicas of {cpus} CPUs and {gpus:g} GPUs were requested; expected 1 ≤ fewest ≤ most, "
            "1 CPU or more, and 0 GPUs or more."
        )
    if config.device == "auto":
        config = config.replace(device="cuda" if gpus else "cpu")
    scale: dict[str, Any] = {"num_replicas": fewest}
    if most > fewest:
        target = {"target_ongoing_requests": _PER_CPU * cpus}
        scale = {"autoscaling_config": {"min_replicas": fewest, "max_replicas": most, **target}}
    deployment = serve.deployment(
        name="replicas",
        ray_actor_options={"num_cpus": cpus, "num_gpus": gpus},
        max_ongoing_requests=config.limits.queue,
        max_queued_requests=config.limits.queue * most,
        graceful_shutdown_timeout_s=config.limits.seconds,
        **scale,
    )
    return deployment(Replica).bind(config, cpus, os.getcwd())


class ProxyDeployment:
    """The proxy as a deployment, for clusters where Ray's proxies listen."""

    def __init__(self, replicas: Any, config: ServiceConfig, token: str | None) -> None:
        self._app = create_proxy(RayReplicas(replicas), config.limits, token=token)

    async def __call__(self, request: Request) -> Response:
        """Handle one request."""
        found = await answer(self._app, plain_scope(request.scope), request.receive)
        answered = Response(found.body, found.status)
        answered.raw_headers = list(found.headers)
        return answered


class Arguments(ServiceConfig):
    """Arguments of ``serve run`` and ``serve deploy``, as texts or as YAML's values."""

    models: Any = Field("pocket", description="names with commas, as otpt serve --backbone takes them")
    token_file: Path | None = None
    min_replicas: int = 1
    max_replicas: int | None = None
    cpus: int = 1
    gpus: float = 0.0
    proxies: int = 1


def app(arguments: Mapping[str, Any]) -> Any:
    """The application for ``serve run`` and ``serve deploy``: replicas, and proxies behind those of Ray."""
    given = Arguments(**arguments)
    fields = {name: getattr(given, name) for name in given.model_fields_set if name in ServiceConfig.model_fields}
    fields["models"] = named_models(str(given.models).split(","))
    if isinstance(given.classes, str):
        fields["classes"] = Path(given.classes)
    config = ServiceConfig(**fields)
    counts = (given.min_replicas, given.max_replicas)
    replicas = bind_replicas(config, replicas=counts, cpus=given.cpus, gpus=given.gpus)
    options = {"ray_actor_options": {"num_cpus": 0}, "max_ongoing_requests": _AT_A_PROXY}
    proxies = serve.deployment(name="proxy", num_replicas=given.proxies, **options)(ProxyDeployment)
    return proxies.bind(replicas, config, read_token(given.token_file))
