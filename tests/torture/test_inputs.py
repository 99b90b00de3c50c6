"""A short, deterministic version of the campaign of hostile inputs, and that its judge sees what it must see."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from otpt.errors import OtptError
from torture.inputs import run, workers
from torture.inputs.kinds import KINDS, Broken, Input, Kind, kind_named, schedule
from torture.inputs.pages import Shape
from torture.inputs.verdicts import _judged
from torture.records import Plan

FEW = {"model folders": 4, "report pages": 4, "Hugging Face folders": 4, "addresses": 8}
"""Cases of kinds that take longer."""


@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_or_one_sentence(kind: str, tmp_path: Path) -> None:
    outcomes = list(run(Plan(tmp_path, cases=FEW.get(kind, 25), seed=11, kind=kind)))
    assert len(outcomes) == FEW.get(kind, 25)
    assert [(outcome.case, outcome.result, outcome.note) for outcome in outcomes if not outcome.ok] == []


def test_every_kind_has_its_turns() -> None:
    turns = schedule()
    assert {name: turns.count(name) for name in KINDS} == {name: share for name, (_, share) in KINDS.items()}


def judge(monkeypatch: pytest.MonkeyPatch, folder: Path, ask: Any) -> Any:
    """The outcome of a case that does this."""
    kind = Kind("made up", lambda rng, given: Input("", lambda: ask(given)))
    monkeypatch.setattr(workers, "kind_named", lambda name: kind)
    (outcome,) = workers.judged([("made up", 0)], folder)
    return outcome


def _write(given: Path) -> None:
    (given.parent.parent / "outside" / "owned").write_text("x", encoding="utf-8")


def _start(given: Path) -> None:
    subprocess.run([sys.executable, "-c", ""])


def _crash(given: Path) -> None:
    os.abort()


def _eat(given: Path) -> None:
    bytearray(1 << 40)


def _fail(given: Path) -> None:
    raise KeyError("x")


def _refuse(given: Path) -> None:
    (given / "own.txt").write_text("x", encoding="utf-8")
    raise OtptError("There is no such thing; give another.")


def _break(given: Path) -> None:
    raise Broken("a script")


@pytest.mark.parametrize(
    ("ask", "result"),
    [(_write, "touched what it must not"), (_start, "touched what it must not"), (_crash, "killed by SIGABRT"),
     (_eat, "out of memory"), (_fail, "KeyError"), (_break, "broken promise"), (_refuse, "one sentence"),
     (lambda given: 1, "answer")],
)  # fmt: skip
def test_the_judge_sees_it(ask: Any, result: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = judge(monkeypatch, tmp_path, ask)
    assert outcome.result == result
    assert outcome.ok == (result in ("answer", "one sentence"))


def test_what_counts_as_a_sentence() -> None:
    assert _judged("There is no file 'x'; check the path.")[0] == "one sentence"
    for bad in ("no", "There is no\nfile 'x'.", "Traceback (most recent call last).", "x y z \x1b[2J a."):
        assert _judged(bad)[0] != "one sentence"


def test_a_seed_makes_the_same_case(tmp_path: Path) -> None:
    import random

    first, second = tmp_path / "a", tmp_path / "b"
    for folder in (first, second):
        folder.mkdir()
        kind_named("tars").make(random.Random("tars 7"), folder)
    ours, theirs = (sorted((path.name, path.read_bytes()) for path in folder.iterdir()) for folder in (first, second))
    assert [name for name, _ in ours] == [name for name, _ in theirs]


def test_the_shape_of_a_page_shows_what_a_name_could_add() -> None:
    plain = Shape("<p title='x'>cat</p>")
    for hostile in (
        "<p title='x' onclick='y'>",
        "<p>cat</p><script>x</script>",
        "<img src=x>",
        "<a href='javascript:x'>y</a>",
    ):
        found = Shape(hostile)
        assert found.tags - plain.tags or found.scripts != plain.scripts or found.links
