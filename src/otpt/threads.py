"""Parallel work in which each item is computed by a single thread.

The last digits of a matrix product may depend on its number of threads: with MKL, text features differ between 1, 2 and
3 threads; on processors without AVX-512, image features differ too. Reproducible results therefore require one thread
per item (a chunk of views, the texts of an image) and several items in parallel. This is as fast as threads within
operators on an idle machine, and faster on a busy one, because no barrier waits for the slowest core.

What changes in the program around it: ``torch.set_num_threads`` sets the number of threads of the calling thread and
the default of threads that have not used torch yet. :func:`one_thread` sets both to 1 and then back, and the pools of
this module consist of threads that stay at 1. Threads of the program that already use torch keep their number. A thread
that uses torch for the first time meanwhile starts with one thread and keeps it until it calls
``torch.set_num_threads`` itself. To avoid this, use torch once in each thread before the first prediction
(``torch.get_num_threads()`` is enough), call predictions from a thread of :func:`make_pool`, whose number is 1 already
and never changed, or run them in a process of their own.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
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
    """Return the number of threads that the caller may use.

    This is torch's number outside :func:`one_thread`, and 1 in the worker threads of :func:`in_threads`.
    """
    return getattr(_local, "available", None) or torch.get_num_threads()


class Cancelled(Exception):
    """Exception raised by :func:`check_cancelled`."""


@contextmanager
def cancellable(stop: Callable[[], bool] | None) -> Iterator[None]:
    """Cancel the work in this block, including :func:`in_threads`, as soon as ``stop()`` returns True."""
    outer = getattr(_local, "stop", None)
    _local.stop = stop
    try:
        yield
    finally:
        _local.stop = outer


def check_cancelled() -> None:
    """Raise :class:`Cancelled` if the work of this thread is cancelled; called between chunks of long work."""
    stop = getattr(_local, "stop", None)
    if stop is not None and stop():
        raise Cancelled


def cancellable_loop(items: Iterable[_In]) -> Iterator[_In]:
    """Yield the items and call :func:`check_cancelled` before each: for loops over steps whose number is a setting."""
    for item in items:
        check_cancelled()
        yield item


@contextmanager
def one_thread() -> Iterator[None]:
    """Run torch operators in the calling thread only."""
    before, outer = torch.get_num_threads(), getattr(_local, "available", None)
    _local.available = outer or before
    if before > 1:  # avoid needless calls: set_num_threads also changes the default of new threads
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if before > 1:
            torch.set_num_threads(before)
        _local.available = outer


def in_threads(work: Callable[[_In], _Out], items: Sequence[_In], *, at_once: int | None = None) -> list[_Out]:
    """Return ``work(item)`` for each item, in order; one thread per item, at most ``at_once`` items in parallel."""
    threads = min(available_threads(), len(items), at_once or len(items))
    if threads <= 1:
        with one_thread():
            return [work(item) for item in cancellable_loop(items)]
    slots = threading.BoundedSemaphore(threads)
    stop = getattr(_local, "stop", None)

    def one(item: _In) -> _Out:
        with slots, cancellable(stop):
            check_cancelled()
            return work(item)

    return list(_pool(available_threads()).map(one, items))


def _pool(threads: int) -> ThreadPoolExecutor:
    """Return the shared pool of this size, which lives as long as the process."""
    with _pools_lock:
        if threads not in _pools:
            _pools[threads] = make_pool(threads, "otpt-one-thread")
        return _pools[threads]


def make_pool(threads: int, name: str) -> ThreadPoolExecutor:
    """Return a new pool of threads that each run torch operators in one thread."""
    started = threading.Barrier(threads)

    def start() -> None:
        _local.available = 1
        torch.get_num_threads()  # initialise this thread's number first, else its first operator would overwrite ours
        torch.set_num_threads(1)
        started.wait()

    before = torch.get_num_threads()
    pool = ThreadPoolExecutor(threads, name, start)
    for ready in [pool.submit(int) for _ in range(threads)]:  # each submit starts a thread, which waits at the barrier
        ready.result()
    torch.set_num_threads(before)  # restore the default of new threads, which the workers set to 1
    return pool


def _after_fork() -> None:
    """Discard the pools, whose threads do not survive a fork, and let torch replace its own pool.

    Torch replaces its pool, without a lock, at the first ``set_num_threads`` in the child. A thread that calls
    ``set_num_threads`` or runs its first operator at the same time fails with "Invalid thread pool!" or aborts the
    process, so the call is made here, while the child has only one thread.
    """
    _pools.clear()
    torch.set_num_threads(torch.get_num_threads())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
