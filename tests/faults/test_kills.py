"""Evaluations that are killed: at a write, at any moment, with another process on the same folder."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

import pytest
from faults.conftest import CASES, Evaluation
from faults.processes import at_write, kill_after, run, start, wait

from otpt.cli import main

pytestmark = [pytest.mark.long, pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")]

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)


def suicide() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("case", range(CASES))
def test_killed_at_a_write(case: int, evaluation: Evaluation, tmp_path: Path) -> None:
    """Two kills in a row, then the command again."""
    chosen = random.Random(case)
    for number in (1 + 3 * case, chosen.randint(1, 60)):

        def work(number: int = number) -> int:
            at_write(tmp_path, number, suicide)
            return main(evaluation.command(tmp_path))

        ended = run(work, tmp_path / "printed.txt")
        assert ended.code in (0, -signal.SIGKILL), ended.printed
    evaluation.check(tmp_path)


@pytest.mark.parametrize("case", range(CASES))
def test_stopped_at_a_moment(case: int, evaluation: Evaluation, tmp_path: Path) -> None:
    chosen = random.Random(case)
    number = chosen.choice(SIGNALS)
    child = start(lambda: main(evaluation.command(tmp_path)), tmp_path / "printed.txt")
    kill_after(child, chosen.random() * evaluation.seconds, number)
    ended = wait(child, tmp_path / "printed.txt")
    assert ended.code in (0, -number, 128 + number), ended.printed
    evaluation.check(tmp_path)


@pytest.mark.parametrize("case", range(CASES))
def test_one_of_two_is_killed(case: int, evaluation: Evaluation, tmp_path: Path) -> None:
    """The other one finishes the run."""
    chosen = random.Random(case)

    def dies() -> int:
        at_write(tmp_path, chosen.randint(1, 60), suicide)
        return main(evaluation.command(tmp_path))

    children = [start(dies, tmp_path / "0.txt"), start(lambda: main(evaluation.command(tmp_path)), tmp_path / "1.txt")]
    ended = [wait(child, tmp_path / f"{i}.txt") for i, child in enumerate(children)]
    assert ended[0].code in (0, -signal.SIGKILL), ended[0].printed
    assert ended[1].code == 0, ended[1].printed
    evaluation.check(tmp_path)


@pytest.mark.parametrize("case", range(max(CASES // 4, 1)))
def test_killed_while_it_grows(case: int, evaluation: Evaluation, tmp_path: Path) -> None:
    """A run with one method, then one with all of them that is killed."""
    assert main(evaluation.command(tmp_path, ["o-tpt"])) == 0

    def work() -> int:
        at_write(tmp_path, 1 + 7 * case, suicide)
        return main(evaluation.command(tmp_path))

    assert run(work, tmp_path / "printed.txt").code in (0, -signal.SIGKILL)
    ended = run(lambda: main(evaluation.command(tmp_path)), tmp_path / "resumed.txt")
    assert ended.code == 0, ended.printed
