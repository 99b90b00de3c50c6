"""Names of functions of one's own, and how they join with ours."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from torch import Tensor

import otpt
from otpt import Method, OtptError
from otpt.methods import compose, known_parts

pytestmark = pytest.mark.slow


def test_a_name_belongs_to_one_function() -> None:
    def register(factor: int) -> Callable[[Tensor], Tensor]:
        if factor == 1:

            @otpt.aggregation
            def mine(probabilities: Tensor) -> Tensor:
                return probabilities[0]
        else:

            @otpt.aggregation
            def mine(probabilities: Tensor) -> Tensor:
                return probabilities[1]

        return mine

    register(1)
    register(1)  # the same again, as when a cell of a notebook is run twice
    with pytest.raises(OtptError, match="There is a value 'mine' on this axis already; give your aggregation another"):
        register(2)
    register_objective("mine")
    with pytest.raises(
        OtptError, match="Your function on the axis 'aggregate' has the name 'mine', which is a part on"
    ):
        known_parts()
    assert compose("tpt+mine").objectives["mine"] == 1.0, "the one that came last in the axes is taken out"


def register_objective(name: str) -> None:
    def function(text_features: Tensor) -> Tensor:
        return text_features.sum(dim=(-2, -1))

    function.__name__ = name
    otpt.objective(function)


def test_names_of_ours_are_taken() -> None:
    register_objective("sals")
    with pytest.raises(OtptError, match="Your objective has the name 'sals', which is a part on the axis 'calibrate'"):
        compose("tpt+sals")
    assert compose("tpt+sals").calibrate == "sals", "afterwards all is as before"
    with pytest.raises(OtptError, match="There is an objective 'entropy' already"):
        register_objective("entropy")

    def votes(probabilities: Tensor) -> Tensor:
        return probabilities[0]

    with pytest.raises(OtptError, match="There is a value 'votes' on this axis already"):
        otpt.aggregation(votes)


def test_functions_that_cannot_be_registered() -> None:
    def mine(pixels: Tensor) -> Tensor:
        return pixels

    with pytest.raises(
        OtptError, match="The aggregation 'mine' takes a parameter 'pixels'; expected some of logits, zero"
    ):
        otpt.aggregation(mine)
    with pytest.raises(OtptError, match="The gate 'mine' takes a parameter 'pixels'"):
        otpt.gate(mine)
    with pytest.raises(
        OtptError, match="The calibration 'mine' takes a parameter 'pixels'; expected some of logits, zero_s"
    ):
        otpt.calibration(mine)
    with pytest.raises(OtptError, match="expected a function made with 'def'"):
        otpt.aggregation(lambda probabilities: probabilities[0])
    with pytest.raises(OtptError, match="Unknown kind of objective 'pixels'"):
        otpt.objective(on="pixels")


def test_parts_of_ones_own_conflict_like_ours() -> None:
    @otpt.adaptation
    def moved(zero_shot: Tensor) -> Tensor:
        return zero_shot

    @otpt.calibration
    def halved(logits: Tensor) -> Tensor:
        return logits / 2

    for name, why in (
        ("moved+o-tpt", "joins 'moved' and 'o-tpt', which conflict: moved takes no steps on the context"),
        ("moved+zero-shot", "joins 'moved' and 'zero-shot', which conflict: both are adaptations"),
        ("tpt+sals+halved", "joins 'sals' and 'halved', which conflict: both say how to calibrate"),
        ("promptsmooth+halved", "promptsmooth leaves no choice of calibrate"),
        ("tpt+halve", "Did you mean: halved (calibrate)"),
    ):
        with pytest.raises(OtptError) as error:
            compose(name)
        assert why in str(error.value)
    with pytest.raises(OtptError, match="has objectives, which belong to steps on the context, but its adaptation is"):
        Method("mine", {"entropy": 1.0}, adapt="moved")
    assert (compose("moved+halved").adapt, compose("moved+halved").calibrate) == ("moved", "halved")
