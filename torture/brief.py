"""A few cases of each part that needs the shim, in one process: what the tests run, and ``torture.inside`` can."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

from torture import concurrency, disks, kills
from torture.bench import Bench
from torture.records import Outcome, PartOptions

CHOSEN = (
    (kills, "at every write: plain", 8),
    (kills, "at every write: cached", 4),
    (kills, "at a write: stream, 2 side by side", 2),
    (kills, "at a write: plain, 2 workers", 1),
    (disks, "full disk: plain", 3),
    (disks, "full disk: cached", 3),
    (disks, "a read that fails: plain", 4),
    (disks, "no hard links: plain", 1),
    (disks, "clock jump: cached", 1),
    (disks, "damaged shard", 15),
    (disks, "damaged cache entry", 15),
    (disks, "damaged configuration", 15),
    (disks, "damaged calibration", 15),
    (concurrency, "overlapping commands", 1),
    (concurrency, "overlapping commands in threads", 1),
    (concurrency, "eviction while others read", 1),
    (concurrency, "another version at the same time", 1),
)
"""(part, kind, how many)."""


def cases(options: PartOptions, bench: Bench) -> Iterator[Outcome]:
    """All of them."""
    for part, kind, number in CHOSEN:
        yield from islice(part.cases(replace(options, kind=kind), bench), number)
