"""Which of the missing items a process takes next, so that a thousand processes share a run without a scheduler.

    schedule = Schedule(run, asked, locks)
    while schedule.list_missing():
        for item in schedule.take():   # each is locked
            ...                        # compute and write its shards, then locks.release(item.lock)
        time.sleep(schedule.pause())

All processes see the same list. One that is alone goes through it from the beginning. As soon as it meets an item that
another process has, it goes on at a place of its own, drawn at random, and again at each further one; after some misses
in a row the list is out of date and is read anew. So a run of S shards takes a number of locks that grows with S, not
with S times the number of processes. When all that is left is in the hands of others, it asks ever more rarely.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from otpt.files import process_space
from otpt.runs.locks import Locks
from otpt.runs.run import Run, WorkItem

MISSES = 8
"""Items in a row that others have or had, after which the list is read anew."""
FIRST_PAUSE, LONGER, PATIENCE = 0.5, 1.5, 0.05
"""Pauses while others are at work on all that is left: the first one in seconds, how each grows from the one before,
and the longest as a fraction of the time since the beginning. So a run of seconds is answered at once, and one of days
is seldom listed."""


class Schedule:
    """The items of one process.

    Args:
        asked: data sets, columns and images, as in the configuration of the run.
        locks: of this process.
        seed: decides the places; by default the machine and the process.
        clock: seconds since any moment.
    """

    def __init__(
        self,
        run: Run,
        asked: Sequence[Mapping[str, Any]],
        locks: Locks,
        *,
        seed: int | str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run, self._asked, self._locks = run, asked, locks
        self._clock, self._begun = clock, clock()
        self._draw = random.Random(f"{process_space()} {os.getpid()}" if seed is None else seed)
        self._missing: list[WorkItem] = []
        self._granted = False
        self._wait = FIRST_PAUSE

    def list_missing(self) -> list[WorkItem]:
        """Read the list anew; empty when everything is there."""
        self._missing = self._run.missing(self._asked)
        self._granted = False
        return self._missing

    def take(self) -> Iterator[WorkItem]:
        """Items of the list that this process got, each locked; until the list is done or out of date."""
        items, place, misses = self._missing, 0, 0
        taken: set[int] = set()
        for _ in range(len(items)):
            while place in taken:  # still in the works here, and its lock is granted to its holder again
                place = (place + 1) % len(items)
            item = items[place]
            if self._got(item):
                self._granted, misses = True, 0
                taken.add(place)
                yield item
                place = (place + 1) % len(items)
                continue
            misses += 1
            if misses == MISSES:
                return
            place = self._draw.randrange(len(items))

    def pause(self) -> float:
        """Seconds to wait before the next reading: none as long as there was something to do."""
        if self._granted:
            self._wait = FIRST_PAUSE
            return 0.0
        longest = max(PATIENCE * (self._clock() - self._begun), FIRST_PAUSE)
        now, self._wait = min(self._wait, longest), LONGER * self._wait
        return now

    def _got(self, item: WorkItem) -> bool:
        if not self._run.lacks(item) or not self._locks.take(item.lock):
            return False
        if self._run.lacks(item):
            return True
        self._locks.release(item.lock)  # finished by another process between the two questions
        return False
