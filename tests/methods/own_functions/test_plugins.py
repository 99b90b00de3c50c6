"""Plugins on the command line and in Python."""

from __future__ import annotations

import json
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

@otpt.calibrator
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


MODEL = ("--backbone", "tiny", "--device", "cpu", "--views", 8, "--plugin", "mine.py")


def test_plugin_on_the_command_line_and_in_python(bench: Path, capsys: pytest.CaptureFixture[str]) -> None:
    methods = ("zero-shot", *METHODS)
    code, out, err = run(
        capsys, "predict", "data/cat/0.png", "--classes", *NAMES, "--methods", *methods, *MODEL, "--json"
    )
    assert code == 0, err
    answers = {answer["method"]: answer for answer in map(json.loads, out.splitlines())}
    assert otpt.load_plugin(bench / "mine.py") == otpt.load_plugin(bench / "mine.py")
    clf = otpt.load("tiny", "zero-shot", device="cpu", views=ViewRecipe(n_views=8)).set_classes(NAMES)
    found = clf.compare(bench / "data/cat/0.png", methods)
    for name in methods:
        assert answers[name]["confidence"] == pytest.approx(found[name].confidence, abs=1e-12)


def test_a_plugin_is_listed_with_its_axis(bench: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "methods", "--plugin", "mine.py")
    assert code == 0
    listed = {part.name: part.axis for part in known_parts().values()}
    assert listed["own-mean"] == "aggregate"
    assert out.index("\naggregate:") < out.index("own-mean") < out.index("\ngate:") < out.index("views-disagree")


@pytest.mark.parametrize(
    ("text", "offending"),
    [
        ("@otpt.aggregation\ndef own_mean(probabilities):\n    return probabilities", "'data: "),
        ("@otpt.aggregation\ndef own_mean(pixels):\n    return pixels", "'pixels'"),
        ("def", "SyntaxError"),
        ("1 / 0", "ZeroDivisionError"),
        ("", "'own-mean'"),
    ],
)
def test_bad_plugin(text: str, offending: str, bench: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line on the command line; a function that fails on an image names it by data set and id, as rows do."""
    plugin(bench, text)
    code, _, err = run(capsys, "evaluate", "data", "--methods", "tpt+own-mean", "--out", "run", "--no-cache", *MODEL)
    assert (code, offending in err) == (2, True), err
    assert err.count("\n") == 1


def test_a_plugin_that_failed_can_be_mended_and_loaded_again(tmp_path: Path) -> None:
    text = "@otpt.aggregation\ndef one(probabilities):\n    return probabilities[0]\n"
    with pytest.raises(OtptError, match="NameError: name 'missing' is not defined"):
        otpt.load_plugin(plugin(tmp_path, f"{text}\nmissing()\n"))
    assert "one" not in known_parts()
    otpt.load_plugin(plugin(tmp_path, text))
    assert compose("tpt+one").aggregate == "one"
