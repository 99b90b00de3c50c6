"""Worker processes on this machine, for evaluation and bulk prediction."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from typing import TypeVar, TypeVarTuple

import torch

from otpt.errors import OtptError

_Result = TypeVar("_Result")
_Arguments = TypeVarTuple("_Arguments")


class WorkerDied(OtptError):
    """Error raised when a worker process ends unexpectedly."""


class WorkerPool:
    """Pool of processes that ignore Ctrl-C and end with their parent; processes are started on demand.

    Args:
        workers: number of processes.
        threads: number of torch threads per process; by default, an equal share of this process's threads.
        initializer: function called with ``arguments`` at the start of each process.
    """

    def __init__(
        self,
        workers: int,
        threads: int | None = None,
        initializer: Callable[[*_Arguments], None] | None = None,
        *arguments: *_Arguments,
    ) -> None:
        self.workers, self.threads = workers, max(threads or torch.get_num_threads() // workers, 1)
        context = multiprocessing.get_context("spawn")
        alive, self._alive = context.Pipe(duplex=False)
        started = alive, self.threads, initializer, arguments
        self._pool = ProcessPoolExecutor(workers, context, _start, started)

    def submit(self, function: Callable[[*_Arguments], _Result], *arguments: *_Arguments) -> Future[_Result]:
        """Schedule a call in one of the processes and return its future."""
        if sys.platform == "win32":  # pragma: no cover
            return self._pool.submit(function, *arguments)
        resource_tracker.ensure_running()  # starting it later would unblock the signal
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # inherited by a process started here
        try:
            return self._pool.submit(function, *arguments)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def result(self, future: Future[_Result]) -> _Result:
        """Return the result of a call; raise :class:`WorkerDied` if its process ended."""
        try:
            return future.result()
        except BrokenProcessPool:
            raise WorkerDied(
                f"One of {self.workers} worker processes ended unexpectedly, possibly out of memory; repeat the "
                "command to continue, or use fewer --workers."
            ) from None

    def close(self) -> None:
        """Terminate the processes immediately, including busy ones."""
        self._alive.close()
        self._pool.shutdown()


def _start(
    alive: Connection, threads: int, initializer: Callable[..., None] | None, arguments: tuple[object, ...]
) -> None:
    threading.Thread(target=_end_with_parent, args=(alive,), daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent terminates its workers
    torch.set_num_threads(threads)
    if initializer is not None:
        initializer(*arguments)


def _end_with_parent(alive: Connection) -> None:
    """Exit when the parent closes the other end of the pipe or dies."""
    with suppress(EOFError, OSError):
        alive.recv()
    os._exit(1)
