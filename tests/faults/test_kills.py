"""Evaluations that are killed: rows are those of an unbroken run, and nothing that was finished is lost."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path

import pandas as pd
import psutil
import pytest
from faults.conftest import CASES, Evaluation, rows
from faults.processes import Ended, at_write, run, start, wait

from otpt.cli import main
from otpt.data import load_dataset
from otpt.evaluation import Evaluation as Request
from otpt.evaluation import Progress, evaluate
from otpt_ray import RayPool

pytestmark = [pytest.mark.long, pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")]

KILLS = int(os.environ.get("OTPT_FAULT_KILLS", "20"))
"""Kills of each campaign."""


def suicide() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def stopped(evaluation: Evaluation, folder: Path, moment: float, number: int) -> Ended:
    """Start the evaluation and send it a signal after ``moment`` of the time that it takes."""
    folder.mkdir(exist_ok=True)
    child = start(lambda: main(evaluation.command(folder)), folder / "printed.txt")
    time.sleep(moment * evaluation.seconds)
    os.kill(child, number)
    return wait(child, folder / "printed.txt")


def test_kills_at_random_moments(evaluation: Evaluation, tmp_path: Path) -> None:
    """Resumed after each kill until the run is finished; then a new run."""
    chosen, kills, runs, finished = random.Random(1), 0, 0, 0
    while kills < KILLS:
        ended = stopped(evaluation, tmp_path / str(runs), chosen.random(), signal.SIGKILL)
        assert ended.code in (0, -signal.SIGKILL), ended.printed
        kills += ended.code != 0
        done = len(list((tmp_path / str(runs)).rglob("*-*.parquet")))
        assert done >= finished, "a finished shard is gone"
        finished = done
        if ended.code == 0:
            evaluation.check(tmp_path / str(runs))
            runs, finished = runs + 1, 0
    if finished:
        evaluation.check(tmp_path / str(runs))
    print(f"{kills} kills in {runs + 1} runs of {evaluation.seconds:.1f} s")


def test_kills_of_one_of_two_processes(evaluation: Evaluation, tmp_path: Path) -> None:
    """Both work on one folder; the other one finishes the run."""
    chosen, kills, runs = random.Random(2), 0, 0
    while kills < KILLS:
        folder = tmp_path / str(runs)
        folder.mkdir()
        other = start(lambda: main(evaluation.command(folder)), folder / "other.txt")  # noqa: B023
        ended = stopped(evaluation, folder, chosen.random(), signal.SIGKILL)
        kills, runs = kills + (ended.code != 0), runs + 1
        survivor = wait(other, folder / "other.txt")
        assert (ended.code in (0, -signal.SIGKILL), survivor.code) == (True, 0), ended.printed + survivor.printed
        pd.testing.assert_frame_equal(rows(folder / "run"), evaluation.rows)
        evaluation.check(folder)
    print(f"{kills} kills in {runs} runs")


class KillActors(Progress):
    """Kills the actor that computes, shortly after some shard is finished, as the kernel would without memory."""

    def __init__(self, kills: int, seed: int) -> None:
        super().__init__(show=False)
        self.killed: list[int] = []
        self._kills, self._chosen, self._one = kills, random.Random(seed), threading.Lock()

    def update(self, done: int) -> None:
        super().update(done)
        if len(self.killed) < self._kills and done < self.total - 1:
            threading.Timer(self._chosen.uniform(0, 0.3), self._kill).start()

    def _kill(self) -> None:
        with self._one:  # two timers may end together
            for child in psutil.Process().children(recursive=True):
                with suppress(psutil.Error):  # a process that has just ended
                    fresh = child.pid not in self.killed and len(self.killed) < self._kills
                    if fresh and "WorkerHost" in " ".join(child.cmdline()):
                        child.kill()
                        self.killed.append(child.pid)
                        return


@pytest.mark.parametrize("piece", range(4))
def test_kills_of_a_ray_actor(piece: int, evaluation: Evaluation, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    settings = Request(methods=["zero-shot", "tda"], views=8, seeds=(0, 1), shard_size=1)
    data = load_dataset(str(evaluation.images))
    progress = KillActors(KILLS // 4, piece)
    options = {"device": "cpu", "pool": RayPool(actors=(1, 1)), "progress": progress}
    evaluate(data, "pocket", settings, out=tmp_path / "ray", **options)
    evaluate(data, "pocket", settings, out=tmp_path / "alone", device="cpu")
    pd.testing.assert_frame_equal(rows(tmp_path / "ray"), rows(tmp_path / "alone"))
    print(f"{len(progress.killed)} kills of actors")
    assert len(progress.killed) == KILLS // 4


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stopped_by_a_signal(number: int, evaluation: Evaluation, tmp_path: Path) -> None:
    for case in range(CASES // 3):
        ended = stopped(evaluation, tmp_path / str(case), (case + 1) / (CASES // 3 + 1), number)
        assert ended.code in (0, -number, 128 + number), ended.printed
        evaluation.check(tmp_path / str(case))


@pytest.mark.parametrize("case", range(CASES))
def test_killed_at_a_write(case: int, evaluation: Evaluation, tmp_path: Path) -> None:
    """Two kills in a row, then the command again; every third case starts from a run with one method."""
    chosen = random.Random(case)
    if case % 3 == 0:
        assert main(evaluation.command(tmp_path, ["tda"])) == 0
    for number in (1 + 3 * case, chosen.randint(1, 60)):

        def work(number: int = number) -> int:
            at_write(tmp_path, number, suicide)
            return main(evaluation.command(tmp_path))

        ended = run(work, tmp_path / "printed.txt")
        assert ended.code in (0, -signal.SIGKILL), ended.printed
    evaluation.check(tmp_path)
