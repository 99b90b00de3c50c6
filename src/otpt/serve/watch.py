"""Work that should have stopped: who watches it, and for how long it has gone on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from otpt.threads import cancellable


class Watch:
    """Register of work that stops cooperatively (:func:`otpt.threads.check_cancelled`)."""

    def __init__(self) -> None:
        self._works: dict[int, Callable[[], bool]] = {}  # by a number, whether it should stop
        self._since: dict[int, float] = {}  # when it was first seen that it should
        self._number = 0
        self._lock = threading.Lock()

    @contextmanager
    def cancellable(self, stop: Callable[[], bool]) -> Iterator[None]:
        """Cancel the work in this block once ``stop()`` is true, and count how long it goes on nevertheless."""
        with self._lock:
            self._number += 1
            number = self._number
            self._works[number] = stop
        try:
            with cancellable(stop):
                yield
        finally:
            with self._lock:
                del self._works[number]
                self._since.pop(number, None)

    def overrun(self) -> float:
        """Return for how many seconds work has gone on that should stop, at the resolution of the calls of this."""
        now = time.monotonic()
        with self._lock:
            for number, stop in self._works.items():
                if number not in self._since and stop():
                    self._since[number] = now
            return max((now - since for since in self._since.values()), default=0.0)
