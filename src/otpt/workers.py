"""Worker pools: this process, several processes of this machine, or those of a plugin.

A :class:`Job` makes workers; a worker maps a stream of items to a stream of results, lazily and in order. A pool maps
items over its workers as a single worker would do it::

    with get_pool("processes", workers=4) as pool:
        facts = pool.facts(job)                   # what determines the results, from a machine that computes
        for result in pool.map(job, items):       # in order, a few items ahead
            ...

The results of an item must not depend on the items before it, because any worker may get it. An installed package adds
a pool by an entry point of the group ``otpt.pools``, which names a function that returns it::

    [project.entry-points."otpt.pools"]
    mine = "my_package:MyPool"
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from inspect import signature
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from typing import Generic, ParamSpec, Protocol, Self, TypeVar, runtime_checkable

import torch

from otpt.backbones import available_devices
from otpt.errors import OtptError
from otpt.files import Json
from otpt.plugins import installed_plugins, load_entry_point, load_plugin

POOLS = "otpt.pools"
"""Group of entry points that name pools."""
PENDING = 2
"""Number of items that a worker has at a time: one in progress and one waiting."""
UNDELIVERED = 8
"""Number of items per worker that are read before the first of their results is taken."""

Facts = Mapping[str, Json]
"""What determines the results of a worker, as plain data."""

Item = TypeVar("Item")
Result = TypeVar("Result")
_ItemIn = TypeVar("_ItemIn", contravariant=True)
_ResultOut = TypeVar("_ResultOut", covariant=True)
_Arguments = ParamSpec("_Arguments")


class Worker(Protocol[_ItemIn, _ResultOut]):
    """What computes, with everything loaded that it needs."""

    def facts(self) -> Facts:
        """Return the facts that determine the results."""

    def __call__(self, items: Iterable[_ItemIn]) -> Iterator[_ResultOut]:
        """Yield the results of the items lazily and in order; an item may have any number of results."""


class Job(Protocol[_ItemIn, _ResultOut]):
    """How to make a worker, in any process. Pools for other processes pickle it."""

    @property
    def device(self) -> str:
        """Device that was asked for, such as "auto"."""

    @property
    def threads(self) -> int | None:
        """Number of threads of each worker; None for a share of the machine's."""

    def make_worker(self, device: str, threads: int | None) -> Worker[_ItemIn, _ResultOut]:
        """Return a worker on a device, with a number of threads."""


@runtime_checkable
class Pool(Protocol):
    """Workers, started when a job needs them; a context manager.

    Attributes:
        inline: whether the workers are in this process, so that jobs and items are not pickled.
    """

    @property
    def inline(self) -> bool: ...

    def facts(self, job: Job[Item, Result]) -> Facts:
        """Start workers for a job if there are none, and return the facts of the first one."""

    def map(self, job: Job[Item, Result], items: Iterable[Item], *, ordered: bool = True) -> Iterator[Result]:
        """Yield the results of all items lazily.

        Warnings of workers are repeated in this process, each once, and the first :class:`OtptError` of a worker is
        raised here.

        Args:
            job: makes the workers; those of the last call are used again if it is the same object.
            items: read a limited number ahead.
            ordered: yield the results in the order of the items; otherwise, as workers finish them.
        """

    def close(self) -> None:
        """End the workers at once. The pool may be used again."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


class Closing:
    """Context manager that closes."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release everything."""


class PluginFiles(tuple[Path, ...]):
    """Files of plugins that a job needs in other processes.

    Unpickling loads them. As the first field of a job they are there before its methods, which refer to them.
    """

    __slots__ = ()

    def __reduce__(self) -> tuple[Callable[[tuple[Path, ...]], PluginFiles], tuple[tuple[Path, ...]]]:
        return _load_plugins, (tuple(path.absolute() for path in self),)


def _load_plugins(paths: tuple[Path, ...]) -> PluginFiles:
    for path in paths:
        load_plugin(path)
    return PluginFiles(paths)


# ---- this process ---------------------------------------------------------------------------------------------------


class InlinePool(Closing):
    """One worker in this process."""

    inline = True

    def __init__(self) -> None:
        self._job: object = None
        self._worker: object = None

    def facts(self, job: Job[Item, Result]) -> Facts:
        """See :meth:`Pool.facts`."""
        return self.worker(job).facts()

    def map(self, job: Job[Item, Result], items: Iterable[Item], *, ordered: bool = True) -> Iterator[Result]:
        """See :meth:`Pool.map`."""
        return self.worker(job)(items)

    def worker(self, job: Job[Item, Result]) -> Worker[Item, Result]:
        """Return the worker of a job."""
        if self._job is not job or self._worker is None:
            self.close()
            self._job, self._worker = job, job.make_worker(job.device, job.threads)
        worker: Worker[Item, Result] = self._worker  # type: ignore[assignment]
        return worker

    def close(self) -> None:
        """Release the worker."""
        self._job = self._worker = None


# ---- for pools of other processes -----------------------------------------------------------------------------------


class Schedule(Generic[Item, Result]):
    """Items on their way through a pool, numbered: taken by a worker, finished, delivered."""

    def __init__(self, items: Iterable[Item], *, ordered: bool = True) -> None:
        self._waiting = enumerate(items)
        self._repeated: deque[tuple[int, Item]] = deque()
        self._taken: dict[int, Item] = {}
        self._finished: dict[int, Sequence[Result]] = {}
        self._delivered = 0
        self._ordered = ordered

    def take(self, limit: int) -> tuple[int, Item] | None:
        """Return the number of the next item and the item; None at the end, or if ``limit`` are undelivered."""
        if self._repeated:
            number, item = self._repeated.popleft()
        else:
            if len(self._taken) + len(self._finished) >= limit:
                return None
            task = next(self._waiting, None)
            if task is None:
                return None
            number, item = task
        self._taken[number] = item
        return number, item

    def finish(self, number: int, results: Sequence[Result]) -> None:
        """Store the results of an item."""
        del self._taken[number]
        self._finished[number] = results

    def repeat(self) -> None:
        """Put all items that workers have back, because their results are lost."""
        self._repeated.extend(sorted(self._taken.items(), key=lambda task: task[0]))
        self._taken.clear()

    def deliver(self) -> Iterator[Result]:
        """Yield the results whose turn it is."""
        while self._finished:
            number = self._delivered if self._ordered else next(iter(self._finished))
            if number not in self._finished:
                return
            self._delivered += 1
            yield from self._finished.pop(number)


@dataclass(frozen=True)
class Reply(Generic[Result]):
    """What a worker in another process returns.

    Attributes:
        result: None after an error.
        error: the user's mistake that ended the work.
        warnings: texts of the warnings meanwhile.
    """

    result: Result | None
    error: OtptError | None = None
    warnings: Sequence[str] = ()


@dataclass
class Replies:
    """Reader of replies. It repeats each warning once."""

    _warned: set[str] = field(default_factory=set)

    def read(self, reply: Reply[Result]) -> Result:
        """Return the result of a reply, repeating its warnings and raising its error."""
        for text in reply.warnings:
            if text not in self._warned:
                self._warned.add(text)
                warnings.warn(text, stacklevel=3)
        if reply.error is not None:
            raise reply.error
        assert reply.result is not None
        return reply.result


class WorkerHost:
    """Holder of a worker in another process. It makes the worker at the first call, so that an error is a reply.

    Args:
        pickled: the pickled job, see :func:`pickle_job`.
        device: device of the worker.
        threads: number of threads of the worker.
        folder: where relative paths begin, if the machine has it.
    """

    def __init__(self, pickled: bytes, device: str, threads: int, folder: str) -> None:
        self._pickled, self._device, self._threads = pickled, device, threads
        if os.path.isdir(folder):
            os.chdir(folder)

    def ready(self) -> None:
        """Return once the process has started."""

    def facts(self) -> Reply[Facts]:
        """Return the facts of the worker."""
        return self._reply(lambda worker: worker.facts())

    def results(self, item: object) -> Reply[list[object]]:
        """Return the results of an item."""
        return self._reply(lambda worker: list(worker([item])))

    @cached_property
    def _worker(self) -> Worker[object, object]:
        job: Job[object, object] = pickle.loads(self._pickled)
        return job.make_worker(self._device, self._threads)

    def _reply(self, work: Callable[[Worker[object, object]], Result]) -> Reply[Result]:
        torch.set_num_threads(max(self._threads, 1))  # here, since calls may come from different threads
        result: Result | None = None
        error: OtptError | None = None
        with warnings.catch_warnings(record=True) as warned:
            try:
                result = work(self._worker)
            except OtptError as problem:
                error = problem
            except (AttributeError, ImportError, KeyError, pickle.UnpicklingError) as problem:
                if "_worker" in vars(self):
                    raise  # not while the worker is made
                reason = f"{type(problem).__name__}: {problem}"
                error = OtptError(
                    f"A worker in another process cannot be made ({reason}); functions of your own must be in a file "
                    "that it can import, or in a plugin."
                )
        return Reply(result, error, [str(warning.message) for warning in warned])


def pickle_job(job: Job[Item, Result], dumps: Callable[[object], bytes] = pickle.dumps) -> bytes:
    """Return a job as bytes for other processes."""
    try:
        return dumps(job)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise OtptError(f"The job cannot be sent to other processes ({error}); use one process.") from None


# ---- processes of this machine --------------------------------------------------------------------------------------


class WorkerDied(OtptError):
    """Error raised when a worker process ends unexpectedly."""


class ProcessPool(Closing):
    """Processes of this machine: one per GPU, or any number on the CPU.

    After the death of a process, which often means too little memory, the work goes on with one process fewer.

    Args:
        workers: number of processes; one per device or GPU by default.
        devices: devices of the processes in turn; the job's device by default.
    """

    inline = False

    def __init__(self, workers: int | None = None, devices: Sequence[str] | None = None) -> None:
        if workers is None:
            workers = max(len(devices or _gpus()), 1)
        if workers < 1:
            raise OtptError(f"The number of workers is {workers}; expected 1 or more.")
        self.workers = workers
        self.devices = devices
        self._job: object = None
        self._processes: _Processes | None = None
        self._replies = Replies()

    def facts(self, job: Job[Item, Result]) -> Facts:
        """See :meth:`Pool.facts`. All processes start, so that they load what they need at the same time."""
        while True:
            processes = self._start(job)
            try:
                calls = [processes.submit(_facts) for _ in range(processes.workers)]
                facts = [self._replies.read(call.result()) for call in calls]
            except BrokenProcessPool:
                self._restart()
            else:
                return facts[0]

    def map(self, job: Job[Item, Result], items: Iterable[Item], *, ordered: bool = True) -> Iterator[Result]:
        """See :meth:`Pool.map`."""
        schedule: Schedule[Item, Result] = Schedule(items, ordered=ordered)
        running: dict[Future[Reply[list[Result]]], int] = {}
        try:
            while True:
                processes = self._start(job)
                try:
                    self._submit(processes, schedule, running)
                    finished, _ = wait(running, return_when=FIRST_COMPLETED)
                    for call in finished:
                        results = self._replies.read(call.result())
                        schedule.finish(running.pop(call), results)
                except BrokenProcessPool:
                    self._restart()
                    schedule.repeat()
                    running.clear()
                    continue
                yield from schedule.deliver()
                if not finished:
                    return
        finally:
            for call in running:
                call.cancel()

    def close(self) -> None:
        """End the processes at once, also busy ones."""
        if self._processes is not None:
            self._processes.close()
        self._job = self._processes = None

    def _submit(
        self,
        processes: _Processes,
        schedule: Schedule[Item, Result],
        running: dict[Future[Reply[list[Result]]], int],
    ) -> None:
        """Keep all processes busy."""
        while len(running) < PENDING * processes.workers:
            task = schedule.take(UNDELIVERED * processes.workers)
            if task is None:
                return
            number, item = task
            call: Future[Reply[list[Result]]] = processes.submit(_results, item)
            running[call] = number

    def _start(self, job: Job[Item, Result]) -> _Processes:
        """Return the processes of a job."""
        if self._processes is None or self._job is not job:
            self.close()
            self._processes = _Processes(job, self.workers, self.devices)
            self._job = job
        return self._processes

    def _restart(self) -> None:
        """Start the processes again, one fewer."""
        assert self._processes is not None
        self._processes.close()
        if self._processes.workers == 1:
            workers, self._processes = self.workers, None
            raise WorkerDied(
                f"One of {workers} worker processes ended unexpectedly, possibly out of memory; repeat the command to "
                "continue, or use fewer --workers."
            )
        self._processes = self._processes.one_fewer()


class _Processes:
    """Running processes of a job, which ignore Ctrl-C and end with their parent."""

    def __init__(self, job: Job[Item, Result], workers: int, devices: Sequence[str] | None) -> None:
        threads = job.threads
        if threads is None:
            threads = max(torch.get_num_threads() // workers, 1)
        self._pickled = pickle_job(job)
        self._devices = list(devices or [job.device])
        self._threads = threads
        self._open(workers)

    def _open(self, workers: int) -> None:
        self.workers = workers
        context = multiprocessing.get_context("spawn")
        devices = context.SimpleQueue()
        for number in range(workers):
            devices.put(self._devices[number % len(self._devices)])
        alive, self._alive = context.Pipe(duplex=False)
        arguments = alive, self._pickled, devices, self._threads, os.getcwd()
        self._executor = ProcessPoolExecutor(workers, context, _start, arguments)

    def one_fewer(self) -> Self:
        """Start again with one process fewer."""
        self._open(self.workers - 1)
        return self

    def submit(
        self, function: Callable[_Arguments, Result], *arguments: _Arguments.args, **keywords: _Arguments.kwargs
    ) -> Future[Result]:
        """Schedule a call in one of the processes."""
        if sys.platform == "win32":  # pragma: no cover
            return self._executor.submit(function, *arguments, **keywords)
        resource_tracker.ensure_running()  # starting it later would unblock the signal
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # inherited by a process started here
        try:
            return self._executor.submit(function, *arguments, **keywords)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def close(self) -> None:
        """Terminate the processes, including busy ones."""
        self._alive.close()
        self._executor.shutdown()


_host: list[WorkerHost] = []
"""The worker of a process of a pool."""


def _start(alive: Connection, pickled: bytes, devices: SimpleQueue[str], threads: int, folder: str) -> None:
    threading.Thread(target=_end_with_parent, args=(alive,), daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent terminates its workers
    _host.append(WorkerHost(pickled, devices.get(), threads, folder))


def _end_with_parent(alive: Connection) -> None:
    """Exit when the parent closes the other end of the pipe or dies."""
    with suppress(EOFError, OSError):
        alive.recv()
    os._exit(1)


def _facts() -> Reply[Facts]:
    return _host[0].facts()


def _results(item: Item) -> Reply[list[Result]]:
    return _host[0].results(item)  # type: ignore[return-value]


# ---- by name --------------------------------------------------------------------------------------------------------

_BUILT_IN: dict[str, Callable[..., Pool]] = {"inline": InlinePool, "processes": ProcessPool}


def pool_names() -> list[str]:
    """Return the names of the pools: built-in and installed ones."""
    return [*_BUILT_IN, *(point.name for point in installed_plugins(POOLS))]


def get_pool(name: str, **options: object) -> Pool:
    """Return a pool by name.

    Args:
        name: "inline", "processes", or the name that an installed package gives to its pool.
        options: keywords of the pool, such as ``workers=4`` of "processes".

    Example:
        >>> get_pool("processes", workers=2).workers
        2
    """
    factory = _BUILT_IN.get(name)
    if factory is None:
        load: Callable[..., Pool] = load_entry_point(POOLS, "pool", name, pool_names())
        factory = load
    try:
        signature(factory).bind(**options)
    except TypeError as error:
        raise OtptError(f"The pool {name!r} has other options ({error}).") from None
    return factory(**options)


def local_pool(workers: int | None, device: str = "auto") -> InlinePool | ProcessPool:
    """Return this process or several of this machine.

    Args:
        workers: number of processes; None for one, or one per GPU if there are several.
        device: "auto" and "cuda" use all GPUs.
    """
    gpus = _gpus()
    use_all = len(gpus) > 1 and device in {"auto", "cuda"}
    if workers is None:
        workers = len(gpus) if use_all else 1
    return InlinePool() if workers == 1 else ProcessPool(workers, gpus if use_all else None)


def _gpus() -> list[str]:
    return [name for name in available_devices() if name.startswith("cuda:")]
