"""The schedule: alone it goes through the list; among many it finds places of its own; nothing is lost or repeated."""

from __future__ import annotations

from pathlib import Path

import pytest
from oracles.runs.runs_bench import config, write_item

from benchmarks.scale import Conditions, check, linearity, simulate
from otpt.runs import Run
from otpt.runs.locks import Locks
from otpt.runs.schedule import FIRST_PAUSE, PATIENCE, Schedule

pytestmark = pytest.mark.slow

SMALL = {
    "calm": Conditions(images=60_000, workers=20, shard_size=1000, killed=0, failing=0, slow=0),
    "killed": Conditions(images=60_000, workers=20, shard_size=1000, killed=0.3, failing=0, seed=1),
    "failing": Conditions(images=60_000, workers=20, shard_size=1000, killed=0.05, failing=0.01, seed=2),
    "more workers than shards": Conditions(images=5_000, workers=40, shard_size=1000, killed=0.1, seed=3),
}


@pytest.mark.parametrize("name", SMALL)
def test_a_simulated_run(name: str, tmp_path: Path) -> None:
    conditions = SMALL[name]
    outcome = simulate(conditions, tmp_path / "run")
    check(outcome, conditions)
    if name == "calm":
        assert (outcome.ended_early, outcome.repeated) == (0, 0)
    elif name != "more workers than shards":
        assert outcome.ended_early > 0


def test_workers_do_not_ask_for_every_shard(tmp_path: Path) -> None:
    outcome = simulate(Conditions(images=400_000, workers=50, shard_size=1000, killed=0), tmp_path / "run")
    assert outcome.asked < 0.4 * 50 * outcome.shards


def test_listing_is_linear(tmp_path: Path) -> None:
    assert [size for size, *_ in linearity(tmp_path, (100, 1000))] == [100, 1000]


def test_alone_it_goes_through_the_list_in_order(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", config(images=400))
    with Locks(run.folder / "locks") as locks:
        schedule = Schedule(run, run.datasets, locks)
        missing = schedule.list_missing()
        assert len(missing) == 100
        taken = []
        for item in schedule.take():
            taken.append(item)
            write_item(run, item)
        assert taken == missing == run.items()
        assert schedule.pause() == 0.0
        assert schedule.list_missing() == []


def test_what_others_did_meanwhile_is_left_out_and_the_list_read_anew(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", config(images=400))
    now = [0.0]
    with Locks(run.folder / "locks") as locks:
        schedule = Schedule(run, run.datasets, locks, seed=0, clock=lambda: now[0])
        for item in schedule.list_missing():
            write_item(run, item)
        assert list(schedule.take()) == []
        # nothing was to be had: it waits, longer each time, at most a fraction of the time so far
        assert schedule.pause() == FIRST_PAUSE
        now[0] = 100.0
        pauses = [schedule.pause() for _ in range(20)]
        assert pauses == sorted(pauses)
        assert pauses[-1] == PATIENCE * 100.0


def test_what_is_in_the_works_here_is_not_taken_again(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", config(images=400))
    with Locks(run.folder / "locks") as others, Locks(run.folder / "locks") as locks:
        schedule = Schedule(run, run.datasets, locks, seed=0)
        missing = schedule.list_missing()
        for item in missing[1::7]:
            assert others.take(item.lock)
        taken = list(schedule.take())  # none is written yet, and our own locks are granted to us again
    assert len(taken) > 5
    assert len({item.lock for item in taken}) == len(taken)
