"""Stream methods on the fixture of the field's reference values, to the digits given."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from oracles.methods.field import SCALE, logits, texts, views
from torch import Tensor

from otpt.methods.caches import BoostSettings, bca, boostadapter, dmn, doubtful, summarise, tda

IMAGES = (0, 2, 5, 9, 10, 15)
DIGITS = {"rtol": 0, "atol": 1e-11}


def numbers(text: str) -> Tensor:
    return torch.tensor([float(each) for each in text.split()], dtype=torch.float64)


def image(i: int) -> tuple[Tensor, Tensor]:
    """Features and logits of an image that has one view."""
    return views()[i : i + 1], logits()[i : i + 1]


def test_which_images_are_doubtful() -> None:
    looks = [summarise(*image(i), mean=False, ratio=0.1) for i in IMAGES]
    shares = torch.stack([look.entropy for look in looks]) / math.log2(5)
    torch.testing.assert_close(
        shares, numbers("0.188532 0.319661 0.100167 0.191324 0.275583 0.475545"), rtol=0, atol=1e-6
    )
    assert [look.label for look in looks] == [1, 2, 3, 4, 0, 4]
    assert [doubtful(look) for look in looks] == [False, True, False, False, True, True]


def test_tda() -> None:
    state: dict[str, Any] = {}
    found = [tda(*image(i), state, cache_alpha=2, cache_beta=5)[0] for i in IMAGES]
    first = "17.204830152655 21.043796010575 13.524790793772 10.408633232181 13.092475586091"
    sixth = "16.885732663539 17.396822832475 14.734452795226 15.104176499085 20.410483454210"
    torch.testing.assert_close(found[0], numbers(first), **DIGITS)
    torch.testing.assert_close(found[5], numbers(sixth), **DIGITS)
    own = torch.zeros(5, dtype=torch.float64)
    own[1] = 2  # the image itself, at distance 0
    torch.testing.assert_close(found[0], logits()[0] + own, **DIGITS)


def test_boostadapter() -> None:
    state: dict[str, Any] = {}
    settings = BoostSettings(cache_alpha=2, cache_beta=5, boost_delta=3, negative_weight=0)
    for i in (2, 5):
        boostadapter(*image(i), state, settings)
    found = boostadapter(views(), logits(), state, settings)
    expected = "17.204830152655 23.841091086895 13.963059921382 10.576759610660 13.288821931901"
    torch.testing.assert_close(found[0], numbers(expected), **DIGITS)
    assert state["positive"].present.sum(dim=1).tolist() == [0, 1, 1, 1, 0], "the copy was thrown away"


def test_dmn() -> None:
    state: dict[str, Any] = {}
    for i in (2, 5):
        dmn(*image(i), texts(), SCALE, state)
    found = dmn(*image(0), texts(), SCALE, state)[0].exp()
    dynamic = numbers("0.068084092270 0.929391920200 0.001377130578 0.000032375730 0.001114481223")
    torch.testing.assert_close(found, (logits()[0].softmax(0) + dynamic) / 2, **DIGITS)


def test_bca() -> None:
    state: dict[str, Any] = {}
    found = [bca(*image(i), texts(), SCALE, state)[0].exp() for i in (0, 2, 0)]
    expected = numbers("0.194900988239 0.796983833082 0.004571217946 0.000278571204 0.003265389528")
    torch.testing.assert_close(found[2], expected, **DIGITS)
    torch.testing.assert_close(found[0], logits()[0].softmax(0), **DIGITS)


@pytest.mark.parametrize("classes", [1, 2])
def test_few_classes(classes: int) -> None:
    """log₂1 = 0: one class is neither doubtful nor a division by zero."""
    look = summarise(views()[:1], logits()[:1, :classes], mean=False, ratio=0.1)
    assert not doubtful(look) or classes == 2
    found = tda(views()[:1], logits()[:1, :classes], {})
    assert bool(found.isfinite().all())
