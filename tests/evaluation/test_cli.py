"""``otpt evaluate``, ``metrics``, ``sweep`` and ``cache``: words, numbers and exit codes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from oracles.command import run
from oracles.models.tiny import open_clip_local_dir
from oracles.runs.evaluation_bench import NAMES, computed, files, image, shard
from rich.console import Console

from otpt.evaluation import LogProgress, TerminalProgress, duration
from otpt.evaluation.progress import ImageDone, Repeated, Started, Tally
from otpt.metrics import expected_calibration_error

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("cli")
    open_clip_local_dir(root / "model")
    for position, name in enumerate(NAMES[:4]):
        (root / "data" / name).mkdir(parents=True)
        for i in range(2):
            image(10 * position + i).save(root / "data" / name / f"{i}.png")
    return root


def command(place: Path, out: Path, *more: object) -> list[object]:
    few = ["--views", 8, "--shard-size", 3, "--cache", out.parent / "cache", "--out", out, "--device", "cpu"]
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
    assert "the features of 8 images and 8 gradients" in out
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


def test_a_limit_holds_all_classes_or_says_how_many_it_lacks(
    capsys: pytest.CaptureFixture[str], place: Path, tmp_path: Path
) -> None:
    """Folders are listed class by class: the first four images are of two classes."""
    given = ["--methods", "zero-shot", "--seeds", 0]
    assert run(capsys, *command(place, tmp_path / "four", *given, "--limit", 4))[::2] == (0, "")
    ids = pq.read_table(tmp_path / "four/data/seed-0")["id"].to_pylist()
    assert sorted(Path(name).parent.name for name in ids) == sorted(NAMES[:4])
    code, _, told = run(capsys, *command(place, tmp_path / "three", *given, "--limit", 3))
    note = "otpt: note: a limit of 3 images leaves classes without an image: 1 of 4 of data"
    assert (code, [line for line in told.splitlines() if "note" in line]) == (0, [note])
    assert set(pq.read_table(tmp_path / "three/data/seed-0")["id"].to_pylist()) < set(ids)


def test_the_headline_closes_with_intervals(capsys: pytest.CaptureFixture[str], place: Path, tmp_path: Path) -> None:
    _, out, _ = run(capsys, *command(place, tmp_path / "run", "--methods", "zero-shot", "tpt"))
    lines = out.splitlines()
    last = max(i for i, line in enumerate(lines) if line.startswith("data"))
    assert lines[last].split() == ["data", "accuracy", "%", "ECE", "%", "debiased", "ECE", "%", "NLL"]
    scores = json.loads((tmp_path / "run/metrics.json").read_text())["scores"]
    for at, score in zip((last + 1, last + 3), scores, strict=True):
        expected = [f"{100 * score[name]:.2f}" for name in ("accuracy", "ece", "debiased_ece")]
        assert lines[at].split() == [score["method"], *expected, f"{score['nll']:.4f}"]
        ends = [float(word) for word in re.findall(r"-?[0-9.]+", lines[at + 1])][1:]
        for value, low, high in zip(map(float, lines[at].split()[1:]), ends[::2], ends[1::2], strict=True):
            assert low <= value <= high
    assert "With fewer than 500 images of a data set (8 here)" in out


def test_unreadable_images_end_in_exit_code_3(capsys: pytest.CaptureFixture[str], place: Path, tmp_path: Path) -> None:
    table = tmp_path / "some.csv"
    good, label = place / "data" / "cat" / "0.png", "cat"
    (tmp_path / "bad.png").write_text("no image")
    dog = place / "data/dog/0.png"
    table.write_text(f"path,label\n{good},{label}\n{tmp_path / 'bad.png'},cat\n{dog},dog\n", encoding="utf-8")
    given = command(place, tmp_path / "run", "--methods", "zero-shot")
    given[1] = table
    code, out, err = run(capsys, *given)
    assert code == 3
    assert "could not read 1 of the images, the first of them" in err
    assert "bad.png' of some: Cannot use" in err
    assert "--retry-unreadable" in err
    assert "zero-shot" in out
    # the same command looks at nothing again, even where it could; two seeds are not two images
    image(3).save(tmp_path / "bad.png")
    assert run(capsys, *given)[0] == 3
    assert run(capsys, *given, "--retry-unreadable")[::2] == (0, "")
    never = [*given[:-1], "zero-shot"]
    never[never.index(tmp_path / "run")] = tmp_path / "never"
    assert run(capsys, *never)[0] == 0
    assert without_commands(tmp_path / "run") == without_commands(tmp_path / "never")


def test_an_unreadable_image_counts_once_and_averages_are_told(
    capsys: pytest.CaptureFixture[str], place: Path, tmp_path: Path
) -> None:
    (tmp_path / "other/cat").mkdir(parents=True)
    (tmp_path / "other/dog").mkdir()
    (tmp_path / "other/cat/bad.png").write_text("no image")
    (tmp_path / "other/classes.txt").write_text("# prompt: a drawing of a\ncat\ndog\n")
    given = command(place, tmp_path / "run", "--methods", "zero-shot", "--seeds", 0, 1, "--limit", 2)
    given.insert(2, tmp_path / "other")
    code, out, err = run(capsys, *given)
    assert code == 3
    assert "could not read 1 of the images, the first of them 'cat/bad.png' of other: Cannot use" in err
    assert "No average of zero-shot with the prompt 'a photo of a' (not evaluated with it: other)." in out
    assert "'a drawing of a' (not evaluated with it: data; without an image that was read: other)." in out
    code, out, _ = run(capsys, "metrics", tmp_path / "run", "--json")
    found = json.loads(out)
    assert (code, found["averages"], len(found["left_out"])) == (0, [], 2)


@pytest.mark.filterwarnings("default:The shard")
def test_metrics_tell_of_a_damaged_shard(capsys: pytest.CaptureFixture[str], place: Path, tmp_path: Path) -> None:
    assert run(capsys, *command(place, tmp_path / "run", "--methods", "zero-shot"))[0] == 0
    path = shard(tmp_path / "run", "zero-shot", 3, 6, name="data")
    path.write_bytes(path.read_bytes()[:-50])
    code, _, err = run(capsys, "metrics", tmp_path / "run")
    assert code == 3
    assert "00000003-00000006.parquet' was damaged" in err
    assert "the run is not complete: 3 of 8 images are missing" in err


def test_interrupted_it_says_how_to_go_on(capsys: pytest.CaptureFixture[str], place: Path, tmp_path: Path) -> None:
    left = [5]

    def interrupt() -> None:
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt

    with computed(interrupt):
        code, _, err = run(capsys, *command(place, tmp_path / "run", "--methods", "tpt"))
    assert code == 130
    assert "stopped; 3 of 8 images are finished" in err
    assert "Repeat the command to continue." in err
    code, _, err = run(capsys, "metrics", tmp_path / "run")
    assert code == 3
    assert "not complete: 5 of 8 images are missing" in err
    assert run(capsys, *command(place, tmp_path / "run", "--methods", "tpt"))[0] == 0
    assert run(capsys, *command(place, tmp_path / "whole", "--methods", "tpt"))[0] == 0
    assert without_commands(tmp_path / "run") == without_commands(tmp_path / "whole")


def without_commands(folder: Path) -> dict[str, object]:
    """The files of a run; of its configuration all but the lines that asked for it."""
    found: dict[str, object] = dict(files(folder))
    config = json.loads((folder / "config.json").read_text())
    assert [line.startswith("otpt evaluate ") for line in config.pop("commands")].count(False) == 0
    assert config.pop("checksum").startswith("sha256:")
    return {**found, "config.json": json.dumps(config)}


def test_a_run_grows_by_further_commands(capsys: pytest.CaptureFixture[str], place: Path, tmp_path: Path) -> None:
    run(capsys, *command(place, tmp_path / "run", "--methods", "zero-shot", "--limit", 4))
    code, out, err = run(capsys, *command(place, tmp_path / "run", "--methods", "o-tpt", "--seeds", 0, 1))
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()[1:3]] == ["zero-shot", "o-tpt"]
    code, out, _ = run(capsys, *command(place, tmp_path / "run", "--methods", "zero-shot", "--seeds", 0, 1))
    assert code == 0
    both = command(place, tmp_path / "whole", "--methods", "zero-shot", "o-tpt", "--seeds", 0, 1)
    code, whole, _ = run(capsys, *both)
    assert out.splitlines()[:3] == whole.splitlines()[:3]
    assert without_commands(tmp_path / "run") == without_commands(tmp_path / "whole")
    assert len(json.loads((tmp_path / "run/config.json").read_text())["commands"]) == 3
    # another λ under the same name
    code, _, err = run(capsys, *command(place, tmp_path / "run", "--methods", "o-tpt", "--set", "lambda=6"))
    assert code == 2
    assert "method 'o-tpt': objectives.orthogonality is" in err
    # what other commands asked for and nobody finished is told
    shard(tmp_path / "run", "o-tpt", 0, 3, name="data").unlink()
    code, _, err = run(capsys, *command(place, tmp_path / "run", "--methods", "zero-shot"))
    assert code == 0
    assert "3 of 16 images are missing that other commands asked of the same run" in err


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
    # words alone go before the class name, as after --prompt of every command
    given = command(place, tmp_path / "words", "--prompts", "itap of a", "a {} on a table.", "--method", "zero-shot")
    given[0] = "sweep"
    code, out, err = run(capsys, *given)
    assert (code, "old spelling" in err) == (0, False)
    assert "itap of a" in out
    assert "a [CLS] on a table" in out


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
        (["--bins", "0"], "expected bins as an integer from 1 to 100, but got 0"),
        (["--prompt-tokens", "2"], "without --prompt"),
        (["--set", "lambda"], "expected NAME=VALUE"),
        (["--cache-size", "0"], "--cache-size was given 0; expected a number of GB above 0"),
        (["--cache-size", "-1"], "--cache-size was given -1"),
        (["--cache-size", "nan"], "--cache-size was given nan"),
        (["--cache-size", "inf"], "--cache-size was given inf"),
        (["--no-cache"], "--cache was given with --no-cache"),
        (["--threads", "-1"], "--threads was given -1; expected 0 or more"),
        (["--official-names"], "differ from ours for Food101 only"),
        (["--official-names", "--classes", "names.txt"], "--official-names was given with --classes"),
        (["--views", "0"], "number of views"),
    ],
)
def test_what_cannot_be_used_is_told(
    capsys: pytest.CaptureFixture[str], place: Path, tmp_path: Path, more: list[str], words: str
) -> None:
    code, _, err = run(capsys, *command(place, tmp_path / "run", *more))
    assert code == 2
    assert words in err
    assert not (tmp_path / "run").exists()


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
    code, _, err = run(capsys, *command(place, tmp_path / "file" / "run", "--methods", "zero-shot"))
    assert (code, "Cannot" in err) == (2, True)


def test_two_folders_of_one_name_are_told_before_a_model_is_read(
    capsys: pytest.CaptureFixture[str], place: Path, tmp_path: Path
) -> None:
    for side in "ab":
        (tmp_path / side / "test" / "cat").mkdir(parents=True)
        image(0).save(tmp_path / side / "test" / "cat" / "0.png")
    code, _, err = run(capsys, "evaluate", tmp_path / "a/test", tmp_path / "b/test", "--backbone", "file:nothing.pt")
    assert code == 2
    assert f"{str(tmp_path / 'a/test')!r} and {str(tmp_path / 'b/test')!r} are both called 'test'" in err


def test_running_numbers_are_those_of_the_metrics() -> None:
    confidence = [0.05, 0.050001, 0.51, 0.55, 0.62, 0.62, 0.99, 1.0]
    correct = [False, True, True, False, True, True, True, False]
    tally = Tally()
    for c, right in zip(confidence, correct, strict=True):
        tally.add(c, right)
    assert tally.ece == pytest.approx(expected_calibration_error(confidence, correct))
    assert tally.accuracy == 5 / 8


def test_progress_in_a_log_and_on_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    lines: list[str] = []
    log = LogProgress(say=lines.append, seconds=0.0)
    console = Console(force_terminal=True, width=100, markup=False)
    with log, TerminalProgress(console) as bar:
        for report in (log, bar):
            report(Started(10, 40))
            report(ImageDone("dtd", 3, {("p", "zero-shot"): (0.9, True), ("p", "o-tpt[lambda=0]"): (0.6, False)}))
            report(ImageDone("dtd", 3, {}))
    assert lines.pop(0) == "10/40 images are already done; 30 are left"
    assert lines[0].startswith("11/40 images, ")
    assert "dtd, seed 3: zero-shot 100.0 % (ECE 10.0); o-tpt[lambda=0] 0.0 % (ECE 60.0)" in lines[0]
    assert "unreadable" not in lines[0]
    assert re.search(r"12/40 images, .* left, 1 unreadable; dtd, seed 3: zero-shot 100", lines[1])
    shown = capsys.readouterr().out
    assert "12/40" in shown
    assert "o-tpt[lambda=0]" in shown
    assert "1 unreadable" in shown
    assert [duration(s) for s in (5, 65, 7300, 200_000)] == ["5 s", "1 min 5 s", "2 h 1 min", "2 d 7 h"]


def test_running_numbers_of_several_workers_are_kept_apart() -> None:
    """Images of several data sets and seeds come in any order."""
    lines: list[str] = []
    log = LogProgress(say=lines.append, seconds=0.0)
    log(Started(0, 6))
    places = [("a", 0), ("b", 0), ("a", 1)]
    for right in (True, False):
        for position, (dataset, seed) in enumerate(places):
            log(ImageDone(dataset, seed, {("p", "tpt"): (0.5, right or position == 1)}))
    assert [line.split("; ")[1] for line in lines[3:]] == [
        "a, seed 0: tpt 50.0 % (ECE 0.0)",
        "b, seed 0: tpt 100.0 % (ECE 50.0)",
        "a, seed 1: tpt 50.0 % (ECE 0.0)",
    ]
    log(Repeated(2))
    log(ImageDone("a", 0, {("p", "tpt"): (0.5, True)}))
    assert lines[-1].startswith("7/8 images, ")
