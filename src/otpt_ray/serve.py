"""Replicas of the service on Ray Serve, behind the application of the process that was started.

Ray sends a request to a replica once and fails it if the replica dies. Here it is sent to another replica: an answer
depends on the request alone. Ray is imported when it is used, since the service runs without it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from typing import Protocol, cast

import torch
from prometheus_client import Counter, generate_latest

from otpt.errors import OtptError
from otpt.serve.config import Limits, ServiceConfig
from otpt.serve.errors import RequestError, busy, unavailable
from otpt.serve.metrics import Metrics
from otpt.serve.schemas import CompareAnswer, ImageRequest, Information
from otpt.serve.service import Service
from otpt_ray.cluster import connected, import_ray, quiet_ray

_ATTEMPTS = 5  # bounds how many replicas a request can kill, for instance by running out of memory
_PER_CPU = 2  # requests in progress per CPU of a replica that autoscaling aims at: one computed, another read
_WITHIN = 5.0  # seconds to wait for a readiness answer


class RemoteMethod(Protocol):
    """A method of a replica, called through Ray."""

    def remote(self, *arguments: object) -> Awaitable[object]:
        """Call it on one of the replicas."""


class ReplicaHandle(Protocol):
    """What is used of a handle of Ray Serve."""

    @property
    def ask(self) -> RemoteMethod:
        """:meth:`Replica.ask` of one of the replicas."""


class Replica:
    """Process of Ray that holds the models."""

    def __init__(self, config: ServiceConfig, threads: int, folder: str) -> None:
        if os.path.isdir(folder):  # where relative paths of the configuration begin
            os.chdir(folder)
        torch.set_num_threads(threads)
        self._service = Service.from_config(config)
        self._service.start()
        while not self._service.is_ready:  # Ray sends requests when this returns, and has a loop that runs
            time.sleep(0.02)

    async def ask(self, name: str, *arguments: object) -> object:
        """Call a method of the service; a user error is returned, not raised."""
        try:
            return await getattr(self._service, name)(*arguments)
        except (RequestError, OtptError, TimeoutError) as error:
            return error

    def __del__(self) -> None:
        """Close the service; Ray calls this on graceful shutdown, after the last request."""
        if service := getattr(self, "_service", None):
            service.close()


class RayService:
    """Replicas behind a handle of Ray Serve; a drop-in for :class:`Service`."""

    def __init__(self, handle: ReplicaHandle, limits: Limits) -> None:
        self._handle = handle
        self.limits = limits
        self.metrics = Metrics()
        words = "requests sent again because a replica died"
        self._again = Counter("otpt_retries", words, registry=self.metrics.registry)
        ray = import_ray("ray.exceptions", "ray.serve.exceptions")
        self._replica_died: type[Exception] = ray.exceptions.RayActorError
        self._overloaded: type[Exception] = ray.serve.exceptions.BackPressureError
        self._unavailable: type[Exception] = ray.serve.exceptions.DeploymentUnavailableError

    def start(self) -> None:
        """Do nothing: the replicas are running."""

    def close(self) -> None:
        """Do nothing: the replicas outlive the application."""

    async def answer(self, request: ImageRequest, images: Sequence[str | bytes], client: str = "") -> CompareAnswer:
        """See :meth:`Service.answer`."""
        async with asyncio.timeout(self.limits.seconds):
            return cast(CompareAnswer, await self._ask("answer", request, images, client))

    async def information(self) -> Information:
        """See :meth:`Service.information`."""
        return cast(Information, await self._ask("information"))

    async def exposition(self) -> bytes:
        """Return the counters of requests; those of the replicas' engines are not collected."""
        return generate_latest(self.metrics.registry)

    async def ready(self) -> bool:
        """Return whether a replica is ready."""
        with suppress(TimeoutError, RequestError):
            return bool(await asyncio.wait_for(self._ask("ready"), _WITHIN))
        return False

    async def _ask(self, *arguments: object) -> object:
        """Ask a replica; if it dies, ask another one."""
        for attempt in range(_ATTEMPTS):
            if attempt:
                self._again.inc()
            try:
                answer = await self._handle.ask.remote(*arguments)
            except self._replica_died:
                continue
            except self._overloaded:
                raise busy(5, "All replicas have as many requests as they may.") from None
            except self._unavailable:
                break
            if isinstance(answer, Exception):
                raise answer
            return answer
        raise unavailable("no-replica", f"No replica answered; {attempt + 1} were asked.")


def bind_replicas(
    config: ServiceConfig, *, replicas: tuple[int, int | None] = (1, None), cpus: int = 1, gpus: float = 0.0
) -> object:
    """Return a deployment for ``ray.serve.run``.

    Args:
        config: configuration of each replica.
        replicas: fewest and most replicas, between which Ray follows the load; None allows as many as fit.
        cpus: CPUs, and threads, of a replica.
        gpus: GPUs of a replica; 0.5 shares one between two.
    """
    ray = import_ray("ray.serve")
    fewest, most = replicas
    if most is None:
        available = ray.cluster_resources() if ray.is_initialized() else {}
        most = max(fewest, int(available.get("CPU", 1) // max(cpus, 1)))
    if fewest < 1 or most < fewest or cpus < 1 or gpus < 0:
        raise OtptError(
            f"{fewest} to {most} replicas of {cpus} CPUs and {gpus:g} GPUs were requested; expected 1 ≤ fewest ≤ most, "
            "1 CPU or more, and 0 GPUs or more."
        )
    if config.device == "auto":
        config = config.replace(device="cuda" if gpus else "cpu")
    deployment = ray.serve.deployment(
        name="replicas",
        ray_actor_options={"num_cpus": cpus, "num_gpus": gpus},
        max_ongoing_requests=config.limits.queue,
        max_queued_requests=config.limits.queue * most,
        graceful_shutdown_timeout_s=config.limits.seconds,
        autoscaling_config={
            "min_replicas": fewest,
            "max_replicas": most,
            "target_ongoing_requests": _PER_CPU * cpus,
        },
    )
    return deployment(Replica).bind(config, cpus, os.getcwd())


@contextmanager
def replicas(
    config: ServiceConfig,
    name: str,
    *,
    address: str | None = None,
    actors: tuple[int, int | None] = (1, None),
    gpus: float = 0.0,
    cpus: int = 1,
) -> Iterator[RayService]:
    """Run replicas on Ray and yield the service in front of them; other applications on the cluster stay.

    Args:
        config: configuration of each replica.
        name: name of the application on the cluster.
        address: address of a running cluster; None starts one on this machine and ends it afterwards.
        actors: fewest and most replicas; see :func:`bind_replicas`.
        gpus: GPUs of a replica.
        cpus: CPUs, and threads, of a replica.
    """
    with quiet_ray("ray.serve") as ray, connected(ray, address, object_store=config.limits.memory):
        logging.getLogger("ray.serve").setLevel(logging.ERROR)
        bound = bind_replicas(config, replicas=actors, cpus=cpus, gpus=gpus)
        ray.serve.start(proxy_location="Disabled", logging_config={"log_level": "ERROR"})
        try:
            handle = ray.serve.run(bound, name=name, route_prefix=None)
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[-1]
            raise OtptError(f"The replicas did not start on Ray: {reason}") from None
        try:
            with redirect_stdout(sys.__stdout__):
                yield RayService(handle, config.limits)
        finally:
            ray.serve.delete(name)
