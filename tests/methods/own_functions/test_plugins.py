"""Plugins on the command line and in Python."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from oracles.command import run
from oracles.methods.own_functions import NAMES, image, plugin
from oracles.models.tiny import open_clip_local_dir

import otpt
from otpt import OtptError, ViewRecipe
from otpt.methods import compose, known_parts

pytestmark = pytest.mark.slow

PLUGIN = '''
@otpt.aggregation
def own_mean(probabilities):
    """The mean over all views."""
    return probabilities.mean(dim=0)

@otpt.calibration
def halved(logits):
    return logits / FACTOR

@otpt.gate
def views_disagree(zero_shot):
    return len(zero_shot.argmax(dim=1).unique()) > 1

@otpt.objective(weight=50.0, maximise=True)
def my_dispersion(text_features):
    return (text_features - text_features.mean(dim=-2, keepdim=True)).norm(dim=-1).mean(dim=-1)

@otpt.adaptation
def sharpened(zero_shot):
    return 2 * zero_shot

FACTOR = 2
'''
METHODS = ("tpt+own-mean", "o-tpt+halved", "tpt+views-disagree", "tpt+my-dispersion", "sharpened")


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a tiny model, a data set and a plugin."""
    open_clip_local_dir(tmp_path / "tiny")
    for i in range(5):
        place = tmp_path / "data" / NAMES[i % 2]
        place.mkdir(parents=True, exist_ok=True)
        image(i).save(place / f"{i}.png")
    plugin(tmp_path, PLUGIN)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def command(folder: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "otpt.cli", *map(str, arguments), "--backbone", "tiny", "--device", "cpu"]
    return subprocess.run(line, cwd=folder, capture_output=True, text=True)


def shards(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*.parquet"))}


@pytest.mark.equality
def test_a_plugin_on_the_command_line_with_one_and_two_workers(bench: Path) -> None:
    common = ("evaluate", "data", "--methods", *METHODS, "--plugin", "mine.py", "--views", 8, "--no-cache")
    for workers in (1, 2):
        done = command(bench, *common, "--workers", workers, "--shard-size", 2, "--out", f"run-{workers}")
        assert done.returncode == 0, done.stderr
    assert len(shards(bench / "run-1")) == 3 * len(METHODS)
    assert shards(bench / "run-1") == shards(bench / "run-2")
    config = json.loads((bench / "run-1/config.json").read_text(encoding="utf-8"))
    assert list(config["methods"]["o-tpt+halved"]["own_functions"]) == ["halved"]


def test_a_plugin_for_single_images(bench: Path) -> None:
    """``otpt predict`` says what Python says."""
    methods = ("zero-shot", *METHODS)
    done = command(bench, "predict", "data/cat/0.png", "--classes", *NAMES, "--method", *methods, "--plugin", "mine.py",
                   "--views", 8, "--json")  # fmt: skip
    assert done.returncode == 0, done.stderr
    answers = {answer["method"]: answer for answer in map(json.loads, done.stdout.splitlines())}
    otpt.load_plugin(bench / "mine.py")
    otpt.load_plugin(bench / "mine.py")  # the same file twice is the same plugin
    clf = otpt.load("tiny", "zero-shot", device="cpu", recipe=ViewRecipe(n_views=8)).set_classes(NAMES)
    found = clf.compare(bench / "data/cat/0.png", methods)
    for name in methods:
        assert answers[name]["confidence"] == pytest.approx(found[name].confidence, abs=1e-12)
        assert answers[name]["extras"] == pytest.approx(dict(found[name].extras), abs=1e-12)


def test_a_plugin_is_listed_with_its_axis(bench: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "methods", "--plugin", "mine.py")
    assert code == 0
    listed = {part.name: part.axis for part in known_parts().values()}
    assert listed["own-mean"] == "aggregate"
    assert out.index("\naggregate:") < out.index("own-mean") < out.index("\ngate:") < out.index("views-disagree")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "@otpt.aggregation\ndef own_mean(probabilities):\n    return probabilities",
            "The aggregation 'own-mean",
        ),
        ("@otpt.aggregation\ndef own_mean(pixels):\n    return pixels", "takes a parameter 'pixels'"),
        ("def", "The plugin 'mine.py' failed: SyntaxError: "),
        ("1 / 0", "The plugin 'mine.py' failed: ZeroDivisionError: division by zero."),
        ("", "Unknown part 'own-mean' of the method 'tpt+own-mean'."),
    ],
)
def test_wrong_plugins_on_the_command_line(
    text: str, words: str, bench: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plugin(bench, text)
    model = ("--plugin", "mine.py", "--backbone", "tiny", "--device", "cpu", "--views", 8)
    code, _, err = run(capsys, "evaluate", "data", "--methods", "tpt+own-mean", "--out", "run", "--no-cache", *model)
    assert (code, words in err) == (2, True), err
    assert err.count("\n") == 1
    image_and_classes = ("data/cat/0.png", "--classes", *NAMES)
    code, _, err = run(capsys, "predict", *image_and_classes, "--method", "tpt+own-mean", *model)
    assert (code, words in err) == (2, True), err


@pytest.mark.parametrize(
    ("text", "method", "shape"),
    [
        ("@otpt.aggregation\ndef mine(probabilities):\n    return probabilities", "mine", "(8, 2)"),
        ("@otpt.calibration\ndef mine(logits):\n    return logits[0, 9]", "tpt+mine", "logits of shape (1, 2)"),
        ("@otpt.objective\ndef mine(text_features):\n    1 / 0", "tpt+mine", "text features of shape (1, 2, 32)"),
        ("@otpt.adaptation\ndef mine(logits, state):\n    return logits / 0", "mine", "of shape (8, 2)"),
    ],
)
def test_an_evaluation_names_the_image_that_a_function_failed_on(
    text: str, method: str, shape: str, bench: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By data set and id, as the rows do: what a work item is made of says nothing to a user."""
    plugin(bench, text)
    model = ("--plugin", "mine.py", "--backbone", "tiny", "--device", "cpu", "--views", 8, "--no-cache")
    code, _, err = run(capsys, "evaluate", "data", "--methods", method, "--out", "run", *model)
    assert code == 2
    assert re.search(r" 'mine' .*mage (was )?'data: (cat|dog)/\d\.png'", err), err
    assert shape in err
    assert err.count("\n") == 1


def test_a_plugin_that_failed_can_be_mended_and_loaded_again(tmp_path: Path) -> None:
    text = "@otpt.aggregation\ndef one(probabilities):\n    return probabilities[0]\n"
    with pytest.raises(OtptError, match="NameError: name 'missing' is not defined"):
        otpt.load_plugin(plugin(tmp_path, f"{text}\nmissing()\n"))
    assert "one" not in known_parts()
    otpt.load_plugin(plugin(tmp_path, text))
    assert compose("tpt+one").aggregate == "one"


def test_plugins_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(OtptError, match=r"Cannot read the plugin '.*none\.py': No such file"):
        otpt.load_plugin(tmp_path / "none.py")
    (tmp_path / "mine.txt").write_text("import otpt", encoding="utf-8")
    with pytest.raises(OtptError, match=r"is not a Python file; expected FILE\.py"):
        otpt.load_plugin(tmp_path / "mine.txt")


def test_a_plugin_that_was_interrupted_can_be_loaded_again(tmp_path: Path) -> None:
    plugin(tmp_path, "@otpt.gate\ndef often(zero_shot):\n    return True\n\nraise KeyboardInterrupt")
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            otpt.load_plugin(tmp_path / "mine.py")
        assert "often" not in known_parts()
