"""The actors of ``otpt predict``."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, redirect_stdout
from functools import cached_property
from typing import Protocol, TypeVar, cast

import numpy as np
import numpy.typing as npt
import torch

from otpt.bulk import Answer, ClassifierJob, Item, Worker, chunks
from otpt.errors import OtptError
from otpt.evaluation.ray import RayEngine, connected, errors_in_words, quiet_ray
from otpt.files import Json

_RETRIES = 20
"""Actors that may die on the same images before the prediction ends."""

Column = npt.NDArray[np.generic] | Sequence[object]
"""Column of a batch of Ray Data."""

_Result = TypeVar("_Result")
Reply = tuple[_Result | None, str]
"""Result of an actor, or None and its error message."""


class _RemoteMethod(Protocol):
    def remote(self, *arguments: object) -> object:
        """Return a reference to the result, which is hashable."""


class _ActorHandle(Protocol):
    """Handle of an :class:`_Actor`."""

    @property
    def ready(self) -> _RemoteMethod: ...
    @property
    def facts(self) -> _RemoteMethod: ...
    @property
    def answer(self) -> _RemoteMethod: ...


class RayActors:
    """Workers on a Ray cluster; see :class:`otpt.bulk.Workers`.

    An actor or a machine that dies is replaced, and its images are predicted again.
    """

    def __init__(self, job: ClassifierJob, engine: RayEngine, threads: int | None = None) -> None:
        self._stack = ExitStack()
        with quiet_ray("ray.data") as ray:
            self._stack.enter_context(connected(ray, engine.address))
        self._ray = ray
        engine.check_resources(ray)
        threads = engine.cpus if threads is None else threads
        self._job = job
        self._arguments = (job, engine.device(job.device), threads, os.getcwd())
        self._actor = ray.remote(
            num_cpus=engine.cpus, num_gpus=engine.gpus, max_restarts=-1, max_task_retries=_RETRIES
        )(_Actor)
        here = ray.cluster_resources()
        fit = min(here.get("CPU", 0) // engine.cpus, here.get("GPU", 0) // engine.gpus if engine.gpus else np.inf)
        fewest, most = engine.actors
        self._most = most or max(int(fit), fewest)
        self._actors = [self._new_actor() for _ in range(fewest)]

    def _new_actor(self) -> _ActorHandle:
        return cast(_ActorHandle, self._actor.remote(*self._arguments))

    def facts(self) -> dict[str, Json]:
        """See :meth:`otpt.bulk.Worker.facts`; the machine that computes decides them."""
        with errors_in_words(self._ray):
            reply: Reply[dict[str, Json]] = self._ray.get(self._actors[0].facts.remote())
        return _unwrap(reply)

    def __call__(self, images: Iterable[Item]) -> Iterator[Answer]:
        """Yield the answers in order."""
        with errors_in_words(self._ray):
            yield from self._answers(chunks(images, self._job))

    def _answers(self, waiting: Iterator[list[Item]]) -> Iterator[Answer]:
        get, wait = self._ray.get, self._ray.wait
        running: dict[object, tuple[int | None, _ActorHandle]] = {}  # by reference: number of the chunk, and its actor
        running |= {actor.ready.remote(): (None, actor) for actor in self._actors}
        idle: deque[_ActorHandle] = deque()  # an actor is in it once for each of two chunks that it may have
        finished: dict[int, list[Answer]] = {}
        sent = answered = 0
        chunk = next(waiting, None)
        while chunk is not None or answered < sent:
            while chunk is not None and idle and sent - answered < 8 * self._most:
                actor = idle.popleft()
                running[actor.answer.remote(chunk)] = (sent, actor)
                sent += 1
                chunk = next(waiting, None)
            if chunk is not None and not idle and len(self._actors) < self._most:
                actor = self._new_actor()
                self._actors.append(actor)
                running[actor.ready.remote()] = (None, actor)
            with redirect_stdout(sys.stderr):  # where Ray may print; the standard output is for answers
                (done,), _ = wait(list(running), num_returns=1)
                reply: Reply[list[Answer]] = get(done)
            number, actor = running.pop(done)
            idle.append(actor)
            if number is None:
                idle.append(actor)
                continue
            finished[number] = _unwrap(reply)
            while answered in finished:
                yield from finished.pop(answered)
                answered += 1

    def close(self) -> None:
        """Release the actors, and the cluster if it was started here."""
        for actor in self._actors:
            self._ray.kill(actor)
        self._stack.close()


class _Actor:
    """A worker in an actor. It loads the model at the first call, so that an error is an answer."""

    def __init__(self, job: ClassifierJob, device: str, threads: int, folder: str) -> None:
        self._job, self._device, self._threads = job, device, threads
        if os.path.isdir(folder):
            os.chdir(folder)  # relative paths begin there

    @cached_property
    def _worker(self) -> Worker:
        return Worker(self._job, self._device, self._threads)

    def ready(self) -> None:
        """Return once the actor has started."""

    def facts(self) -> Reply[dict[str, Json]]:
        """See :meth:`otpt.bulk.Worker.facts`."""
        return self._reply(Worker.facts)

    def answer(self, images: Sequence[Item]) -> Reply[list[Answer]]:
        """See :meth:`otpt.bulk.Worker.answer`."""
        return self._reply(lambda worker: worker.answer(images))

    def _reply(self, work: Callable[[Worker], _Result]) -> Reply[_Result]:
        """Return the result of the worker, or its error message."""
        torch.set_num_threads(max(self._threads, 1))  # here, since Ray may call from another thread than before
        try:
            return work(self._worker), ""
        except OtptError as error:
            return None, str(error)


def _unwrap(reply: Reply[_Result]) -> _Result:
    """Return the result of an actor, or raise its error."""
    result, error = reply
    if error:
        raise OtptError(error)
    return cast(_Result, result)
