"""Replicas of the service on Ray Serve, behind the application of the process that was started.

Ray sends a request to a replica once: if it dies before it has answered, the request fails. Here it is sent again, to
another one: an answer depends on nothing but the request.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import ray
import torch
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from ray import serve
from ray.exceptions import RayActorError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError

from otpt.errors import OtptError
from otpt.serve.config import Limits, ServiceConfig
from otpt.serve.errors import RequestError, busy, unavailable
from otpt.serve.metrics import Metrics, ReplicaCollector
from otpt.serve.schemas import Asked
from otpt.serve.service import Service

_ATTEMPTS = 5  # a request that kills replicas, for instance for want of memory, must not kill all of them
_PER_CPU = 2  # requests in progress per CPU of a replica that autoscaling aims at: one computed, another read
_WITHIN = 5.0  # seconds in which replicas must say how they are


class Replica:
    """Holds the models."""

    def __init__(self, config: ServiceConfig, threads: int, folder: str) -> None:
        if os.path.isdir(folder):  # where relative paths of the configuration begin
            os.chdir(folder)
        torch.set_num_threads(threads)
        self._service = Service.from_config(config)
        self._service.start()
        while not asyncio.run(self._service.ready()):  # Ray sends requests when this returns
            time.sleep(0.02)

    async def ask(self, name: str, *arguments: Any) -> Any:
        """What a method of the service returns; a ``RequestError`` is returned, too."""
        try:
            return await getattr(self._service, name)(*arguments)
        except RequestError as error:
            return error

    async def counters(self) -> tuple[str, bytes]:
        """The replica's name and its counters."""
        return serve.get_replica_context().replica_id.unique_id, await self._service.counters()

    def __del__(self) -> None:
        """Called by Ray when a replica ends in order, after the requests that it had."""
        if service := getattr(self, "_service", None):
            service.close()


class RayService:
    """Replicas behind a handle of Ray Serve, in the place of a :class:`Service`."""

    def __init__(self, handle: Any, limits: Limits) -> None:
        self._handle, self.limits, self.metrics = handle, limits, Metrics()
        own: Any = {"registry": self.metrics.registry}
        self._again = Counter("otpt_retries", "requests sent again because a replica died", **own)
        self._alive = Gauge("otpt_replicas", "replicas that answered when their counters were read", **own)

    def start(self) -> None:
        """Do nothing: the replicas run."""

    close = start

    async def answer(self, asked: Asked, images: Sequence[str | bytes], client: str = "") -> dict[str, Any]:
        """See :meth:`Service.answer`."""
        try:
            async with asyncio.timeout(self.limits.seconds):
                return await self._ask("answer", asked, images, client)
        except TimeoutError:
            message = f"The request was not answered within {self.limits.seconds:g} s."
            raise unavailable("time-out", message, "Send it again when the service is less busy.") from None

    async def information(self) -> dict[str, Any]:
        """See :meth:`Service.information`."""
        return await self._ask("information")

    async def ready(self) -> bool:
        """Whether a replica is ready."""
        with suppress(TimeoutError, RequestError):
            return bool(await asyncio.wait_for(self._ask("ready"), _WITHIN))
        return False

    async def counters(self) -> bytes:
        """Counters of this process and of all replicas; one that dies meanwhile is left out."""
        texts: dict[str, bytes] = {}
        with suppress(TimeoutError):  # none is up, which the gauge shows
            asked = self._handle.broadcast("counters").results_async(return_exceptions=True)
            found = await asyncio.wait_for(asked, _WITHIN)
            texts = dict(each for each in found if not isinstance(each, BaseException))
        self._alive.set(len(texts))
        registry = CollectorRegistry()
        registry.register(ReplicaCollector(self.metrics.registry, texts))
        return generate_latest(registry)

    async def _ask(self, *arguments: Any) -> Any:
        """The answer of a replica; one that dies meanwhile is replaced by another."""
        for attempt in range(_ATTEMPTS):
            if attempt:
                self._again.inc()
            try:
                found = await self._handle.ask.remote(*arguments)
            except RayActorError:
                continue
            except BackPressureError:
                raise busy(5, "All replicas have as many requests as they may.") from None
            except DeploymentUnavailableError:
                break
            if isinstance(found, RequestError):
                raise found
            return found
        raise unavailable("no-replica", f"No replica answered; {attempt + 1} were asked.", "Send it again later.")


def bind_replicas(
    config: ServiceConfig, *, replicas: tuple[int, int | None] = (1, None), cpus: int = 1, gpus: float = 0.0
) -> Any:
    """The deployment of replicas, each with these CPUs, and so threads, and GPUs (0.5 puts two on one).

    Between the fewest and the most replicas Ray follows the load; None as the most takes what fits into the cluster.
    """
    fewest, most = replicas
    if most is None:
        resources: Any = ray.cluster_resources  # type: ignore[no-untyped-call,unused-ignore]
        most = max(fewest, int(resources().get("CPU", 1) // max(cpus, 1)) if ray.is_initialized() else 1)
    if fewest < 1 or most < fewest or cpus < 1 or gpus < 0:
        raise OtptError(
            f"{fewest} to {most} replicas of {cpus} CPUs and {gpus:g} GPUs were requested; expected 1 ≤ fewest ≤ most, "
            "1 CPU or more, and 0 GPUs or more."
        )
    if config.device == "auto":
        config = config.replace(device="cuda" if gpus else "cpu")
    target = {"target_ongoing_requests": _PER_CPU * cpus}
    deployment = serve.deployment(
        name="replicas",
        ray_actor_options={"num_cpus": cpus, "num_gpus": gpus},
        max_ongoing_requests=config.limits.queue,
        max_queued_requests=config.limits.queue * most,
        graceful_shutdown_timeout_s=config.limits.seconds,
        autoscaling_config={"min_replicas": fewest, "max_replicas": most, **target},
    )
    return deployment(Replica).bind(config, cpus, os.getcwd())
