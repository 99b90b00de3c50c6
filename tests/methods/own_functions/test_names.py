"""Registration of functions: names, parameters, and how users' parts join with ours."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from oracles.methods.own_functions import EXACT, plugin, predicted
from torch import Tensor

import otpt
from otpt import Method, OtptError
from otpt.methods import compose, known_parts, list_parts
from otpt.registry import AGGREGATIONS, OBJECTIVES, Fraction, Positive, snapshot

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
    rows = {row["name"]: row for row in list_parts()}
    found = [predicted(name) for name in ("tpt+mean-square", "tpt+trimmed", "o-tpt+mean-square[weight=20]+trimmed")]
    assert OBJECTIVES["mean-square"].digest
    assert AGGREGATIONS["trimmed"].digest
    restore()

    for module, source in (("otpt.objectives", OBJECTIVE), ("otpt.methods.aggregations", AGGREGATION)):
        exec(source, {"__name__": module, "otpt": otpt, "Fraction": Fraction, "Positive": Positive})
    assert OBJECTIVES["mean-square"].digest == AGGREGATIONS["trimmed"].digest == "", "these are ours"
    assert {row["name"]: row for row in list_parts()} == rows
    assert rows["mean-square"]["objectives"] == {"mean-square": 5.0}
    assert rows["mean-square"]["settings"] == {"exponent": 2.0}
    assert rows["trimmed"]["settings"] == {"share": 0.5}
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
    with pytest.raises(OtptError, match="'mine' on the axis 'aggregate'"):
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
    with pytest.raises(OtptError, match=f"'{name}' on the axis '{axis}'"):
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
