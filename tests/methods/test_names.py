"""Names of methods: parts joined by "+", settings in brackets, conflicts, suggestions."""

from __future__ import annotations

from dataclasses import fields
from itertools import permutations
from typing import Any

import pytest

from otpt.errors import OtptError
from otpt.evaluation.sweeps import sweep_method
from otpt.methods import Method, compose, get_method, get_methods

DISPERSION = {"fine-grained": 50.0, "shift": 20.0}
ORTHOGONALITY = {"fine-grained": 18.0, "shift": 2.0}
TPT = {"entropy": 1.0}
C_TPT = {"entropy": 1.0, "dispersion": DISPERSION}
O_TPT = {"entropy": 1.0, "orthogonality": ORTHOGONALITY}
MAPLE = {"init": "maple", "learning_rate": {"fine-grained": 5e-4, "shift": 4e-2}, "augmix": False}

# Fields that differ from their defaults.
PUBLISHED: dict[str, dict[str, Any]] = {
    "zero-shot": {"objectives": {}},
    "tpt": {"objectives": TPT},
    "c-tpt": {"objectives": C_TPT},
    "o-tpt": {"objectives": O_TPT},
    "o-tpt-rows": {"objectives": {"entropy": 1.0, "orthogonality-rows": ORTHOGONALITY}},
    "o-tpt-frobenius": {"objectives": {"entropy": 1.0, "orthogonality-frobenius": ORTHOGONALITY}},
    "o-tpt-squared": {"objectives": {"entropy": 1.0, "orthogonality-squared": ORTHOGONALITY}},
    "o-tpt-spectral": {"objectives": {"entropy": 1.0, "orthogonality-spectral": ORTHOGONALITY}},
    "o-tpt+c-tpt": {"objectives": {"entropy": 1.0, "orthogonality": ORTHOGONALITY, "dispersion": DISPERSION}},
    "tpt+ts": {"objectives": TPT, "calibrate": "temperature"},
    "tpt+sals": {"objectives": TPT, "calibrate": "sals"},
    "tpt+penalty": {"objectives": {"entropy": 1.0, "range-penalty": 10.0}},
    "tpt+zs": {"objectives": {"rescaled-entropy": 1.0}},
    "c-tpt+sals": {"objectives": {"entropy": 1.0, "dispersion": 50.0}, "calibrate": "sals"},
    "c-tpt+penalty": {"objectives": {"entropy": 1.0, "range-penalty": 10.0, "dispersion": 50.0}},
    "c-tpt+zs": {"objectives": {"rescaled-entropy": 1.0, "dispersion": 50.0}},
    "coop": {"init": "coop", "objectives": {}},
    "coop+o-tpt": {"init": "coop", "objectives": O_TPT},
    "cocoop": {"init": "cocoop", "objectives": {}},
    "maple": {**MAPLE, "objectives": {}},
    "maple+o-tpt": {**MAPLE, "objectives": O_TPT},
    "baple": {"adapt": "baple", "objectives": {}},
    "baple+o-tpt": {"adapt": "baple", "objectives": {"orthogonality": 18.0}},
    "fpt": {"adapt": "fpt", "objectives": {}},
    "fpt+o-tpt": {"adapt": "fpt", "objectives": {"orthogonality": 18.0}},
    "promptsmooth": {"adapt": "promptsmooth", "selection_ratio": 1.0, "objectives": TPT},
    "promptsmooth+o-tpt": {
        "adapt": "promptsmooth",
        "selection_ratio": 1.0,
        "objectives": {"entropy": 1.0, "orthogonality": 18.0},
    },
}
DEFAULTS = {
    "init": "words", "adapt": "context", "calibrate": "none", "aggregate": "clean", "gate": "none", "temperature": None,
    "steps": 1, "learning_rate": 5e-3, "weight_decay": 0.01, "selection_ratio": 0.1, "reference": "confident",
    "two_step": False, "views": None, "augmix": None,
    "selection": "confident", "settings": {}, "caution": "",
}  # fmt: skip


def numbers(method: Method) -> dict[str, Any]:
    """All fields of a method but its name and texts for people."""
    texts = ("name", "summary", "source")
    return {each.name: getattr(method, each.name) for each in fields(method) if each.name not in texts}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_name(name: str) -> None:
    assert numbers(compose(name)) == {**DEFAULTS, **PUBLISHED[name]}
    assert list(compose(name).objectives) == list(PUBLISHED[name]["objectives"]), "a loss adds up in this order"


@pytest.mark.parametrize("name", ["o-tpt+c-tpt", "c-tpt+penalty", "coop+o-tpt+sals", "cocoop+c-tpt+zs+ts"])
def test_order_of_parts_does_not_matter(name: str) -> None:
    for order in permutations(name.split("+")):
        assert numbers(compose("+".join(order))) == numbers(compose(name))


def test_parts_join_across_all_axes() -> None:
    method = compose("coop+o-tpt+sals")
    assert (method.init, method.adapt, method.calibrate) == ("coop", "context", "sals")
    assert dict(method.objectives) == O_TPT
    assert numbers(compose("zero-shot+ts")) == {**DEFAULTS, "objectives": {}, "calibrate": "temperature"}
    assert numbers(compose("coop+zero-shot")) == numbers(compose("coop"))
    assert dict(compose("o-tpt+c-tpt+penalty").objectives) == {
        "entropy": 1.0, "range-penalty": 10.0, "orthogonality": ORTHOGONALITY, "dispersion": 50.0,
    }  # fmt: skip
    assert dict(compose("maple+o-tpt+zs").objectives) == {"rescaled-entropy": 1.0, "orthogonality": ORTHOGONALITY}
    assert numbers(compose("fpp+o-tpt+sals")) == {**numbers(compose("o-tpt+sals")), "init": "fpp"}
    votes = compose("coop+promptsmooth+o-tpt+votes")
    assert (votes.init, votes.adapt, votes.aggregate) == ("coop", "promptsmooth", "votes")
    use = compose("use")
    assert (use.gate, use.aggregate, use.selection) == ("strong-agreement", "se", "strong")


def test_objectives_are_parts() -> None:
    assert numbers(compose("tpt+orthogonality")) == numbers(compose("o-tpt"))
    assert numbers(compose("entropy+dispersion")) == numbers(compose("c-tpt"))
    assert numbers(compose("orthogonality")) == numbers(compose("o-tpt+static"))


@pytest.mark.parametrize(
    ("name", "first", "second"),
    [
        ("coop+maple", "coop", "maple"),
        ("cocoop+o-tpt+coop", "cocoop", "coop"),
        ("tpt+sals+ts", "sals", "ts"),
        ("tpt+e-cots+sals", "e-cots", "sals"),
        ("use+weak-strong", "use", "weak-strong"),
        ("promptsmooth+votes+certificate", "votes", "certificate"),
        ("o-tpt+zero-shot", "o-tpt", "zero-shot"),
        ("promptsmooth+zero-shot", "promptsmooth", "zero-shot"),
        ("baple+fpt", "baple", "fpt"),
        ("templates-7+fpp", "templates-7", "fpp"),
        ("tca+attributes", "tca", "attributes"),
        ("tda+dmn", "tda", "dmn"),
        ("sts+zero", "sts", "zero"),
        ("tpt+tpt", "tpt", "tpt"),
        ("o-tpt+zs+static", "zs", "static"),
        ("tpt+moments+static", "moments", "static"),
    ],
)
def test_conflict_names_both_parts(name: str, first: str, second: str) -> None:
    with pytest.raises(OtptError, match="conflict") as error:
        compose(name)
    assert repr(first) in str(error.value)
    assert repr(second) in str(error.value)


@pytest.mark.parametrize(
    "name",
    [
        "baple+coop", "fpt+sals", "promptsmooth+ts", "maple+promptsmooth", "fpt+votes", "zero-shot+votes",
        "templates-80+tpt", "zs+dataset-templates", "fpp+promptsmooth", "promptsmooth+tca", "cocoop+bca", "tda+tpt",
        "tpt+ts+mta", "mean-feature+sals", "tps+tpt", "tpt+dac-base", "penalty", "zero-shot+penalty", "coop+zs",
        "penalty+zs", "fpt+penalty", "static", "tpt+static", "votes", "tpt+certificate",
    ],
)  # fmt: skip
def test_bad_combination(name: str) -> None:
    with pytest.raises(OtptError) as error:
        compose(name)
    assert repr(name) in str(error.value)


@pytest.mark.parametrize(
    ("name", "objectives"),
    [
        ("o-tpt+static", {"orthogonality": ORTHOGONALITY}),
        ("coop+a-tpt+static+sals", {"nearest-angle": {"fine-grained": 80.0, "shift": 10.0}}),
        ("tca+static", {"attribute-inter": {"fine-grained": 10.0, "shift": 45.0},
                        "attribute-intra": {"fine-grained": 35.0, "shift": 15.0}}),
    ],
)  # fmt: skip
def test_static_prompt_keeps_the_regulariser_alone(name: str, objectives: dict[str, Any]) -> None:
    method = compose(name)
    assert dict(method.objectives) == objectives
    assert not method.needs_views("fine-grained")
    configs = [method.tuning(family) for family in ("fine-grained", "shift")]
    assert all(config is not None and not config.weights_on("views") for config in configs)


@pytest.mark.parametrize(
    ("name", "weights"),
    [
        ("a-tpt", {"nearest-angle": (80, 10)}),
        ("a-tpt-released", {"nearest-angle": (0, 10), "nearest-angle-narrowed": (80, 0)}),
        ("soc", {"huber": (30, 3.3)}),
        ("d-tpt", {"coordinates": (1000, 1000)}),
        ("tpt+moments", {"moments": (100, 100)}),
        ("tca", {"attribute-inter": (10, 45), "attribute-intra": (35, 15)}),
        ("tca-single", {"attribute-inter": (1, 10), "attribute-intra": (10, 20)}),
    ],
)
def test_numbers_of_the_field(name: str, weights: dict[str, tuple[float, float]]) -> None:
    for i, family in enumerate(("fine-grained", "shift")):
        config = compose(name).tuning(family)
        assert config is not None
        assert dict(config.weights) == {"entropy": 1.0, **{objective: pair[i] for objective, pair in weights.items()}}
        assert (config.learning_rate, config.steps) == (5e-3, 2 if "moments" in name else 1)


def test_settings_of_the_field() -> None:
    rlcf = compose("rlcf").tuning("shift")
    assert rlcf is not None
    assert (rlcf.steps, rlcf.learning_rate, rlcf.weight_decay) == (3, 7e-3, 5e-4)
    assert [compose("tps").settings_for(family)["shift_rate"] for family in ("fine-grained", "shift")] == [1e-3, 5e-3]
    assert compose("zero").defaults == {"vote_ratio": 0.3, "vote_temperature": 0}
    assert compose("mta").defaults == {"mta_neighbours": 0.3, "mta_lambda_q": 4, "mta_lambda_y": 0.2}
    assert compose("r-tpt").defaults == {"reliable_neighbours": 20, "reliable_temperature": 0.01}
    assert compose("soc").defaults == {"huber_delta": 0.5}
    assert compose("soc").override({"huber-delta": 0.8}).tuning("shift").settings == (("huber_delta", 0.8),)  # type: ignore[union-attr]


def test_names_are_case_insensitive() -> None:
    assert compose("O-TPT") == compose("o-tpt")
    assert compose("CoOp+O-TPT").name == "coop+o-tpt"


@pytest.mark.parametrize(
    ("name", "objective", "weight"),
    [
        ("o-tpt[lambda=6]", "orthogonality", 6.0),
        ("o-tpt[weight=6]+sals", "orthogonality", 6.0),
        ("tpt+dispersion[weight=1e+2]", "dispersion", 100.0),
        ("o-tpt[weight=3]+c-tpt[weight=7]", "dispersion", 7.0),
        ("tpt[weight=2]", "entropy", 2.0),
        ("tpt+penalty[weight=20]", "range-penalty", 20.0),
    ],
)
def test_weight_in_brackets(name: str, objective: str, weight: float) -> None:
    assert compose(name).objectives[objective] == weight
    assert compose(name).name == name


def test_names_of_sweeps_are_accepted() -> None:
    swept = sweep_method(get_method("o-tpt"), {"lambda": ["0", "18"], "learning-rate": ["0.01"]})
    assert [get_method(each.name) for each in swept] == swept
    (one,) = sweep_method(get_method("zero"), {"vote-ratio": ["0.5"]})
    assert get_method("ZERO[vote-ratio=0.5]") == one


@pytest.mark.parametrize(
    "name", ["o-tpt[lambda]", "o-tpt[=3]", "o-tpt[lambda=3", "[lambda=3]", "o-tpt[lamda=3]", "o-tpt[]x"]
)
def test_bad_brackets(name: str) -> None:
    with pytest.raises(OtptError):
        get_method(name)


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [("otp", "o-tpt"), ("coop+o-tpp", "o-tpt"), ("tpt+sal", "sals"), ("tpt+vote", "votes"), ("cop+tpt", "coop")],
)
def test_unknown_name_suggests_at_most_three(name: str, suggestion: str) -> None:
    with pytest.raises(OtptError, match="Unknown") as error:
        compose(name)
    suggested = str(error.value).split("Did you mean: ")[1].split("?")[0].split(", ")
    assert suggestion in suggested
    assert len(suggested) <= 3
    assert len(str(error.value)) < 200


@pytest.mark.parametrize("name", ["xyzzy", "", "tpt+"])
def test_unknown_name_without_suggestion(name: str) -> None:
    with pytest.raises(OtptError, match="otpt methods"):
        compose(name)


def test_each_method_is_run_once() -> None:
    with pytest.raises(OtptError, match=r"'tpt\+sals'"):
        get_methods(["tpt+sals", "o-tpt", "TPT+sals"])
    with pytest.raises(OtptError, match="'tpt'"):
        get_methods("tpt")  # type: ignore[arg-type]
