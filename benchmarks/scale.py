"""A hundred million images on a thousand machines, simulated: ``python -m benchmarks.scale [--workers W]``.

The run folder, the naming of its shards, the locks and the schedule are the real ones; the clock and the file system
are not. Every operation of that file system takes time; some fail, which ends the process; what was written appears in
listings only later, and in any order, while a question for one file is answered truly. Machines differ in speed, some
are slow, and processes are killed in the middle of a shard; both are started again after a while.

What must hold, and is checked: no shard is lost; none is computed twice but those of processes that ended early; the
number of locks asked for grows with the shards, not with shards times workers; the run ends soon after its slowest
shard could. The last lines show that listing and planning are linear in the number of shards.
"""

from __future__ import annotations

import argparse
import errno
import heapq
import random
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from otpt.runs.locks import LockFile, Locks
from otpt.runs.schedule import MISSES, Schedule

from otpt.errors import OtptError
from otpt.files import Disk
from otpt.runs.run import Run, WorkItem

SECONDS_PER_IMAGE = 0.1
RESTART_SECONDS = 120.0


@dataclass(frozen=True)
class Conditions:
    """What is simulated.

    Attributes:
        killed: probability that a process is killed during a shard.
        failing: probability that an operation of the file system fails.
        latency: mean seconds of an operation.
        hidden: longest time until a listing shows what was written.
        slow: fraction of machines that are five times as slow.
    """

    images: int = 100_000_000
    workers: int = 1000
    shard_size: int = 20_000
    killed: float = 0.01
    failing: float = 1e-5
    latency: float = 0.005
    hidden: float = 60.0
    slow: float = 0.01
    seed: int = 0


@dataclass
class World:
    """What all processes share, and what they did."""

    conditions: Conditions
    draw: random.Random
    now: float = 0.0
    visible: dict[Path, dict[str, float]] = field(default_factory=dict)
    held: dict[int, int] = field(default_factory=dict)
    computed: Counter[int] = field(default_factory=Counter)
    asked: int = 0
    listings: int = 0
    operations: int = 0
    killed: int = 0
    failed: int = 0
    longest: float = 0.0

    def operation(self) -> None:
        """One call over the network."""
        self.operations += 1
        self.now += self.draw.expovariate(1 / self.conditions.latency)
        if self.draw.random() < self.conditions.failing:
            raise OSError(errno.EIO, "the server did not answer")


class FakeDisk(Disk):
    """A slow and lossy server."""

    def __init__(self, world: World) -> None:
        self._world = world

    def names(self, folder: Path) -> list[str]:
        """Those that have become visible, in any order."""
        self._world.operation()
        self._world.listings += 1
        found = [name for name, since in self._world.visible.get(folder, {}).items() if since <= self._world.now]
        return found[len(found) // 2 :] + found[: len(found) // 2]

    def exists(self, path: Path) -> bool:
        """The truth."""
        self._world.operation()
        return path.name in self._world.visible.get(path.parent, {})

    def write(self, path: Path, data: bytes) -> None:
        """There at once, listed later."""
        self._world.operation()
        later = self._world.now + self._world.draw.uniform(0, self._world.conditions.hidden)
        self._world.visible.setdefault(path.parent, {}).setdefault(path.name, later)


class FakeLocks(LockFile):
    """Locks that end with their process."""

    def __init__(self, world: World, process: int) -> None:
        self._world, self._process = world, process

    def lock(self, number: int) -> None:
        """``OSError`` if another process has it."""
        self._world.operation()
        self._world.asked += 1
        if self._world.held.setdefault(number, self._process) != self._process:
            raise OSError(errno.EAGAIN, "locked")

    def unlock(self, number: int) -> None:
        """Let it go."""
        self._world.held.pop(number, None)

    def close(self) -> None:
        """Let all go."""
        self._world.held = {number: own for number, own in self._world.held.items() if own != self._process}


def work(world: World, run: Run, locks: Locks, process: int, speed: float) -> Iterator[float]:
    """A process: what :class:`otpt.evaluation.LocalEngine` does; yields the seconds that it computes or waits."""
    schedule = Schedule(run, run.datasets, locks, seed=process, clock=lambda: world.now)
    while schedule.list_missing():
        for item in schedule.take():
            seconds = item.images * SECONDS_PER_IMAGE / speed
            world.longest = max(world.longest, seconds)
            if world.draw.random() < world.conditions.killed:
                yield seconds * world.draw.random()
                world.killed += 1
                raise ProcessLookupError
            yield seconds
            world.computed[item.first] += 1
            for path in shards(run, item):
                run.files.write(path, b"")
            locks.release(item.lock)
        yield schedule.pause()


def shards(run: Run, item: WorkItem) -> list[Path]:
    """The files of an item, as the run names them."""
    return [run.shard_path(item.dataset, item.seed, column, item.first, item.stop) for column in item.columns]


def config(conditions: Conditions) -> dict[str, Any]:
    """A run of one method on one data set."""
    column = {"method": "o-tpt", "prompt": {"name": "a photo of a"}, "images": {"0": conditions.images}}
    return {
        "format": 2,
        "versions": {},
        "backbone": {"name": "none", "fingerprint": ""},
        "numbers": {"shard_size": conditions.shard_size},
        "scoring": {"bins": 20, "side": "right"},
        "methods": {"o-tpt": {}},
        "datasets": [{"name": "many", "fingerprint": "", "classes": ["a", "b"], "columns": [column]}],
        "commands": [],
    }


@dataclass(frozen=True)
class Outcome:
    """What came of it; seconds are simulated.

    Attributes:
        ideal: if all machines had computed all the time.
        longest: that a shard took.
        asked: locks that were asked for.
    """

    shards: int
    lost: int
    repeated: int
    ended_early: int
    seconds: float
    ideal: float
    longest: float
    asked: int
    listings: int
    operations: int


def simulate(conditions: Conditions, folder: Path) -> Outcome:
    """The whole run, event by event."""
    world = World(conditions, random.Random(conditions.seed))
    Run.create(folder, config(conditions))
    run = Run(folder, files=FakeDisk(world))
    speeds = [
        (0.2 if world.draw.random() < conditions.slow else 1.0) * world.draw.lognormvariate(0, 0.1)
        for _ in range(conditions.workers)
    ]
    events: list[tuple[float, int]] = [(world.draw.uniform(0, 10), worker) for worker in range(conditions.workers)]
    heapq.heapify(events)
    processes: dict[int, tuple[Iterator[float], Locks]] = {}
    started = ended = 0
    last = 0.0
    while events:
        world.now, worker = heapq.heappop(events)
        if worker not in processes:
            started += 1
            locks = Locks(FakeLocks(world, started))
            processes[worker] = work(world, run, locks, started, speeds[worker]), locks
        process, locks = processes[worker]
        try:
            waits = next(process)
        except StopIteration:
            last = max(last, world.now)
            continue
        except (ProcessLookupError, OSError, OtptError):
            ended += 1
            waits = RESTART_SECONDS
            del processes[worker]
            locks.__exit__(None, None, None)
        heapq.heappush(events, (world.now + waits, worker))
    count = -(-conditions.images // conditions.shard_size)
    there = sum(len(names) for names in world.visible.values())
    ideal = conditions.images * SECONDS_PER_IMAGE / sum(speeds)
    repeated = sum(world.computed.values()) - len(world.computed)
    return Outcome(
        count, count - there, repeated, ended, last, ideal, world.longest, world.asked, world.listings, world.operations
    )


def check(outcome: Outcome, conditions: Conditions) -> None:
    """What must hold."""
    assert outcome.lost == 0, f"{outcome.lost} shards were lost"
    assert outcome.repeated <= outcome.ended_early, f"{outcome.repeated} shards were computed twice"
    bound = 1.1 * outcome.ideal + 3 * (outcome.longest + RESTART_SECONDS + conditions.hidden)
    assert outcome.seconds < bound, f"{outcome.seconds:.0f} s, expected less than {bound:.0f} s"
    most = 4 * outcome.shards + MISSES * outcome.listings
    assert outcome.asked < most, f"{outcome.asked} locks were asked for, expected less than {most}"
    most = 100 * (conditions.workers + outcome.ended_early)
    assert outcome.listings < most, f"{outcome.listings} listings, expected less than {most}"


def linearity(folder: Path, sizes: tuple[int, ...] = (1_000, 10_000, 100_000)) -> list[tuple[int, float, float]]:
    """(shards, microseconds per shard to list what is there, and to plan what is missing), half of them there."""
    found = []
    for size in sizes:
        conditions = Conditions(images=size * 1024, shard_size=1024, failing=0.0)
        world = World(conditions, random.Random(0))
        place = folder / str(size)
        Run.create(place, config(conditions))
        run = Run(place, files=FakeDisk(world))
        for item in run.items()[::2]:
            for path in shards(run, item):
                world.visible.setdefault(path.parent, {})[path.name] = 0.0
        begun = time.process_time()
        missing = run.missing()
        listed = time.process_time()
        for item in missing:
            run.lacks(item)
        found.append((size, 1e6 * (listed - begun) / size, 1e6 * (time.process_time() - listed) / len(missing)))
    return found


def main() -> None:
    """Simulate and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=Conditions.images, metavar="N")
    parser.add_argument("--workers", type=int, default=Conditions.workers, metavar="W")
    parser.add_argument("--shard-size", type=int, default=Conditions.shard_size, metavar="N")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    options = parser.parse_args()
    conditions = Conditions(options.images, options.workers, options.shard_size, seed=options.seed)
    with tempfile.TemporaryDirectory() as folder:
        begun = time.process_time()
        outcome = simulate(conditions, Path(folder) / "run")
        spent = time.process_time() - begun
        print(f"{conditions.images:,} images, {outcome.shards:,} shards, {conditions.workers:,} workers")
        print(f"lost {outcome.lost}, computed twice {outcome.repeated}, processes ended early {outcome.ended_early}")
        hours = [each / 3600 for each in (outcome.seconds, outcome.ideal, outcome.longest)]
        print("hours {:.2f}, ideal {:.2f}, slowest shard {:.2f}".format(*hours))
        locks, operations = outcome.asked / outcome.shards, outcome.operations / outcome.shards
        print(f"per shard: {locks:.1f} locks asked for, {operations:.0f} operations of the file system")
        print(f"per worker: {outcome.listings / conditions.workers:.1f} listings")
        print(f"simulated in {spent:.0f} processor seconds")
        check(outcome, conditions)
        print("\n  shards  µs to list  µs to ask, per shard")
        for size, listing, asking in linearity(Path(folder)):
            print(f"{size:8,} {listing:11.2f} {asking:10.2f}", flush=True)


if __name__ == "__main__":
    main()
