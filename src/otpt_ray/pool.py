"""Pool of actors on a Ray cluster.

Ray places the actors, and replaces an actor or a machine that died; its items are computed again.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, redirect_stdout
from math import inf
from types import ModuleType
from typing import Protocol, cast

from otpt.errors import OtptError
from otpt.workers import (
    PENDING,
    UNDELIVERED,
    Closing,
    Facts,
    Item,
    Job,
    Replies,
    Reply,
    Result,
    Schedule,
    WorkerHost,
    pickle_job,
)
from otpt_ray.cluster import connected, errors_in_words, quiet_ray

_RETRIES = 20
"""Actors that may die on the same item before the work ends."""


class _RemoteMethod(Protocol):
    def remote(self, *arguments: object) -> object:
        """Return a reference to the result, which is hashable."""


class _ActorHandle(Protocol):
    """Handle of a :class:`otpt.workers.WorkerHost` in an actor."""

    @property
    def ready(self) -> _RemoteMethod: ...
    @property
    def facts(self) -> _RemoteMethod: ...
    @property
    def results(self) -> _RemoteMethod: ...


class RayPool(Closing):
    """Actors on a Ray cluster; a :class:`otpt.workers.Pool`.

    Args:
        address: of a running cluster ("auto", "HOST:PORT", "ray://…"); None starts one on this machine and ends it
            afterwards. An existing connection (``ray.init``) is used and left open.
        actors: minimum and maximum number; None as the maximum uses the whole cluster.
        gpus: of each actor; a fraction such as 0.5 puts two on one GPU, 0 computes on the CPU.
        cpus: of each actor, and so its threads.
    """

    inline = False

    def __init__(
        self,
        address: str | None = None,
        actors: tuple[int, int | None] = (1, None),
        gpus: float = 0.0,
        cpus: int = 1,
    ) -> None:
        fewest, most = actors
        if fewest < 1 or (most is not None and most < fewest):
            raise OtptError(f"The numbers of Ray actors are {fewest} and {most}; expected 1 ≤ minimum ≤ maximum.")
        if gpus < 0 or cpus < 1:
            raise OtptError(f"A Ray actor gets {cpus} CPUs and {gpus} GPUs; expected 1 CPU or more.")
        self.address, self.actors, self.gpus, self.cpus = address, actors, gpus, cpus
        self._job: object = None
        self._running: _Actors | None = None
        self._replies = Replies()

    def facts(self, job: Job[Item, Result]) -> Facts:
        """See :meth:`otpt.workers.Pool.facts`."""
        actors = self._start(job)
        with errors_in_words(actors.ray):
            reply: Reply[Facts] = actors.ray.get(actors.handles[0].facts.remote())
        return self._replies.read(reply)

    def map(self, job: Job[Item, Result], items: Iterable[Item], *, ordered: bool = True) -> Iterator[Result]:
        """See :meth:`otpt.workers.Pool.map`."""
        actors = self._start(job)
        schedule: Schedule[Item, Result] = Schedule(items, ordered=ordered)
        with errors_in_words(actors.ray):
            yield from self._map(actors, schedule)

    def _map(self, actors: _Actors, schedule: Schedule[Item, Result]) -> Iterator[Result]:
        most = self._most(actors.ray)
        running: dict[object, tuple[int | None, _ActorHandle]] = {}  # by reference: number of the item, and its actor
        running |= {actor.ready.remote(): (None, actor) for actor in actors.handles}
        idle: deque[_ActorHandle] = deque()  # an actor is in it once for each further item that it may have
        task = schedule.take(UNDELIVERED * most)
        while task is not None or any(number is not None for number, _ in running.values()):
            while task is not None and idle:
                number, item = task
                actor = idle.popleft()
                running[actor.results.remote(item)] = (number, actor)
                task = schedule.take(UNDELIVERED * most)
            if task is not None and len(actors.handles) < most:
                actor = actors.add()
                running[actor.ready.remote()] = (None, actor)
            with redirect_stdout(sys.stderr):  # where Ray may print; the standard output is for results
                (done,), _ = actors.ray.wait(list(running), num_returns=1)
                reply: Reply[list[Result]] | None = actors.ray.get(done)
            finished, actor = running.pop(done)
            if finished is None or reply is None:
                idle.extend([actor] * PENDING)
                continue
            idle.append(actor)
            results = self._replies.read(reply)
            schedule.finish(finished, results)
            yield from schedule.deliver()
            if task is None:
                task = schedule.take(UNDELIVERED * most)

    def close(self) -> None:
        """Release the actors, and the cluster if it was started here."""
        if self._running is not None:
            self._running.close()
        self._job = self._running = None

    def device(self, device: str) -> str:
        """Return the device in an actor, without an index, since each actor sees only its own GPUs."""
        on_gpu = device.startswith("cuda")
        if on_gpu and self.gpus == 0:
            raise OtptError(
                f"Device {device!r} was requested, but actors without a GPU; expected 'gpus' (--ray-gpus) above 0."
            )
        return ("cuda" if self.gpus else "cpu") if device == "auto" or on_gpu else device

    def _start(self, job: Job[Item, Result]) -> _Actors:
        """Return the actors of a job."""
        if self._running is None or self._job is not job:
            self.close()
            device = self.device(job.device)
            threads = self.cpus if job.threads is None else job.threads
            with ExitStack() as stack:
                with quiet_ray() as ray:
                    stack.enter_context(connected(ray, self.address))
                self._check_resources(ray)
                pickled = pickle_job(job, ray.cloudpickle.dumps)
                actors = _Actors(ray, self, (pickled, device, threads, os.getcwd()), stack.pop_all())
            self._job, self._running = job, actors
        return self._running

    def _check_resources(self, ray: ModuleType) -> None:
        """Raise ``OtptError`` if no actor fits; only a cluster of one machine cannot grow."""
        available = ray.cluster_resources()
        for name, wanted in (("CPU", self.cpus), ("GPU", self.gpus)):
            if self.address is None and wanted > available.get(name, 0):
                raise OtptError(
                    f"A Ray actor needs {wanted:g} {name}s, but this machine's Ray has {available.get(name, 0):g}; "
                    "request fewer, or use the address of a larger cluster."
                )

    def _most(self, ray: ModuleType) -> int:
        """Return the maximum number of actors: the given one, or as many as fit."""
        fewest, most = self.actors
        if most is not None:
            return most
        available = ray.cluster_resources()
        by_cpus = available.get("CPU", 0) // self.cpus
        by_gpus = available.get("GPU", 0) // self.gpus if self.gpus else inf
        return max(int(min(by_cpus, by_gpus)), fewest)


class _Actors:
    """Running actors of a job, and the connection to their cluster."""

    def __init__(
        self, ray: ModuleType, pool: RayPool, arguments: tuple[bytes, str, int, str], stack: ExitStack
    ) -> None:
        self.ray = ray
        self.handles: list[_ActorHandle] = []
        self._arguments, self._stack = arguments, stack
        self._class = ray.remote(num_cpus=pool.cpus, num_gpus=pool.gpus, max_restarts=-1, max_task_retries=_RETRIES)(
            WorkerHost
        )
        fewest, _ = pool.actors
        for _ in range(fewest):
            self.add()

    def add(self) -> _ActorHandle:
        """Start another actor."""
        actor = cast(_ActorHandle, self._class.remote(*self._arguments))
        self.handles.append(actor)
        return actor

    def close(self) -> None:
        """End the actors and the connection."""
        with self._stack:
            for actor in self.handles:
                self.ray.kill(actor)
