"""Registration of functions and plugins: names, parameters, the command line, and what is said when one goes wrong."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from oracles.command import run
from oracles.methods.own_functions import EXACT, NAMES, backbone, classifier, image, plugin, predicted
from oracles.models.tiny import open_clip_local_dir
from torch import Tensor

import otpt
from otpt import Classifier, Method, OtptError, ViewRecipe
from otpt.methods import compose, known_parts
from otpt.plugins import snapshot
from otpt.registry import AGGREGATIONS, OBJECTIVES, Fraction, Positive

pytestmark = pytest.mark.usefixtures("registries")

OBJECTIVE = '''
@otpt.objective(weight=5.0, source="Author et al., 2030")
def mean_square(text_features, exponent: Positive = 2.0):
    """Mean of the powers of all coordinates."""
    return text_features.abs().pow(exponent).mean(dim=(-2, -1))
'''
AGGREGATION = '''
@otpt.aggregation(source="Author et al., 2030")
def trimmed(probabilities, share: Fraction = 0.5):
    """Mean of the first views."""
    return probabilities[: max(int(share * len(probabilities)), 1)].mean(dim=0)
'''
IMPORTS = "from otpt.registry import Fraction, Positive\n"


def test_shipping_a_function_takes_the_function_alone(tmp_path: Path) -> None:
    """The same source text in a plugin and in a module of the package; no other place knows of it."""
    restore = snapshot()
    otpt.load_plugin(plugin(tmp_path, IMPORTS + OBJECTIVE + AGGREGATION))
    parts = dict(known_parts())
    found = [predicted(name) for name in ("tpt+mean-square", "tpt+trimmed", "o-tpt+mean-square[weight=20]+trimmed")]
    assert OBJECTIVES["mean-square"].digest
    assert AGGREGATIONS["trimmed"].digest
    restore()

    for module, source in (("otpt.objectives", OBJECTIVE), ("otpt.methods.aggregations", AGGREGATION)):
        exec(source, {"__name__": module, "otpt": otpt, "Fraction": Fraction, "Positive": Positive})
    assert OBJECTIVES["mean-square"].digest == AGGREGATIONS["trimmed"].digest == "", "these are ours"
    assert known_parts() == parts
    assert parts["mean-square"].objectives == {"mean-square": 5.0}
    assert compose("tpt+mean-square").defaults == {"exponent": 2.0}
    assert compose("trimmed").defaults == {"share": 0.5}
    again = [predicted(name) for name in ("tpt+mean-square", "tpt+trimmed", "o-tpt+mean-square[weight=20]+trimmed")]
    for one, other in zip(found, again, strict=True):
        assert torch.equal(one, other)
    with pytest.raises(OtptError, match="exponent"):
        compose("tpt+mean-square[exponent=0]")


def test_weight_of_an_own_objective() -> None:
    @otpt.objective
    def mine(text_features: Tensor) -> Tensor:
        return text_features.square().sum(dim=(-2, -1)).sqrt() + text_features[..., 0].sum(dim=-1)

    by_name = compose("tpt+mine[weight=20]")
    assert dict(by_name.objectives) == {"entropy": 1.0, "mine": 20.0}
    for setting in ("lambda", "weight", "mine"):
        assert compose("tpt+mine").override({setting: "20"}).objectives == by_name.objectives
    torch.testing.assert_close(predicted(by_name), predicted(Method("x", {"entropy": 1.0, "mine": 20.0})), **EXACT)
    with pytest.raises(OtptError, match=r"mine\[weight=20\]"):
        compose("o-tpt+mine").override({"weight": 20})


def test_a_name_belongs_to_one_function() -> None:
    def register(row: int) -> Callable[[Tensor], Tensor]:
        if row == 0:

            @otpt.aggregation
            def mine(probabilities: Tensor) -> Tensor:
                return probabilities[0]
        else:

            @otpt.aggregation
            def mine(probabilities: Tensor) -> Tensor:
                return probabilities[1]

        return mine

    register(0)
    register(0)  # the same again, as when a cell of a notebook is run twice
    with pytest.raises(OtptError, match="'mine'"):
        register(1)
    with pytest.raises(OtptError, match="'aggregate' already has a part 'mine'"):
        register_objective("mine")
    assert compose("tpt+mine").aggregate == "mine"


def register_objective(name: str) -> None:
    def function(text_features: Tensor) -> Tensor:
        return text_features.sum(dim=(-2, -1))

    function.__name__ = name
    otpt.objective(function)


@pytest.mark.parametrize(("name", "axis"), [("sals", "calibrate"), ("entropy", "objective"), ("tpt", "adapt")])
def test_names_of_ours_are_taken(name: str, axis: str) -> None:
    before = dict(known_parts())
    with pytest.raises(OtptError, match=f"'{axis}' already has a part '{name}'"):
        register_objective(name)
    assert known_parts() == before


def pixels(pixels: Tensor) -> Tensor:
    return pixels


def both(logits: Tensor, text_features: Tensor) -> Tensor:
    return logits


def neither(attributes: int) -> int:
    return attributes


@pytest.mark.parametrize(
    ("decorator", "function", "offending"),
    [
        (otpt.aggregation, pixels, "pixels"),
        (otpt.gate, pixels, "pixels"),
        (otpt.calibrator, pixels, "pixels"),
        (otpt.adaptation, pixels, "pixels"),
        (otpt.objective, pixels, "pixels"),
        (otpt.objective, both, "text_features"),
        (otpt.objective, neither, "neither"),
        (otpt.aggregation, lambda probabilities: probabilities[0], "lambda"),
    ],
)
def test_bad_function(decorator: Callable[..., Any], function: Callable[..., Any], offending: str) -> None:
    with pytest.raises(OtptError, match=offending):
        decorator(function)


def test_own_parts_conflict_like_ours() -> None:
    @otpt.adaptation
    def moved(zero_shot: Tensor) -> Tensor:
        return zero_shot

    @otpt.calibrator
    def halved(logits: Tensor) -> Tensor:
        return logits / 2

    for name in ("moved+o-tpt", "moved+zero-shot", "tpt+sals+halved", "promptsmooth+halved", "tpt+halve"):
        with pytest.raises(OtptError):
            compose(name)
    with pytest.raises(OtptError, match="'moved'"):
        Method("mine", {"entropy": 1.0}, adapt="moved")
    assert (compose("moved+halved").adapt, compose("moved+halved").calibrate) == ("moved", "halved")


SOURCE = '''
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
    plugin(tmp_path, SOURCE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


MODEL = ("--backbone", "tiny", "--device", "cpu", "--views", 8, "--plugin", "mine.py")


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_plugin_is_listed_with_its_axis(bench: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "methods", "--plugin", "mine.py")
    assert code == 0
    listed = {part.name: part.axis for part in known_parts().values()}
    assert listed["own-mean"] == "aggregate"
    assert out.index("\naggregate:") < out.index("own-mean") < out.index("\ngate:") < out.index("views-disagree")


@pytest.mark.slow
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
    """One line after notes on the command line; a function that fails on an image names it as rows do."""
    plugin(bench, text)
    code, _, err = run(capsys, "evaluate", "data", "--methods", "tpt+own-mean", "--out", "run", "--no-cache", *MODEL)
    assert (code, offending in err) == (2, True), err
    assert [line.startswith("otpt: note: ") for line in err.splitlines()].count(False) == 1


@pytest.mark.slow
def test_a_plugin_that_failed_can_be_mended_and_loaded_again(tmp_path: Path) -> None:
    text = "@otpt.aggregation\ndef one(probabilities):\n    return probabilities[0]\n"
    with pytest.raises(OtptError, match="NameError: name 'missing' is not defined"):
        otpt.load_plugin(plugin(tmp_path, f"{text}\nmissing()\n"))
    assert "one" not in known_parts()
    otpt.load_plugin(plugin(tmp_path, text))
    assert compose("tpt+one").aggregate == "one"


def sentence(method: str | Method, source: Any = None) -> str:
    with pytest.raises(OtptError) as error:
        classifier().compare(image(1) if source is None else source, [method])
    return str(error.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("decorator", "body", "method", "offending"),
    [
        ("aggregation", "def mine(probabilities): return probabilities[99]", "mine", "IndexError"),
        ("aggregation", "def mine(probabilities): return probabilities", "mine", "(20, 4)"),
        ("aggregation", "def mine(probabilities): return probabilities[0].tolist()", "mine", "a list"),
        ("aggregation", "def mine(probabilities): return probabilities[0] / 0 * 0", "mine", "nan"),
        ("aggregation", "def mine(probabilities): return 2 * probabilities[0]", "mine", "sum to 2"),
        ("aggregation", "def mine(probabilities): return probabilities[0] - 0.25", "mine", "from -0.2"),
        ("aggregation", "def mine(probabilities): return None", "mine", "NoneType"),
        ("calibrator", "def mine(logits): return logits[0, :2]", "tpt+mine", "(2,)"),
        ("calibrator", "def mine(logits): return logits / 0", "tpt+mine", "nan"),
        ("calibrator", "def mine(logits): raise ValueError('no.')", "tpt+mine", "ValueError: no."),
        ("gate", "def mine(zero_shot): return zero_shot > 0", "tpt+mine", "(20, 4)"),
        ("gate", "def mine(zero_shot): return 'yes'", "tpt+mine", "a str"),
        ("gate", "def mine(zero_shot): return zero_shot.nothing", "tpt+mine", "AttributeError"),
        ("adaptation", "def mine(zero_shot): return zero_shot[0]", "mine", "(4,)"),
        ("adaptation", "def mine(zero_shot): return 1 / 0", "mine", "ZeroDivisionError"),
        ("objective", "def mine(text_features): return text_features.sum()", "tpt+mine", "of shape ()"),
        ("objective", "def mine(text_features): return text_features.sum(dim=(-2, -1)) * float('nan')", "tpt+mine",
         "nan"),
        ("objective", "def mine(text_features): return text_features.detach().sum(dim=(-2, -1))", "tpt+mine",
         "without gradient"),
        ("objective", "def mine(text_features): return text_features @ text_features", "tpt+mine", "RuntimeError"),
        ("objective", "def mine(logits): return logits.mean(dim=-1)", "mine", "(2,)"),
        ("objective", "def mine(logits): raise KeyError('k')", "mine", "KeyError"),
    ],
)  # fmt: skip
def test_bad_return_value(decorator: str, body: str, method: str, offending: str, tmp_path: Path) -> None:
    """One sentence with the kind of function, its name, the image and what went wrong."""
    otpt.load_plugin(plugin(tmp_path, f"@otpt.{decorator}\n{body}\n"))
    said = sentence(method)
    assert said.startswith(f"The {decorator} 'mine' ")
    assert "'image 1'" in said
    assert offending in said
    assert "\n" not in said


@pytest.mark.slow
def test_one_view_is_not_enough_for_a_function_of_all_views() -> None:
    @otpt.aggregation
    def own_mean(probabilities: Tensor) -> Tensor:
        return probabilities.mean(dim=0)

    @otpt.gate
    def always(zero_shot: Tensor) -> bool:
        return True

    single = ViewRecipe(n_views=1)
    for name in ("own-mean", "tpt+own-mean", "tpt+always"):
        with pytest.raises(OtptError, match=re.escape(repr(name))):
            Classifier(backbone(), name, views=single)
    assert Classifier(backbone(), "tpt", views=single).method.name == "tpt"
