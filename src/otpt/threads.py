"""Run each piece of work in exactly one thread, several pieces at a time.

The last digits of a matrix product may depend on how many threads share it: text features differ with MKL between 1, 2
and 3 threads, image features on processors without AVX-512. Everything that decides a number (a chunk of views in the
image tower, the text side of an image) is therefore computed by one thread; several pieces at a time fill the cores. On
a quiet machine this costs nothing; next to other busy processes it is faster than threads within operators, because no
barrier waits for the slowest core.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

_In = TypeVar("_In")
_Out = TypeVar("_Out")

_local = threading.local()
_pools: dict[int, ThreadPoolExecutor] = {}  # by number of threads
_pools_lock = threading.Lock()


def available_threads() -> int:
    """Return the number of threads that the caller may use: torch's number, also within :func:`one_thread`.

    It is one in the worker threads of :func:`in_threads`.
    """
    return getattr(_local, "available", None) or torch.get_num_threads()


class Cancelled(Exception):
    """Raised by :func:`check_cancelled`."""


@contextmanager
def cancellable(stop: Callable[[], bool] | None) -> Iterator[None]:
    """Cancel the work of this block, that of :func:`in_threads` included, once ``stop()`` is true."""
    outer = getattr(_local, "stop", None)
    _local.stop = stop
    try:
        yield
    finally:
        _local.stop = outer


def check_cancelled() -> None:
    """Raise :class:`Cancelled` if the work of this thread was cancelled; called between chunks of long work."""
    stop = getattr(_local, "stop", None)
    if stop is not None and stop():
        raise Cancelled


@contextmanager
def one_thread() -> Iterator[None]:
    """Run torch's operators in the calling thread alone."""
    before, outer = torch.get_num_threads(), getattr(_local, "available", None)
    _local.available = outer or before
    if before > 1:  # set_num_threads also sets the default of new threads, so call it no more than needed
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if before > 1:
            torch.set_num_threads(before)
        _local.available = outer


def in_threads(work: Callable[[_In], _Out], items: Sequence[_In], *, at_once: int | None = None) -> list[_Out]:
    """Apply ``work`` to each item in one thread, ``at_once`` items at a time (default: all cores), in order."""
    threads = min(available_threads(), len(items), at_once or len(items))
    if threads <= 1:
        with one_thread():
            return [work(item) for item in items]
    slots = threading.BoundedSemaphore(threads)
    stop = getattr(_local, "stop", None)

    def one(item: _In) -> _Out:
        with slots, cancellable(stop):
            return work(item)

    return list(_pool(available_threads()).map(one, items))


def _pool(threads: int) -> ThreadPoolExecutor:
    """Return the pool of this size, whose threads each compute with one thread. Pools live as long as the process."""
    with _pools_lock:
        if threads not in _pools:
            _pools[threads] = make_pool(threads, "otpt-one-thread")
        return _pools[threads]


def make_pool(threads: int, name: str) -> ThreadPoolExecutor:
    """Return a new pool whose threads each compute with one thread."""
    started = threading.Barrier(threads)

    def start() -> None:
        _local.available = 1
        torch.get_num_threads()  # a new thread first takes the process's number: now, not at its first operator
        torch.set_num_threads(1)
        started.wait()

    before = torch.get_num_threads()
    pool = ThreadPoolExecutor(threads, name, start)
    for ready in [pool.submit(int) for _ in range(threads)]:  # each submit starts a thread; all wait for the last
        ready.result()
    torch.set_num_threads(before)  # restores the default of new threads, which the workers have set to one
    return pool


def _after_fork() -> None:
    """Forget the pools, whose threads do not exist here, and let torch replace its own pool.

    Torch replaces it at the first ``set_num_threads`` in the child, without a lock: another thread that sets its number
    or runs its first operator meanwhile fails with "Invalid thread pool!" or aborts the process. At this moment the
    child has one thread.
    """
    _pools.clear()
    torch.set_num_threads(torch.get_num_threads())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
