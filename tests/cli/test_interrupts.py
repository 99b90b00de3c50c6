"""Ctrl-C at any moment: one line, exit code 130, no traceback, and a run that goes on afterwards."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from PIL import Image

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")]

# As the console script does, and it says when it listens: what Python itself does with a signal before main() is not
# in our hands, not even between two of the script's own words.
PROGRAM = """
import sys
from otpt.cli import interrupts, main
listen = interrupts.listen
def announced():
    listen()
    print("up", flush=True)
interrupts.listen = announced
sys.exit(main())
"""
MOMENTS = (0.0, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.2, 1.8, 2.4, 3.0, 3.6, 4.3, 5.0)
PREDICT = ("predict", "image.png", "--classes", "apple", "dog", "--backbone", "pocket", "--views", "8")
EVALUATE = ("evaluate", "emoji/food", "--limit", "24", "--shard-size", "4", "--backbone", "pocket", "--views", "8")
RUN = ("--methods", "zero-shot", "tpt", "--no-cache", "--out", "run")


def interrupted(folder: Path, arguments: tuple[str, ...], moments: tuple[float, ...]) -> tuple[int, list[str]]:
    """Exit code and lines of errors of ``otpt ARGUMENTS`` whose processes all get SIGINT at these seconds."""
    # in the background of a script the signal is ignored, also by children: here it is answered
    answer = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    program = [sys.executable, "-c", f"{answer}\n{PROGRAM}", *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    variables = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(program, cwd=folder, env=variables, text=True, start_new_session=True, **pipes)
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    start = time.monotonic()
    for moment in moments:
        time.sleep(max(start + moment - time.monotonic(), 0))
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    _, errors = process.communicate(timeout=120)
    return process.returncode, errors.splitlines()


def check(code: int, errors: list[str]) -> None:
    assert not any("Traceback" in line or "KeyboardInterrupt" in line for line in errors), errors
    stopped = [line for line in errors if line.startswith("otpt: stopped")]
    assert (code, len(stopped)) in {(130, 1), (0, 0)}, errors
    if stopped:
        assert errors[-1] == stopped[0]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    Image.new("RGB", (64, 64), (200, 50, 20)).save(tmp_path / "image.png")
    return tmp_path


def test_predict_at_many_moments(folder: Path) -> None:
    outcomes = [interrupted(folder, PREDICT, (moment,)) for moment in MOMENTS]
    for code, errors in outcomes:
        check(code, errors)
    assert any(code == 130 for code, _ in outcomes)


def test_an_evaluation_at_many_moments_goes_on(folder: Path) -> None:
    for moment in MOMENTS[1::2]:
        check(*interrupted(folder, EVALUATE + RUN, (moment,)))
    code, errors = interrupted(folder, EVALUATE + RUN, ())
    assert code == 0, errors
    whole = interrupted(folder, (*EVALUATE, *RUN[:-1], "whole"), ())
    assert whole[0] == 0
    shards = list((folder / "whole").rglob("*.parquet"))
    assert shards
    for shard in shards:
        assert shard.read_bytes() == (folder / "run" / shard.relative_to(folder / "whole")).read_bytes()
    assert not list((folder / "run").rglob(".*.tmp"))


@pytest.mark.parametrize("moment", [0.8, 2.5, 4.0, 6.0])
def test_worker_processes_are_silent(folder: Path, moment: float) -> None:
    check(*interrupted(folder, (*EVALUATE, *RUN, "--workers", "2"), (moment,)))


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="Linux tells which signals a process holds back")
def test_no_worker_process_ever_sees_the_signal(folder: Path) -> None:
    """Also the first one, also before it runs a line of ours: it would print a traceback from within its imports."""
    command = [sys.executable, "-c", PROGRAM, *EVALUATE, *RUN, "--workers", "2"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            held: dict[int, bool] = {}
            end = time.monotonic() + 120
            while len(held) < 2 and time.monotonic() < end and process.poll() is None:
                held |= {pid: _holds_back(pid) for pid in _workers(process.pid) if pid not in held}
        finally:
            process.kill()
    assert list(held.values()) == [True, True]


def _workers(parent: int) -> list[int]:
    """Children of a process that multiprocessing has spawned for work."""
    found = []
    for children in Path(f"/proc/{parent}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # the thread or the child has ended meanwhile
            for pid in children.read_text().split():
                if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.append(int(pid))
    return found


def _holds_back(pid: int) -> bool:
    """Whether SIGINT is blocked in the process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    blocked = next(line for line in lines if line.startswith("SigBlk:")).split()[1]
    return bool(int(blocked, 16) & 1 << (signal.SIGINT - 1))


@pytest.mark.parametrize("moments", [(0.3, 0.3), (3.5, 3.52), (3.5, 3.6, 3.7)])
def test_twice_is_told_once(folder: Path, moments: tuple[float, ...]) -> None:
    check(*interrupted(folder, EVALUATE + RUN, moments))


def test_an_ignored_signal_stays_ignored(folder: Path) -> None:
    program = f"import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n{PROGRAM}"
    command = [sys.executable, "-c", program, "datasets"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 0


def test_before_anybody_listens() -> None:
    program = """
import os, signal, sys
from otpt.cli import interrupts, main
signal.signal(signal.SIGINT, signal.default_int_handler)
interrupts.listen = lambda: os.kill(os.getpid(), signal.SIGINT)
sys.exit(main())
"""
    done = subprocess.run([sys.executable, "-c", program, "datasets"], capture_output=True, text=True, timeout=60)
    check(done.returncode, done.stderr.splitlines())
    assert done.returncode == 130
