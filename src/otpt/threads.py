"""One thread per piece of work: how many threads there are changes speed, never a bit.

The last digits of a matrix product may depend on how many threads share it: measured, text features differ with MKL
between 1, 2 and 3 threads, and image features do on processors without AVX-512. So whatever decides a number (a chunk
of views in the image tower, the text side of an image) is computed by exactly one thread, and several pieces at a time
fill the cores. It costs nothing on a quiet machine. Beside other busy processes it is much faster than threads within
operators, because no barrier waits for the slowest core.
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
_making = threading.Lock()


def available_threads() -> int:
    """How many threads the caller may fill: torch's number, whether or not :func:`one_thread` holds at the moment.

    In each of several threads of :func:`in_threads` it is one.
    """
    return getattr(_local, "available", None) or torch.get_num_threads()


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch's operators, called from this thread, run in this thread alone."""
    before, outer = torch.get_num_threads(), getattr(_local, "available", None)
    _local.available = available_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
        _local.available = outer


def in_threads(work: Callable[[_In], _Out], items: Sequence[_In], *, at_once: int | None = None) -> list[_Out]:
    """``work`` of each item, in order, each in one thread; ``at_once`` of them at a time (default: all cores)."""
    threads = min(available_threads(), len(items), at_once or len(items))
    if threads <= 1:
        with one_thread():
            return [work(item) for item in items]
    slots = threading.BoundedSemaphore(threads)

    def one(item: _In) -> _Out:
        with slots:
            return work(item)

    return list(_pool(available_threads()).map(one, items))


def _pool(threads: int) -> ThreadPoolExecutor:
    """A pool whose threads each compute with one thread; kept for the life of the process."""
    with _making:
        if threads not in _pools:
            _pools[threads] = _make_pool(threads)
        return _pools[threads]


def _make_pool(threads: int) -> ThreadPoolExecutor:
    begun = threading.Barrier(threads)

    def begin() -> None:
        _local.available = 1
        torch.get_num_threads()  # torch gives a thread that it has not seen yet the process's number: now, not later
        torch.set_num_threads(1)
        begun.wait()

    before = torch.get_num_threads()
    pool = ThreadPoolExecutor(threads, "otpt-one-thread", begin)
    for ready in [pool.submit(int) for _ in range(threads)]:  # each starts a thread, all wait for the last one
        ready.result()
    # set_num_threads also sets what threads begin with that torch has not seen yet: the user's shall find his number.
    torch.set_num_threads(before)
    return pool


if hasattr(os, "register_at_fork"):  # a forked process has the pools, but none of their threads
    os.register_at_fork(after_in_child=_pools.clear)
