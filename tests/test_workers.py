"""Pools give the results of one worker: in order, lazily, with warnings once and errors in one sentence."""

from __future__ import annotations

import os
import signal
import time
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from otpt import plugins
from otpt.errors import OtptError
from otpt.workers import Facts, InlinePool, PluginFiles, Pool, ProcessPool, Schedule, WorkerDied, get_pool


class Squares:
    """Two results per item; negative items are mistakes, and 30 and 35 warn."""

    def __init__(self, job: Job, device: str, threads: int | None) -> None:
        self._job, self._device, self._threads = job, device, threads

    def facts(self) -> Facts:
        return {"device": self._device, "threads": self._threads, "process": os.getpid()}

    def __call__(self, items: Iterable[int]) -> Iterator[int]:
        for item in items:
            if item < 0:
                raise OtptError(f"{item} is negative.")
            if item in (30, 35):
                warnings.warn("odd items", stacklevel=1)
            if item == self._job.kills:
                self._die()
            time.sleep(self._job.seconds * (item == 0))
            yield item
            yield item * item

    def _die(self) -> None:
        if self._job.death is not None:
            try:
                self._job.death.touch(exist_ok=False)
            except FileExistsError:
                return
        os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True)
class Job:
    """Makes workers; item ``kills`` kills its process, once if there is a file for that."""

    plugins: PluginFiles = field(default_factory=PluginFiles)
    device: str = "cpu"
    threads: int | None = None
    seconds: float = 0.0
    kills: int | None = None
    death: Path | None = None

    def make_worker(self, device: str, threads: int | None) -> Squares:
        return Squares(self, device, threads)


def expected(count: int) -> list[int]:
    return [value for item in range(count) for value in (item, item * item)]


def test_this_process_is_lazy() -> None:
    read: list[int] = []

    def items() -> Iterator[int]:
        for item in range(9):
            read.append(item)
            yield item

    with get_pool("inline") as pool:
        assert pool.inline
        results = pool.map(Job(), items())
        assert (next(results), read) == (0, [0])
    assert isinstance(pool, Pool)


@pytest.mark.slow
def test_processes_give_the_results_of_one() -> None:
    read: list[int] = []

    def items() -> Iterator[int]:
        for item in range(40):
            read.append(item)
            yield item

    job = Job(seconds=0.5)
    with ProcessPool(2, devices=["cpu:0", "cpu:1"]) as pool:
        assert not pool.inline
        assert pool.facts(job)["device"] in ("cpu:0", "cpu:1")
        results = pool.map(job, items())
        assert next(results) == 0
        assert len(read) <= 8 * 2
        with pytest.warns(UserWarning, match="odd items") as warned:
            rest = list(results)
        assert [0, *rest] == expected(40)
        assert len([each for each in warned if "odd items" in str(each.message)]) == 1
        found = list(pool.map(job, range(3), ordered=False))
        assert sorted(found) == sorted(expected(3))
        assert found[-2:] == [0, 0], "the slow item comes last"
        with pytest.raises(OtptError, match="-1 is negative"):
            list(pool.map(job, [1, -1, 2]))
        assert list(pool.map(job, [1, 2])) == [1, 1, 2, 4]


@pytest.mark.slow
def test_after_a_death_there_is_one_process_fewer(tmp_path: Path) -> None:
    with ProcessPool(2) as pool:
        assert list(pool.map(Job(kills=4, death=tmp_path / "died"), range(3, 3))) == []
        assert list(pool.map(Job(kills=2, death=tmp_path / "died"), range(3))) == expected(3)
        with pytest.raises(WorkerDied, match="2 worker processes"):
            list(pool.map(Job(kills=2), range(3)))
        assert list(pool.map(Job(), range(3))) == expected(3), "the pool can be used again"


@pytest.mark.slow
def test_plugins_are_loaded_before_the_rest_of_a_job(tmp_path: Path) -> None:
    plugin = tmp_path / "mine.py"
    plugin.write_text("raise ValueError('loaded there')\n")
    with ProcessPool(1) as pool, pytest.raises(OtptError, match="loaded there"):
        pool.facts(Job(plugins=PluginFiles([plugin])))


def test_what_cannot_be_sent() -> None:
    @dataclass(frozen=True)
    class Local(Job):
        pass

    with pytest.raises(OtptError, match="cannot be sent"):
        ProcessPool(2).facts(Local())


def test_a_schedule_repeats_what_is_lost() -> None:
    schedule: Schedule[str, str] = Schedule("abcd")
    assert [schedule.take(3) for _ in range(4)] == [(0, "a"), (1, "b"), (2, "c"), None]
    schedule.finish(1, ["B"])
    assert list(schedule.deliver()) == []
    schedule.repeat()
    assert [schedule.take(3), schedule.take(3), schedule.take(3)] == [(0, "a"), (2, "c"), None]
    schedule.finish(0, ["A", "A"])
    assert list(schedule.deliver()) == ["A", "A", "B"]
    assert schedule.take(3) == (3, "d")


def test_pools_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    points = (
        EntryPoint("mine", "otpt.workers:InlinePool", "otpt.pools"),
        EntryPoint("torn", "no_such_module:Pool", "otpt.pools"),
    )
    monkeypatch.setattr(plugins, "installed_plugins", lambda group: points)
    assert isinstance(get_pool("mine"), InlinePool)
    with pytest.raises(OtptError, match="no_such_module"):
        get_pool("torn")
    with pytest.raises(OtptError, match=r"Unknown pool 'processs'.*processes"):
        get_pool("processs")
    with pytest.raises(OtptError, match="sandwiches"):
        get_pool("processes", workers=1, sandwiches=2)


def test_pools_by_name_and_their_options() -> None:
    with pytest.raises(OtptError, match=r"processes.*actors"):
        get_pool("processes", actors=(1, 1))
    assert get_pool("processes").workers >= 1


class _NotImportable:
    """Job whose function other processes cannot find."""

    device, threads = "cpu", 1

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (_missing_function, ("median-probability",))

    def make_worker(self, device: str, threads: int | None) -> object:
        raise AssertionError


def _missing_function(name: str) -> object:
    return {}[name]


@pytest.mark.slow
def test_a_job_that_other_processes_cannot_load() -> None:
    with ProcessPool(1) as pool, pytest.raises(OtptError, match="median-probability"):
        pool.facts(_NotImportable())  # type: ignore[arg-type]
