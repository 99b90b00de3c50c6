"""Methods as data: overriding, method files, bad input."""

from __future__ import annotations

import math
import pickle
from pathlib import Path
from typing import Any

import pytest

from otpt.errors import OtptError
from otpt.methods import Method, get_method, load_methods
from otpt.registry import number_for


@pytest.mark.parametrize("init", ["coop", "cocoop", "maple"])
def test_learned_inits(init: str) -> None:
    """Each has the weights of the same method with words; MaPLe has PromptAlign's learning rates."""
    assert get_method(init).tuning("shift") is None
    for family, rate in (("fine-grained", 5e-4), ("shift", 4e-2)):
        method, words = get_method(f"{init}+o-tpt"), get_method("o-tpt")
        config = method.tuning(family)
        assert config is not None
        assert (method.init, config.weights) == (init, words.tuning(family).weights)  # type: ignore[union-attr]
        assert config.learning_rate == (rate if init == "maple" else 5e-3)
        assert config.selected_count(64) == 6
    assert pickle.loads(pickle.dumps(method)) == method
    assert hash(pickle.loads(pickle.dumps(method))) == hash(method)
    assert method.override({"learning-rate": 0.1}).tuning("shift").learning_rate == 0.1  # type: ignore[union-attr]
    assert get_method(init).has_setting("condition") == (init == "cocoop")


def test_override() -> None:
    config = get_method("o-tpt").override({"lambda": "6", "steps": "2", "learning_rate": 0.01}).tuning("shift")
    assert config is not None
    assert dict(config.weights)["orthogonality"] == 6
    assert (config.steps, config.learning_rate) == (2, 0.01)
    assert get_method("o-tpt").override({"weight": 6}) == get_method("o-tpt").override({"orthogonality": "6"})
    assert get_method("tpt+penalty").override({"range-penalty": 3}).objectives["range-penalty"] == 3
    assert get_method("tpt").override({"two-step": "on"}).two_step is True
    assert get_method("tpt+ts").override({"temperature": "1.3"}).temperature == 1.3
    assert get_method("cocoop").override({"condition": "raw"}).prepared.needs_image
    fitted = get_method("o-tpt").override({"temperature": 1.2, "calibrate": "temperature"})
    assert (fitted.calibrate, fitted.temperature) == ("temperature", 1.2)
    assert get_method("o-tpt").objectives["orthogonality"] != 6, "the registry is unchanged"


def test_another_calibrator_drops_settings_of_the_first() -> None:
    method = get_method("tpt+cots").override({"strong-ratio": 0.2})
    assert method.override({"calibrate": "sals"}).settings == {}
    assert method.override({"calibrate": "cots"}).settings == {"strong_ratio": 0.2}


@pytest.mark.parametrize(
    ("name", "setting", "value"),
    [
        ("o-tpt", "lambda", "-1"), ("o-tpt", "lambda", "many"), ("o-tpt", "lambda", "nan"), ("o-tpt", "lambda", "inf"),
        ("tpt", "lambda", "1"), ("o-tpt+c-tpt", "lambda", "1"), ("o-tpt", "lamda", "1"), ("o-tpt", "steps", "0"),
        ("o-tpt", "steps", "1.5"), ("o-tpt", "steps", "inf"), ("o-tpt", "selection-ratio", "0"),
        ("o-tpt", "learning-rate", "-1"), ("o-tpt", "temperature", "1.2"), ("tpt+ts", "temperature", "0"),
        ("tpt+zs", "reference", "both"), ("tpt", "two-step", "perhaps"), ("tpt", "calibrate", "magic"),
        ("zero-shot", "steps", "2"), ("cocoop", "condition", "big"), ("coop", "condition", "raw"),
        ("promptsmooth", "calibrate", "sals"), ("tpt", "delt", "1"), ("soc", "huber-delta", 0),
        ("d-tpt", "reverse-kl", 0.5), ("tda", "cache-alpha", -1), ("tda", "mean-views", 0.5),
        ("tda", "stream-ratio", 0), ("boost", "boost-delta", 1.5), ("dmn", "memory-size", 0),
        ("bca", "bca-matrix-from", 2), ("zero", "vote-ratio", 0), ("zero", "vote-temperature", -1),
        ("mta", "mta-lambda-y", 0), ("r-tpt", "reliable-neighbours", 1.5), ("tps", "shift-rate", 0),
        ("mean-feature", "clean-weight", 1), ("sts", "mean-fraction", 1.1), ("rlcf", "sampled-classes", 1),
        ("tpt+cots", "strong-ratio", 0), ("tpt+e-cots", "strong-ratio", 1.5), ("zero-shot+se", "se-power", 0),
        ("tpt+cas", "cas-threshold", 1.1), ("tpt+agreement", "gate-ratio", -1), ("tpt+dac", "dac-neighbours", 2.5),
    ],
)  # fmt: skip
def test_bad_setting(name: str, setting: str, value: Any) -> None:
    with pytest.raises(OtptError) as error:
        get_method(name).override({setting: value})
    assert str(value) in str(error.value) or setting in str(error.value)
    assert repr(name) in str(error.value) or setting == "calibrate"


@pytest.mark.parametrize(
    ("values", "offending"),
    [
        ({"adapt": "baple", "calibrate": "sals"}, "'sals'"),
        ({"adapt": "fpt", "init": "coop"}, "'coop'"),
        ({"adapt": "promptsmooth", "init": "cocoop"}, "'cocoop'"),
        ({"aggregate": "votes"}, "votes"),
        ({"aggregate": "mode"}, "'mode'"),
        ({"adapt": "cache"}, "'cache'"),
        ({"gate": "doubt"}, "'doubt'"),
        ({"init": "cop"}, "coop"),
        ({"init": "templates-7", "objectives": {"entropy": 1.0}}, "'templates-7'"),
        ({"init": "attributes", "adapt": "tps"}, "'attributes'"),
        ({"views": 0}, "0"),
        ({"objectives": {"entrpy": 1.0}}, "entropy"),
        ({"objectives": {"entropy": {"shift": 1.0}}}, "shift"),
        ({"objectives": {"entropy": 1.0}, "learning_rate": {"shift": 1.0}}, "learning_rate"),
        ({"objectives": {"entropy": 1.0}, "steps": math.inf}, "inf"),
        ({"objectives": {"entropy": 1.0, "huber": 30.0}, "settings": {"huber_dleta": 0.3}}, "huber-delta"),
        ({"aggregate": "zero", "settings": {"vote_ratio": {"food101": 1.0}}}, "food101"),
        ({"aggregate": "zero", "settings": {"vote_ratio": {"food101": 0.5, "others": -1.0}}}, "-1.0"),
    ],
)
def test_bad_method(values: dict[str, Any], offending: str) -> None:
    with pytest.raises(OtptError) as error:
        Method("mine", **values)
    assert offending in str(error.value)


@pytest.mark.parametrize(("dataset", "expected"), [("caltech101", 5.0), ("imagenet-r", 1.0), ("mine", 2.0), ("", 2.0)])
def test_number_for_a_data_set(dataset: str, expected: float) -> None:
    table = {"caltech101": 5.0, "shift": 1.0, "others": 2.0}
    family = "shift" if dataset.startswith("imagenet-") else "fine-grained"
    assert number_for(table, family, dataset) == expected
    assert number_for(3.0, family, dataset) == 3.0


def test_method_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml.d" / "mine.toml"
    file.parent.mkdir()
    file.write_text(
        """
        [gentle]
        summary = "a third of O-TPT"
        objectives = { entropy = 1, orthogonality = { fine-grained = 6, shift = 0.7 } }
        learning-rate = 0.01

        [sharp]
        objectives = { entropy = 1 }
        calibrate = "temperature"
        temperature = 0.9
        """,
        encoding="utf-8-sig",
    )
    assert list(load_methods(file)) == ["gentle", "sharp"]
    config = get_method(f"{file}:gentle").tuning("shift")
    assert config is not None
    assert (dict(config.weights)["orthogonality"], config.learning_rate) == (0.7, 0.01)
    for name in ("lambda", "weight"):
        with pytest.raises(OtptError, match=f"has no objective, so {name} has no effect"):
            get_method(f"zero-shot[{name}=3]")
    changed = get_method(f"{file}:gentle[lambda=3]")
    assert (changed.name, changed.objectives["orthogonality"]) == ("gentle[lambda=3]", 3.0)
    with pytest.raises(OtptError, match="gentle, sharp"):
        get_method(str(file))
    with pytest.raises(OtptError, match="'gentel'"):
        get_method(f"{file}:gentel")


@pytest.mark.parametrize(
    ("text", "offending"),
    [
        ("[a", "TOML"),
        ("", "no method"),
        ("a = 1", "no method"),
        ("[a]\nobjective = {}", "objectives"),
        ("[a]\nobjectives = 3", "3"),
        ('[a]\nobjectives = { entropy = "one" }', "'one'"),
        ("[a]\nobjectives = { entropy = true }", "True"),
        ("[a]\nobjectives = { entropy = -1 }", "-1"),
        ("[a]\nsteps = 1.5", "1.5"),
        ("[a]\nsteps = true", "True"),
        ("[a]\ntwo_step = 1", "1"),
        ("[a]\nlearning-rate = 0.1\nlearning_rate = 0.2", "both - and _"),
        ('[a]\naggregate = "zero"\nsettings = { vote-ration = 1 }', "vote-ratio"),
    ],
)
def test_bad_method_file(text: str, offending: str, tmp_path: Path) -> None:
    file = tmp_path / "bad.toml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(OtptError) as error:
        load_methods(file)
    assert offending in str(error.value)
    assert "bad.toml" in str(error.value)


def test_unreadable_method_file(tmp_path: Path) -> None:
    with pytest.raises(OtptError, match=r"none\.toml"):
        get_method(str(tmp_path / "none.toml"))
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(OtptError, match=r"binary\.toml"):
        load_methods(tmp_path / "binary.toml")
