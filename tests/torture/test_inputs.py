"""A short, deterministic version of the campaign of hostile inputs, and that its judge sees what it must see."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from torture.inputs.kinds import KINDS, Broken, Kind, kind_named, schedule
from torture.inputs.pages import Shape, check
from torture.inputs.verdicts import SENTENCE, judged_sentence, outcome_of
from torture.inputs.watch import Watch

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SEED = 0
linux = pytest.mark.skipif(sys.platform != "linux", reason="cases are bounded and watched with Linux's means")


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A process of its own: cases are forked, which a process with threads must not be."""
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=1200)


@linux
@pytest.mark.parametrize(("kind", "cases"), [("image arrays", 100), ("tables", 100), ("run folders", 20)])
def test_an_answer_or_one_sentence(kind: str, cases: int, tmp_path: Path) -> None:
    out = tmp_path / "inputs.json"
    options = ("--kind", kind, "--cases", str(cases), "--seed", str(SEED), "--out", str(out))
    done = python("-m", "torture", "inputs", *options)
    assert out.exists(), done.stderr
    found = json.loads(out.read_text(encoding="utf-8"))
    assert found["failures"] == []
    assert (found["cases"], found["failing"], done.returncode) == (cases, 0, 0)


@linux
def test_the_judge_sees_it(tmp_path: Path) -> None:
    done = python(str(Path(__file__).with_name("judged_cases.py")), str(tmp_path))
    touched = ["touched what it must not", False]
    assert json.loads(done.stdout or done.stderr) == {
        "write": touched,
        "read": touched,
        "here": touched,
        "start": touched,
        "crash": ["killed by SIGABRT", False],
        "eat": ["out of memory", False],
        "fail": ["KeyError", False],
        "refuse": ["one sentence", True],
        "mumble": ["a sentence that is not a sentence", False],
        "break_a_promise": ["broken promise", False],
        "answer": ["answer", True],
    }


def test_every_kind_has_its_turns() -> None:
    turns = schedule()
    assert {name: turns.count(name) for name in KINDS} == {name: share for name, (_, share) in KINDS.items()}


def test_what_counts_as_a_sentence() -> None:
    assert judged_sentence("There is no file 'x'; check the path.")[0] == SENTENCE
    for bad in ("no", "There is no\nfile 'x'.", "Traceback (most recent call last).", "x y z \x1b[2J a."):
        assert judged_sentence(bad)[0] != SENTENCE


def test_a_seed_makes_the_same_case(tmp_path: Path) -> None:
    made = []
    for folder in (tmp_path / "a", tmp_path / "b"):
        folder.mkdir()
        kind_named("attribute files").make(random.Random("attribute files 7"), folder)
        made.append({path.name: path.read_bytes() for path in folder.iterdir()})
    assert made[0] == made[1] != {}


@pytest.mark.parametrize(
    "hostile",
    [
        "<p title='x' onclick='y'>",
        "<p>cat</p><script>x</script>",
        "<img src=x>",
        "<a href='javascript:x'>y</a>",
        "<style>p {}</style>",
        "<p title='x'>a tag that</p><p title='x'>the page has too</p>",
        "<!-- <p title='x'>what a name took away</p>",
    ],
)
def test_the_judge_of_pages_sees_what_a_name_could_add_or_take_away(hostile: str) -> None:
    plain = Shape("<p title='x'>cat</p>")
    check("<p title='y'>&lt;script&gt;</p>", plain)
    with pytest.raises(Broken):
        check(hostile, plain)


@linux
def test_a_case_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    kind = Kind("never", lambda rng, given: 1 / 0)  # type: ignore[arg-type, return-value]
    found = outcome_of(kind, 7, tmp_path / "given", Watch(tmp_path / "outside"))
    assert (found.ok, found.result, found.case.seed) == (False, "could not be made", 7)
    assert found.note.startswith("ZeroDivisionError: 'division by zero'")
