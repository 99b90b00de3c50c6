"""Methods as data: the published numbers, composing, overriding, and files of one's own."""

from __future__ import annotations

import math
import pickle
from pathlib import Path

import pytest

from otpt.errors import OtptError
from otpt.methods import Method, get_method, get_methods, load_methods, published_methods

CORE = [
    "zero-shot",
    "tpt",
    "c-tpt",
    "o-tpt",
    "o-tpt-rows",
    "o-tpt-frobenius",
    "o-tpt-squared",
    "o-tpt+c-tpt",
    "tpt+ts",
    "tpt+sals",
    "tpt+penalty",
    "tpt+zs",
    "c-tpt+sals",
    "c-tpt+penalty",
    "c-tpt+zs",
]


def test_the_core_methods_are_there_and_explained() -> None:
    methods = published_methods()
    assert [name for name, method in methods.items() if (method.init, method.adapt) == ("words", "context")] == CORE
    assert all(method.summary and method.source for method in published_methods().values())


@pytest.mark.parametrize(
    ("name", "family", "weights"),
    [
        ("tpt", "fine-grained", {"entropy": 1}),
        ("c-tpt", "fine-grained", {"entropy": 1, "dispersion": 50}),
        ("c-tpt", "shift", {"entropy": 1, "dispersion": 20}),
        ("o-tpt", "fine-grained", {"entropy": 1, "orthogonality": 18}),
        ("o-tpt", "shift", {"entropy": 1, "orthogonality": 2}),
        ("o-tpt+c-tpt", "fine-grained", {"entropy": 1, "orthogonality": 18, "dispersion": 50}),
        ("tpt+penalty", "shift", {"entropy": 1, "range-penalty": 10}),
        ("c-tpt+zs", "fine-grained", {"rescaled-entropy": 1, "dispersion": 50}),
        ("c-tpt+penalty", "shift", {"entropy": 1, "range-penalty": 10, "dispersion": 50}),
    ],
)
def test_published_weights(name: str, family: str, weights: dict[str, float]) -> None:
    config = get_method(name).tuning(family)
    assert config is not None
    assert dict(config.weights) == weights
    numbers = (config.steps, config.learning_rate, config.weight_decay, config.selected_count(64))
    assert numbers == (1, 5e-3, 0.01, 6)


@pytest.mark.parametrize("init", ["coop", "cocoop", "maple"])
def test_learned_inits(init: str) -> None:
    """Each has the weights of the same method with words; MaPLe has PromptAlign's learning rates."""
    assert get_method(init).tuning("shift") is None
    assert get_method(init).init == init
    for name in ("tpt", "c-tpt", "o-tpt"):
        for family, rate in (("fine-grained", 5e-4), ("shift", 4e-2)):
            method, words = get_method(f"{init}+{name}"), get_method(name)
            config = method.tuning(family)
            assert config is not None
            assert (method.init, config.weights) == (init, words.tuning(family).weights)  # type: ignore[union-attr]
            assert config.learning_rate == (rate if init == "maple" else 5e-3)
        assert pickle.loads(pickle.dumps(method)) == method
        assert method.override({"learning-rate": 0.1}).tuning("shift").learning_rate == 0.1  # type: ignore[union-attr]
    assert get_method(init).has_setting("condition") == (init == "cocoop")


def test_conditions_of_cocoop() -> None:
    assert get_method("cocoop").override({"condition": "raw"}).condition == "raw"
    with pytest.raises(OtptError, match="Unknown condition 'big'"):
        get_method("cocoop").override({"condition": "big"})
    with pytest.raises(OtptError, match="Unknown setting of method 'coop'"):
        get_method("coop").override({"condition": "raw"})
    with pytest.raises(OtptError, match=r"Unknown init 'cop'\. Did you mean: coop"):
        Method("mine", init="cop")
    with pytest.raises(OtptError, match=r"learning_rate has numbers for \['shift'\]"):
        Method("mine", objectives={"entropy": 1.0}, learning_rate={"shift": 1.0})


def test_zero_shot_tunes_nothing() -> None:
    assert get_method("zero-shot").tuning("shift") is None


def test_override() -> None:
    config = get_method("o-tpt").override({"lambda": "6", "steps": "2", "learning_rate": 0.01}).tuning("shift")
    assert config is not None
    assert dict(config.weights)["orthogonality"] == 6
    assert (config.steps, config.learning_rate) == (2, 0.01)
    assert get_method("tpt+penalty").override({"range-penalty": 3}).objectives["range-penalty"] == 3
    assert get_method("tpt+ts").override({"temperature": "1.3"}).temperature == 1.3
    fitted = get_method("o-tpt").override({"temperature": 1.2, "calibrate": "temperature"})
    assert (fitted.calibrate, fitted.temperature) == ("temperature", 1.2)
    assert get_method("o-tpt").objectives["orthogonality"] != 6, "the registry's own method stays as it is"


def test_which_settings_a_method_has() -> None:
    has = {name: get_method(name).has_setting for name in CORE}
    assert [name for name in CORE if has[name]("lambda")] == [n for n in CORE if n.startswith(("o-tpt", "c-tpt"))]
    assert [name for name in CORE if has[name]("temperature")] == ["tpt+ts"]
    assert [name for name in CORE if has[name]("range_penalty")] == ["tpt+penalty", "c-tpt+penalty"]
    assert [name for name in CORE if not has[name]("steps")] == ["zero-shot"]
    assert not has["o-tpt"]("lamda")


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("o-tpt", {"lambda": "-1"}, "weight of orthogonality is -1.0; expected a finite number, 0 or more"),
        ("o-tpt", {"lambda": "many"}, "'many'; expected a number"),
        ("o-tpt", {"lambda": "nan"}, "expected a finite number"),
        ("o-tpt", {"lambda": "inf"}, "expected a finite number"),
        ("tpt", {"lambda": "1"}, "has no regulariser"),
        ("o-tpt+c-tpt", {"lambda": "1"}, "set each by its name: orthogonality, dispersion"),
        ("o-tpt", {"lamda": "1"}, "Did you mean: lambda"),
        ("o-tpt", {"steps": "0"}, "number of steps is 0; expected 1, 2, 3"),
        ("o-tpt", {"steps": "1.5"}, "expected a whole number"),
        ("o-tpt", {"steps": "inf"}, "steps is 'inf'; expected a whole number"),
        ("o-tpt", {"steps": "nan"}, "steps is 'nan'; expected a whole number"),
        ("o-tpt", {"selection-ratio": "0"}, "above 0"),
        ("o-tpt", {"learning-rate": "-1"}, "above 0"),
        ("o-tpt", {"temperature": "1.2"}, "does not use a temperature"),
        ("tpt+ts", {"temperature": "0"}, "above 0"),
        ("tpt+zs", {"reference": "both"}, "confident or clean"),
        ("tpt", {"two-step": "perhaps"}, "on or off"),
        ("tpt", {"calibrate": "magic"}, "Unknown calibration"),
        ("zero-shot", {"steps": "2"}, "tunes nothing"),
    ],
)
def test_overrides_that_cannot_be(name: str, settings: dict[str, str], message: str) -> None:
    with pytest.raises(OtptError, match=message):
        get_method(name).override(settings)


def test_unknown_names_are_answered_with_suggestions() -> None:
    with pytest.raises(OtptError, match=r"Unknown method 'otp'. Did you mean: .*o-tpt"):
        get_method("otp")
    with pytest.raises(OtptError, match="given twice"):
        get_methods(["tpt", "tpt"])
    with pytest.raises(OtptError, match=r"Unknown objective 'entrpy'\. Did you mean: entropy"):
        Method("mine", {"entrpy": 1.0})
    with pytest.raises(OtptError, match="expected one for each of"):
        Method("mine", {"entropy": {"shift": 1.0}})
    with pytest.raises(OtptError, match="number of steps is inf; expected 1, 2, 3"):
        Method("mine", {"entropy": 1.0}, steps=math.inf)  # type: ignore[arg-type]
    with pytest.raises(OtptError, match=r"Unknown setting 'huber-dleta'\. Did you mean: huber-delta"):
        Method("mine", {"entropy": 1.0, "huber": 30.0}, settings={"huber_dleta": 0.3})


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
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
        encoding="utf-8",
    )
    methods = load_methods(file)
    assert list(methods) == ["gentle", "sharp"]
    config = get_method(f"{file}:gentle").tuning("shift")
    assert config is not None
    assert (dict(config.weights)["orthogonality"], config.learning_rate) == (0.7, 0.01)
    with pytest.raises(OtptError, match=r"holds 2 methods \(gentle, sharp\)"):
        get_method(str(file))
    with pytest.raises(OtptError, match=r"Unknown method 'gentel'\. Did you mean: gentle"):
        get_method(f"{file}:gentel")


def test_a_file_in_a_folder_with_such_a_name_and_one_that_begins_with_a_mark(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml.d" / "bom.toml"
    file.parent.mkdir()
    file.write_text("[gentle]\nobjectives = { entropy = 1 }\n", encoding="utf-8-sig")
    assert get_method(str(file)) == get_method(f"{file}:gentle") == Method("gentle", {"entropy": 1})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[a", "not valid TOML"),
        ("", "holds no method"),
        ("a = 1", "holds no method"),
        ("[a]\nobjective = {}", "Did you mean: objectives"),
        ("[a]\nobjectives = 3", "expected a table"),
        ('[a]\nobjectives = { entropy = "one" }', "weight of entropy is 'one'; expected a number"),
        ("[a]\nobjectives = { entropy = true }", "expected a number"),
        ("[a]\nobjectives = { entropy = -1 }", "0 or more"),
        ("[a]\nsteps = 1.5", "expected a whole number"),
        ("[a]\nsteps = true", "expected a whole number"),
        ("[a]\ntwo_step = 1", "expected true or false"),
        ("[a]\nlearning-rate = 0.1\nlearning_rate = 0.2", "learning-rate is given in two spellings"),
        ("[a]\nsettings = { huber-dleta = 1 }", "Did you mean: huber-delta"),
    ],
)
def test_files_that_cannot_be(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "bad.toml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(OtptError, match=message):
        load_methods(file)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(OtptError, match="No such file"):
        get_method(str(tmp_path / "none.toml"))
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(OtptError, match="not UTF-8"):
        load_methods(tmp_path / "binary.toml")
