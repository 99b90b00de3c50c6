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
from typing import Any

import torch

from otpt.errors import OtptError


class WorkerDied(OtptError):
    """A worker process ended before its work was done."""


class WorkerPool:
    """Processes that end with their parent and leave Ctrl-C to it; each starts with the first call that finds none.

    Args:
        workers: number of processes.
        threads: of each process; by default the threads of this process are divided.
        initializer: called in each process before the first call, with ``arguments``.
    """

    def __init__(
        self, workers: int, threads: int | None = None, initializer: Callable[..., None] | None = None, *arguments: Any
    ) -> None:
        self.workers, self.threads = workers, max(threads or torch.get_num_threads() // workers, 1)
        context = multiprocessing.get_context("spawn")
        alive, self._alive = context.Pipe(duplex=False)
        started = alive, self.threads, initializer, arguments
        self._pool = ProcessPoolExecutor(workers, context, _start, started)

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Call a function in one of the processes."""
        if sys.platform == "win32":  # pragma: no cover
            return self._pool.submit(function, *arguments)
        resource_tracker.ensure_running()  # else it starts with the first process, and unblocks the signal
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # for a process that starts here
        try:
            return self._pool.submit(function, *arguments)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def result(self, future: Future[Any]) -> Any:
        """Wait for the result of a call."""
        try:
            return future.result()
        except BrokenProcessPool:
            raise WorkerDied(
                f"One of {self.workers} worker processes ended (too little memory?); repeat the command to continue, "
                "perhaps with fewer --workers."
            ) from None

    def close(self) -> None:
        """End the processes at once, also those that are still at work."""
        self._alive.close()
        self._pool.shutdown()


def _start(
    alive: Connection, threads: int, initializer: Callable[..., None] | None, arguments: tuple[Any, ...]
) -> None:
    threading.Thread(target=_end_with_parent, args=(alive,), daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its workers
    torch.set_num_threads(threads)
    if initializer is not None:
        initializer(*arguments)


def _end_with_parent(alive: Connection) -> None:
    """End this process when its parent closes the other end of the pipe, or dies."""
    with suppress(EOFError, OSError):
        alive.recv()
    os._exit(1)
