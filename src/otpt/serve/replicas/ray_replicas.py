"""Replicas of the service on Ray Serve, and how they are asked.

Ray's own proxies and handles send a request to a replica once: if it dies before it has answered, the request fails.
Here it is sent again, to another replica. The engine of each replica batches what waits there, image by image as they
come, with the bits of a single prediction; ``serve.batch``, which collects calls for a fixed time and hands them over
as lists, would have nothing left to do.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import ray
import torch
from ray import serve
from ray.exceptions import RayActorError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError

from otpt.errors import OtptError
from otpt.serve.app import create_app
from otpt.serve.http.errors import RequestError, busy
from otpt.serve.replicas.forwarding import Received, Sent, answer_sent
from otpt.serve.settings import Settings

_ATTEMPTS = 5  # a request that kills replicas, for instance for want of memory, must not kill all of them
_PER_CPU = 2  # requests under way per CPU of a replica that autoscaling aims at: one is computed while another is read


class Replica:
    """Holds the models: the application of one process, asked without a socket."""

    def __init__(self, settings: Settings, threads: int, folder: str) -> None:
        if os.path.isdir(folder):  # where relative paths of the settings begin
            os.chdir(folder)
        torch.set_num_threads(threads)
        self._service = settings.service()
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
    """Replicas behind a handle of Ray Serve; see :class:`otpt.serve.replicas.forwarding.Replicas`."""

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
        """Counters of all replicas; one that dies meanwhile is left out."""
        found = await self._handle.broadcast("metrics").results_async(return_exceptions=True)
        return dict(each for each in found if not isinstance(each, BaseException))


def replicas_of(
    settings: Settings, *, replicas: tuple[int, int | None] = (1, None), cpus: int = 1, gpus: float = 0.0
) -> Any:
    """The deployment of replicas, bound to its settings.

    Args:
        settings: of the service in each replica.
        replicas: fewest and most; between them Ray adds and removes replicas with the load. None as the most takes
            what the connected cluster has room for.
        cpus: of each replica, and so its threads.
        gpus: of each replica; a fraction such as 0.5 puts two on one GPU.
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
    return deployment(Replica).bind(settings, cpus, os.getcwd())


def _most(cpus: int) -> int:
    return int(ray.cluster_resources().get("CPU", 1) // cpus) if ray.is_initialized() else 1  # type: ignore[no-untyped-call]
