"""One thread a picture on the text side: the last digits of a matrix product may depend on how many threads share it.

Measured with MKL: text features of the same classes differ in the last bits between 1, 2 and 3 threads (image features,
in float32, did not). What a picture gets may not depend on how many processes share a machine; so the class texts of a
picture are computed by exactly one thread, and several pictures at a time fill the cores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

_In = TypeVar("_In")
_Out = TypeVar("_Out")


@contextmanager
def single_thread() -> Iterator[None]:
    """Torch operators of this thread run in this thread alone."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class PictureThreads:
    """A pool whose threads each compute with one thread."""

    def __init__(self, count: int) -> None:
        self._pool = ThreadPoolExecutor(count, "otpt-text", torch.set_num_threads, (1,)) if count > 1 else None

    def map(self, work: Callable[[_In], _Out], pictures: Sequence[_In], *, at_once: int) -> list[_Out]:
        """``work`` of each picture, in order, ``at_once`` of them at a time."""
        with single_thread():
            if self._pool is None or len(pictures) == 1 or at_once == 1:
                return [work(picture) for picture in pictures]
            starts = range(0, len(pictures), at_once)
            return [done for start in starts for done in self._pool.map(work, pictures[start : start + at_once])]

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
