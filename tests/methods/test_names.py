"""Names of methods: parts joined by "+". Published names mean what they always meant; what conflicts is refused."""

from __future__ import annotations

from dataclasses import fields
from importlib import resources
from itertools import permutations
from typing import Any

import pytest

from otpt.errors import OtptError
from otpt.files import parse_toml
from otpt.methods import DEFAULT_METHOD, Method, compose, get_methods, known_parts, published_methods

DISPERSION = {"fine-grained": 50.0, "shift": 20.0}
ORTHOGONALITY = {"fine-grained": 18.0, "shift": 2.0}
TPT = {"entropy": 1.0}
C_TPT = {"entropy": 1.0, "dispersion": DISPERSION}
O_TPT = {"entropy": 1.0, "orthogonality": ORTHOGONALITY}
MAPLE = {"init": "maple", "learning_rate": {"fine-grained": 5e-4, "shift": 4e-2}, "augmix": False}

# The table of version 1, which had a row for each name. What is not listed here has its default.
PUBLISHED: dict[str, dict[str, Any]] = {
    "zero-shot": {"objectives": {}},
    "tpt": {"objectives": TPT},
    "c-tpt": {"objectives": C_TPT},
    "o-tpt": {"objectives": O_TPT},
    "o-tpt-rows": {"objectives": {"entropy": 1.0, "orthogonality-rows": ORTHOGONALITY}},
    "o-tpt-frobenius": {"objectives": {"entropy": 1.0, "orthogonality-frobenius": ORTHOGONALITY}},
    "o-tpt-squared": {"objectives": {"entropy": 1.0, "orthogonality-squared": ORTHOGONALITY}},
    "o-tpt+c-tpt": {"objectives": {"entropy": 1.0, "orthogonality": ORTHOGONALITY, "dispersion": DISPERSION}},
    "tpt+ts": {"objectives": TPT, "calibrate": "temperature"},
    "tpt+sals": {"objectives": TPT, "calibrate": "sals"},
    "tpt+penalty": {"objectives": {"entropy": 1.0, "range-penalty": 10.0}},
    "tpt+zs": {"objectives": {"rescaled-entropy": 1.0}},
    "c-tpt+sals": {"objectives": {"entropy": 1.0, "dispersion": 50.0}, "calibrate": "sals"},
    "c-tpt+penalty": {"objectives": {"entropy": 1.0, "range-penalty": 10.0, "dispersion": 50.0}},
    "c-tpt+zs": {"objectives": {"rescaled-entropy": 1.0, "dispersion": 50.0}},
    "coop": {"init": "coop", "objectives": {}},
    "coop+tpt": {"init": "coop", "objectives": TPT},
    "coop+c-tpt": {"init": "coop", "objectives": C_TPT},
    "coop+o-tpt": {"init": "coop", "objectives": O_TPT},
    "cocoop": {"init": "cocoop", "objectives": {}},
    "cocoop+tpt": {"init": "cocoop", "objectives": TPT},
    "cocoop+c-tpt": {"init": "cocoop", "objectives": C_TPT},
    "cocoop+o-tpt": {"init": "cocoop", "objectives": O_TPT},
    "maple": {**MAPLE, "objectives": {}},
    "maple+tpt": {**MAPLE, "objectives": TPT},
    "maple+c-tpt": {**MAPLE, "objectives": C_TPT},
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
    "two_step": False, "frozen_below": 0.0, "condition": "unit", "views": None, "augmix": None,
    "selection": "confident", "settings": {}, "caution": "",
}  # fmt: skip


def numbers(method: Method) -> dict[str, Any]:
    """Everything about a method but its name and what is said of it."""
    return {
        each.name: getattr(method, each.name)
        for each in fields(method)
        if each.name not in ("name", "summary", "source")
    }


def refusal(name: str) -> str:
    with pytest.raises(OtptError) as error:
        compose(name)
    return str(error.value)


def test_the_published_names_are_those_of_version_1() -> None:
    assert list(published_methods()) == list(PUBLISHED)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_name_composes_to_the_numbers_of_version_1(name: str) -> None:
    assert numbers(compose(name)) == {**DEFAULTS, **PUBLISHED[name]}
    weights = list(compose(name).objectives)
    assert weights == list(PUBLISHED[name]["objectives"]), "a loss adds up in this order, to the last bit"


@pytest.mark.parametrize(
    "name", [name for name in PUBLISHED if "+" in name] + ["coop+o-tpt+sals", "cocoop+c-tpt+zs+ts"]
)
def test_the_order_of_the_parts_does_not_matter(name: str) -> None:
    for order in permutations(name.split("+")):
        method = compose("+".join(order))
        assert method.name == "+".join(order)
        assert numbers(method) == numbers(compose(name))


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
    assert numbers(compose("templates-7+zero-shot")) == {**numbers(compose("zero-shot")), "init": "templates-7"}
    votes = compose("coop+promptsmooth+o-tpt+votes")
    assert (votes.init, votes.adapt, votes.aggregate) == ("coop", "promptsmooth", "votes")


@pytest.mark.parametrize(
    ("name", "first", "second", "why"),
    [
        ("coop+maple", "coop", "maple", "both are initial prompts"),
        ("cocoop+o-tpt+coop", "cocoop", "coop", "both are initial prompts"),
        ("tpt+sals+ts", "sals", "ts", "both say how to calibrate"),
        ("promptsmooth+votes+certificate", "votes", "certificate", "both say how to aggregate"),
        ("zero-shot+o-tpt", "zero-shot", "o-tpt", "zero-shot takes no steps on the context"),
        ("o-tpt+zero-shot", "o-tpt", "zero-shot", "zero-shot takes no steps on the context"),
        ("promptsmooth+zero-shot", "promptsmooth", "zero-shot", "both are adaptations"),
        ("baple+fpt", "baple", "fpt", "both are adaptations"),
        ("baple+coop", "baple", "coop", "baple leaves no choice of init"),
        ("coop+baple", "coop", "baple", "baple leaves no choice of init"),
        ("fpt+sals", "fpt", "sals", "fpt leaves no choice of calibrate"),
        ("promptsmooth+ts", "promptsmooth", "ts", "promptsmooth leaves no choice of calibrate"),
        ("maple+promptsmooth", "maple", "promptsmooth", "promptsmooth goes with coop only"),
        ("fpt+votes", "fpt", "votes", "fpt leaves no choice of aggregate"),
        ("zero-shot+votes", "zero-shot", "votes", "votes goes with promptsmooth only"),
        ("templates-80+tpt", "templates-80", "tpt", "templates-80 leaves no context to tune"),
        ("zs+dataset-templates", "zs", "dataset-templates", "dataset-templates leaves no context to tune"),
        ("templates-7+fpp", "templates-7", "fpp", "both are initial prompts"),
        ("fpp+coop+tpt", "fpp", "coop", "both are initial prompts"),
        ("fpp+promptsmooth", "fpp", "promptsmooth", "promptsmooth goes with coop only"),
        ("tpt+tpt", "tpt", "tpt", "a part is given once"),
        ("coop+o-tpt+coop", "coop", "coop", "a part is given once"),
    ],
)
def test_what_conflicts_is_refused_with_both_parts(name: str, first: str, second: str, why: str) -> None:
    assert refusal(name) == f"The method {name!r} joins {first!r} and {second!r}, which conflict: {why}."


@pytest.mark.parametrize("name", ["penalty", "zs", "zero-shot+penalty", "coop+zs", "penalty+zs", "fpt+penalty"])
def test_what_needs_the_entropy_is_refused_without_it(name: str) -> None:
    part = next(part for part in name.split("+") if part in ("penalty", "zs"))
    if name.startswith("zero-shot"):
        assert "joins 'zero-shot' and 'penalty', which conflict" in refusal(name)
    else:
        assert f"has {part!r}, which needs a method that minimises the entropy" in refusal(name)
        assert f"'tpt+{part}'" in refusal(name)


@pytest.mark.parametrize("name", ["static", "tpt+static", "coop+static", "tpt+sals+static"])
def test_a_static_prompt_needs_a_regulariser(name: str) -> None:
    assert refusal(name) == (
        f"The method {name!r} has 'static', which needs a method with a regulariser; join it with one, such as "
        "'o-tpt+static'."
    )


@pytest.mark.parametrize("name", ["o-tpt+zs+static", "tpt+zs+static", "static+penalty+o-tpt", "tpt+moments+static"])
def test_a_static_prompt_has_no_views(name: str) -> None:
    part = next(part for part in name.split("+") if part in ("zs", "penalty", "moments"))
    expected = f"joins 'static' and {part!r}, which conflict: static leaves out the entropy, which {part} needs."
    assert expected in refusal(name)


@pytest.mark.parametrize(
    ("name", "objectives"),
    [
        ("o-tpt+static", {"orthogonality": ORTHOGONALITY}),
        ("static+c-tpt", {"dispersion": DISPERSION}),
        ("coop+a-tpt+static+sals", {"nearest-angle": {"fine-grained": 80.0, "shift": 10.0}}),
        ("tca+static", {"attribute-inter": {"fine-grained": 10.0, "shift": 45.0},
                        "attribute-intra": {"fine-grained": 35.0, "shift": 15.0}}),
    ],
)  # fmt: skip
def test_a_static_prompt_keeps_the_regulariser_alone(name: str, objectives: dict[str, Any]) -> None:
    method = compose(name)
    assert dict(method.objectives) == objectives
    assert not method.needs_views("fine-grained")
    assert all(config is not None and config.static for config in map(method.tuning, ("fine-grained", "shift")))


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
    method = compose(name)
    for i, family in enumerate(("fine-grained", "shift")):
        config = method.tuning(family)
        assert config is not None
        expected = {"entropy": 1.0, **{objective: pair[i] for objective, pair in weights.items()}}
        assert dict(config.weights) == expected
        assert (config.learning_rate, config.steps) == (5e-3, 2 if "moments" in name else 1)


def test_settings_of_the_field() -> None:
    assert compose("soc").settings_for("shift") == {"huber_delta": 0.5}
    assert compose("soc").override({"huber-delta": 0.8}).tuning("shift").settings == (("huber_delta", 0.8),)  # type: ignore[union-attr]
    with pytest.raises(OtptError, match="huber-delta is 0; expected a finite number, above 0"):
        compose("soc").override({"huber-delta": 0})
    with pytest.raises(OtptError, match=r"reverse-kl is 0\.5; expected a whole number"):
        compose("d-tpt").override({"reverse-kl": 0.5})


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("coop+tca", "both are initial prompts"),
        ("tca+attributes", "both are initial prompts"),
        ("promptsmooth+tca", "promptsmooth goes with coop only"),
        ("promptsmooth+static", "both are adaptations"),
    ],
)
def test_what_does_not_go_with_the_field(name: str, why: str) -> None:
    assert refusal(name).endswith(f"which conflict: {why}.")


@pytest.mark.parametrize("name", ["votes", "tpt+votes", "coop+certificate"])
def test_votes_are_for_promptsmooth(name: str) -> None:
    assert f"which goes with promptsmooth only; join it with it, as 'promptsmooth+{name.split('+')[-1]}'" in refusal(
        name
    )


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("otp", "Unknown method 'otp'. Did you mean: o-tpt (adapt), tpt (adapt)"),
        ("coop+o-tpp", "Unknown part 'o-tpp' of the method 'coop+o-tpp'. Did you mean: o-tpt (adapt)"),
        ("tpt+sal", "Unknown part 'sal' of the method 'tpt+sal'. Did you mean: sals (calibrate)"),
        ("tpt+vote", "Did you mean: votes (aggregate)"),
        ("cop+tpt", "Did you mean: coop (init)"),
        ("O-TPT", "Unknown method 'O-TPT'. Did you mean: o-tpt (adapt)"),
        (
            "xyzzy",
            "Unknown method 'xyzzy'. Available, to be joined by '+': init: coop, cocoop, maple, templates-7",
        ),
        ("", "Unknown method ''. Available"),
        ("tpt+", "Unknown part '' of the method 'tpt+'"),
    ],
)
def test_unknown_parts_are_answered_with_the_nearest_and_their_axis(name: str, words: str) -> None:
    assert words in refusal(name)


def test_each_method_is_run_once() -> None:
    with pytest.raises(OtptError, match=r"Method 'tpt\+sals' is given twice"):
        get_methods(["tpt+sals", "o-tpt", "tpt+sals"])
    with pytest.raises(OtptError, match=r"expected a list of names, such as \['tpt'\]"):
        get_methods("tpt")


def test_every_part_is_explained_and_belongs_to_one_axis() -> None:
    table = resources.files("otpt.methods").joinpath("methods.toml").read_text(encoding="utf-8")
    field = parse_toml(table)["field"]
    ours = parse_toml(table)["parts"]  # other tests register functions of their own, which are parts too
    parts = {name: part for name, part in known_parts().items() if name in ours}
    assert {part.axis for part in parts.values()} == {"init", "adapt", "calibrate", "aggregate", "gate"}
    assert all(part.summary.endswith(".") and part.source for part in parts.values())
    used = {part for name in (*PUBLISHED, *field) for part in name.split("+")}
    templates = {"templates-80", "dataset-templates", "templates"}
    assert used | {"votes", "certificate", "dac-base"} | templates | {"fpp-words", DEFAULT_METHOD} == set(parts)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"adapt": "baple", "calibrate": "sals"}, "baple does not go with calibrate = 'sals'; expected 'none'"),
        ({"adapt": "fpt", "init": "coop"}, "fpt does not go with init = 'coop'; expected 'words'"),
        ({"adapt": "promptsmooth", "init": "cocoop"}, "expected 'words' or 'coop'"),
        ({"aggregate": "votes"}, "votes does not go with adapt = 'context'; expected 'promptsmooth'"),
        ({"aggregate": "mode"}, "Unknown aggregation 'mode'"),
        ({"adapt": "cache"}, "Unknown adaptation 'cache'"),
        ({"gate": "doubt"}, "Unknown gate 'doubt'"),
        ({"init": "templates-7", "objectives": TPT}, "its init is 'templates-7', which leaves no context to tune"),
        ({"init": "attributes", "adapt": "fpt"}, "fpt does not go with init = 'attributes'"),
        ({"views": 0}, "number of views is 0"),
    ],
)
def test_a_method_of_ones_own_is_checked_in_the_same_way(values: dict[str, Any], words: str) -> None:
    with pytest.raises(OtptError) as error:
        Method("mine", **values)
    assert words in str(error.value)


def test_settings_cannot_bring_a_conflict() -> None:
    with pytest.raises(OtptError, match="promptsmooth does not go with calibrate = 'sals'"):
        compose("promptsmooth").override({"calibrate": "sals"})


@pytest.mark.parametrize("name", ["soc", "d-tpt", "tca", "tca-single", "coop+d-tpt+sals", "soc+static"])
def test_methods_of_uncertain_constants_say_so(name: str) -> None:
    """On all data sets, for these constants have nothing to do with one."""
    method = compose(name)
    assert "our choice" in method.caution or "others may be better" in method.caution
    assert method.caution_on(["pets"]) == method.caution
    assert compose("a-tpt").caution == ""
