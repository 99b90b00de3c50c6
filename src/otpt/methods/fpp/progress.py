"""A line on the error stream now and then, while something slow is prepared."""

from __future__ import annotations

import sys
import time

_FIRST, _NEXT = 10.0, 60.0
"""Seconds until the first line, and between lines."""


class SlowLines:
    """Says how far something is; silent if it is quick."""

    def __init__(self, what: str, steps: int) -> None:
        self._what, self._steps = what, steps
        self._began = time.monotonic()
        self._due = self._began + _FIRST

    def __call__(self, done: int) -> None:
        """``done`` steps are done."""
        now = time.monotonic()
        if now < self._due:
            return
        self._due = now + _NEXT
        left = (now - self._began) / done * (self._steps - done) / 60
        sys.stderr.write(f"{self._what}: step {done} of {self._steps}, about {left:.1f} min left\n")
        sys.stderr.flush()
