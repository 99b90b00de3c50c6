"""Locks: a dead process holds nothing, and what is taken twice is released twice."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from otpt import OtptError
from otpt.runs.locks import Locks

pytestmark = pytest.mark.slow

OTHER = """
import sys
from pathlib import Path
from otpt.runs.locks import Locks
print(Locks(Path(sys.argv[1])).take(int(sys.argv[2])), flush=True)
sys.stdin.readline()
"""


def other(path: Path, number: int) -> subprocess.Popen[str]:
    """Another process that takes a lock, and holds it until it is killed."""
    command = [sys.executable, "-c", OTHER, str(path), str(number)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def answer(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def test_locks_of_a_dead_process_are_free(tmp_path: Path) -> None:
    path = tmp_path / "run" / "locks"
    holder = other(path, 3)
    assert answer(holder) == "True"
    with Locks(path) as locks:
        assert locks.take(2)
        assert not locks.take(3)
        end(holder)
        locks.wait_for(3)
        late = other(path, 3)
        assert answer(late) == "False"
        end(late)
    free = other(path, 3)
    assert answer(free) == "True"
    end(free)


def test_what_is_taken_twice_is_released_twice(tmp_path: Path) -> None:
    with Locks(tmp_path / "locks") as locks:
        assert locks.take(7)
        assert locks.take(7)
        locks.release(7)
        waiting = other(tmp_path / "locks", 7)
        assert answer(waiting) == "False"
        end(waiting)
        locks.release(7)
        locks.release(7)  # once too often does no harm
        taken = other(tmp_path / "locks", 7)
        assert answer(taken) == "True"
        assert not locks.take(7)
        end(taken)


def test_threads_of_one_process_exclude_each_other_too(tmp_path: Path) -> None:
    """To the operating system they are one: each was granted what another had, and closing took all locks back."""
    with Locks(tmp_path / "locks") as first:
        assert first.take(5)
        with Locks(tmp_path / "locks") as second:
            assert not second.take(5)
            assert second.take(6)
            assert not first.take(6)
        assert first.take(6)
        late = other(tmp_path / "locks", 5)
        assert answer(late) == "False"  # closing the second one's did not free it
        end(late)
    with Locks(tmp_path / "locks") as third:
        assert third.take(5)


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(OtptError, match=r"Cannot write .* choose another folder"):
        Locks(tmp_path / "file" / "locks")
