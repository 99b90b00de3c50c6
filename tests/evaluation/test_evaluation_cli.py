"""``otpt evaluate``, ``metrics``, ``sweep`` and ``cache``: words, numbers and exit codes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from evaluation_bench import NAMES, files, picture
from oracles.command import run
from oracles.models import open_clip_local_dir
from rich.console import Console

from otpt.evaluation import Evaluator, LogProgress, TerminalProgress, duration
from otpt.evaluation.progress import Begun, Seen, Tally
from otpt.metrics import ece_from_confidence


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("cli")
    open_clip_local_dir(root / "model")
    for position, name in enumerate(NAMES[:4]):
        (root / "data" / name).mkdir(parents=True)
        for i in range(2):
            picture(10 * position + i).save(root / "data" / name / f"{i}.png")
    return root


def command(place: Path, out: Path, *more: object) -> list[object]:
    few = ["--views", 8, "--part-size", 3, "--cache", out.parent / "cache", "--out", out, "--device", "cpu"]
    return ["evaluate", place / "data", "--backbone", f"local-dir:{place / 'model'}", *few, *more]


def test_evaluate_metrics_and_cache(capsys: pytest.CaptureFixture[str], place: Path, tmp_path: Path) -> None:
    code, out, _ = run(capsys, *command(place, tmp_path / "run", "--methods", "zero-shot", "o-tpt"))
    assert code == 0
    lines = out.splitlines()
    assert lines[0].split()[:2] == ["data", "accuracy"]
    assert [line.split()[0] for line in lines[1:3]] == ["zero-shot", "o-tpt"]
    assert len({len(line) for line in lines[:3]}) == 1, "columns line up"
    before = files(tmp_path / "run")
    code, again, _ = run(capsys, "metrics", tmp_path / "run")
    assert (code, again.splitlines()[:3]) == (0, lines[:3])
    (tmp_path / "run/metrics.json").unlink()
    run(capsys, "metrics", tmp_path / "run")
    assert files(tmp_path / "run") == before
    code, out, _ = run(capsys, "metrics", tmp_path / "run", "--json", "--bins", 15)
    assert code == 0
    assert {score["bins"] for score in json.loads(out)["scores"]} == {15}
    assert files(tmp_path / "run") == before
    code, out, _ = run(capsys, "cache", "info", "--cache", tmp_path / "cache")
    assert "the features of 8 pictures and 8 gradients" in out
    run(capsys, "cache", "clear", "--cache", tmp_path / "cache")
    code, out, _ = run(capsys, "cache", "info", "--cache", tmp_path / "cache", "--json")
    assert {json.loads(out)[name] for name in ("entries", "gradients", "bytes")} == {0}


def test_json_seeds_and_several_data_sets(capsys: pytest.CaptureFixture[str], place: Path, tmp_path: Path) -> None:
    table = tmp_path / "other.csv"
    rows = [f"{place / 'data' / name / '0.png'},{name}" for name in NAMES[:4]]
    table.write_text("\n".join(["path,label", *rows]), encoding="utf-8")
    given = command(place, tmp_path / "run", "--methods", "zero-shot", "tpt", "--seeds", 0, 1, "--limit", 3)
    given.insert(1, table)
    code, out, _ = run(capsys, *given, "--json")
    found = json.loads(out)
    assert code == 0
    assert len(found["scores"]) == 2 * 2 * 2
    for average in found["averages"]:
        own = [s["ece"] for s in found["scores"] if s["method"] == average["method"]]
        assert average["ece"] == pytest.approx(sum(own) / 4)
    code, out, _ = run(capsys, *given)
    assert code == 0
    head = out.splitlines()[0].split()
    assert head[-1] == "average"
    assert re.search(r"tpt +\S+ ± \S+ +\S+ ± \S+ +\S+ ± \S+", out)


def test_unreadable_pictures_end_in_exit_code_3(
    capsys: pytest.CaptureFixture[str], place: Path, tmp_path: Path
) -> None:
    table = tmp_path / "some.csv"
    good, label = place / "data" / "cat" / "0.png", "cat"
    (tmp_path / "bad.png").write_text("no picture")
    dog = place / "data/dog/0.png"
    table.write_text(f"path,label\n{good},{label}\n{tmp_path / 'bad.png'},cat\n{dog},dog\n", encoding="utf-8")
    given = command(place, tmp_path / "run", "--methods", "zero-shot")
    given[1] = table
    code, out, err = run(capsys, *given)
    assert code == 3
    assert "could not read 1 of the pictures" in err
    assert "zero-shot" in out


def test_interrupted_it_says_how_to_go_on(
    capsys: pytest.CaptureFixture[str], place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Evaluator._judge
    judged: list[int] = []

    def interrupted(self: Evaluator, *arguments: object) -> object:
        judged.append(1)
        if len(judged) == 5:
            raise KeyboardInterrupt
        return real(self, *arguments)

    monkeypatch.setattr(Evaluator, "_judge", interrupted)
    code, _, err = run(capsys, *command(place, tmp_path / "run", "--methods", "tpt"))
    assert code == 130
    assert "stopped; 1 of 3 parts are finished" in err
    assert "Give the same command again to go on." in err
    code, _, err = run(capsys, "metrics", tmp_path / "run")
    assert code == 3
    assert "not complete: 2 of 3 parts are missing" in err
    monkeypatch.undo()
    assert run(capsys, *command(place, tmp_path / "run", "--methods", "tpt"))[0] == 0
    assert run(capsys, *command(place, tmp_path / "whole", "--methods", "tpt"))[0] == 0
    assert files(tmp_path / "run") == files(tmp_path / "whole")


def test_sweeps(capsys: pytest.CaptureFixture[str], place: Path, tmp_path: Path) -> None:
    given = command(place, tmp_path / "run", "--set", "lambda=0,18")
    given[0] = "sweep"
    code, out, _ = run(capsys, *given)
    assert code == 0
    assert "o-tpt[lambda=0]" in out
    templates = tmp_path / "templates.txt"
    templates.write_text("a photo of a {}.\na {} in a video game.\n", encoding="utf-8")
    given = command(place, tmp_path / "prompts", "--prompts", templates, "--method", "zero-shot")
    given[0] = "sweep"
    code, out, _ = run(capsys, *given)
    assert code == 0
    assert "a [CLS] in a video game" in out


def test_the_default_folder_is_the_same_for_the_same_command(
    capsys: pytest.CaptureFixture[str], place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    few = ["--views", 8, "--methods", "zero-shot", "--limit", 2]
    base = ["evaluate", place / "data", "--backbone", f"local-dir:{place / 'model'}", *few]
    for more in (["--no-cache"], ["--cache", tmp_path / "cache", "--threads", 1], ["--no-cache", "--limit", 1]):
        assert run(capsys, *base, *more)[0] == 0
    assert len(list((tmp_path / "runs").iterdir())) == 2


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--methods", "o-tpp"], "Unknown method 'o-tpp'"),
        (["--seeds", "0", "0"], "seed 0 is given twice"),
        (["--limit", "0"], "limit is 0"),
        (["--workers", "0"], "--workers was given 0"),
        (["--bins", "0"], "number of bins is 0"),
        (["--prompt-tokens", "2"], "without --prompt"),
        (["--set", "lambda"], "expected NAME=VALUE"),
        (["--cache-size", "0"], "size of the feature cache is 0"),
        (["--views", "0"], "number of views"),
    ],
)
def test_what_cannot_be_used_is_told(
    capsys: pytest.CaptureFixture[str], place: Path, tmp_path: Path, more: list[str], words: str
) -> None:
    code, _, err = run(capsys, *command(place, tmp_path / "run", *more))
    assert code == 2
    assert words in err


def test_runs_and_data_that_are_not_there(capsys: pytest.CaptureFixture[str], place: Path, tmp_path: Path) -> None:
    code, _, err = run(capsys, "metrics", tmp_path / "nothing")
    assert (code, "There is no run folder" in err) == (2, True)
    given = command(place, tmp_path / "run")
    given[1] = tmp_path / "nothing"
    code, _, err = run(capsys, *given)
    assert (code, "no data set at" in err) == (2, True)
    given = command(place, tmp_path / "run")
    given[0] = "sweep"
    code, _, err = run(capsys, *given)
    assert (code, "Nothing to sweep over" in err) == (2, True)
    (tmp_path / "file").write_text("x")
    code, _, err = run(capsys, *command(place, tmp_path / "file" / "run", "--methods", "zero-shot", "--no-cache"))
    assert (code, "Cannot" in err) == (2, True)


def test_running_numbers_are_those_of_the_metrics() -> None:
    confidence = [0.05, 0.050001, 0.51, 0.55, 0.62, 0.62, 0.99, 1.0]
    correct = [False, True, True, False, True, True, True, False]
    tally = Tally()
    for c, right in zip(confidence, correct, strict=True):
        tally.add(c, right)
    assert tally.ece == pytest.approx(ece_from_confidence(confidence, correct))
    assert tally.accuracy == 5 / 8


def test_progress_in_a_log_and_on_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    lines: list[str] = []
    log = LogProgress(["dtd"], ["zero-shot", "o-tpt"], say=lines.append, seconds=0.0)
    console = Console(force_terminal=True, width=100, markup=False)
    with log, TerminalProgress(["dtd"], ["zero-shot", "o-tpt[lambda=0]"], console) as bar:
        for report in (log, bar):
            report(Begun(10, 40))
            report(Seen(0, 3, ((0.9, True), (0.6, False))))
            report(Seen(0, 3, ()))
    assert lines[0].startswith("11/40 pictures, ")
    assert "dtd, seed 3: zero-shot 100.0 % (ECE 10.0); o-tpt 0.0 % (ECE 60.0)" in lines[0]
    assert (log.unreadable, log.now) == (1, 2)
    shown = capsys.readouterr().out
    assert "12/40" in shown
    assert "o-tpt[lambda=0]" in shown
    assert [duration(s) for s in (5, 65, 7300, 200_000)] == ["5 s", "1 min 5 s", "2 h 1 min", "2 d 7 h"]
