"""CoTS and CoR: the temperature of matching confidences against brute force, reference values and limits."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from oracles.methods import field, posthoc
from torch import Tensor

from otpt.calibration import cor, cots_temperature, matching_temperature
from otpt.calibration.cots import LIMITS, cots
from otpt.errors import OtptError

pytestmark = pytest.mark.slow


def draw(*shape: int, seed: int = 0, scale: float = 1.0, dtype: torch.dtype = torch.float64) -> Tensor:
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def confidence(logits: Tensor, temperature: float | Tensor = 1.0) -> Tensor:
    return (logits / temperature).softmax(dim=-1).amax(dim=-1)


# ---- reference values ------------------------------------------------------------------------------------------------


def test_the_reference_values_of_cots() -> None:
    adapted, zero_shot = field.adapted_logits(), field.logits()
    assert posthoc.strong(adapted.tolist()) == [29, 33, 21, 17, 35, 5]
    logits, extras = cots(adapted, zero_shot)
    temperature = float(cots_temperature(adapted, zero_shot))
    assert extras == {"temperature": temperature}
    # the published digits come from a search by values, good for 8 digits; the root of the derivative, in 40 digits:
    assert temperature == pytest.approx(1.460610765, abs=2e-8)
    assert temperature == pytest.approx(1.460610754866757971540929, abs=1e-14)
    chosen = [29, 33, 21, 17, 35, 5]
    gaps = confidence(adapted[chosen], temperature) - confidence(zero_shot[chosen])
    assert float(gaps.square().mean()) == pytest.approx(0.001685282111, abs=1e-12)
    assert float(confidence(adapted[0])) == pytest.approx(0.971436216536, abs=1e-12)
    assert float(confidence(logits[0])) == pytest.approx(0.905284568307, abs=2e-9)
    assert int(logits[0].argmax()) == int(adapted[0].argmax()) == 1


# ---- against brute force ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("classes", [2, 3, pytest.param(40, marks=pytest.mark.slow)])
def test_cots_is_the_global_minimum(classes: int, seed: int) -> None:
    adapted, zero_shot = draw(40, classes, seed=seed, scale=4.0), draw(40, classes, seed=seed + 100, scale=2.5)
    found = float(cots_temperature(adapted, zero_shot))
    assert found == pytest.approx(posthoc.cots(adapted.tolist(), zero_shot.tolist()), rel=1e-10)


@pytest.mark.parametrize(
    ("gaps", "targets"),
    [
        ([100.0, 1.0], [0.6, 0.9]),
        ([100.0, 1.0], [0.9, 0.6]),
        ([100.0, 10.0, 1.0], [0.7, 0.7, 0.7]),
        ([80.0, 8.0, 0.5, 0.6], [0.6, 0.9, 0.9, 0.8]),
        ([30.0, 25.0, 0.3], [0.55, 0.6, 0.99]),
    ],
)
def test_the_best_of_several_minima(gaps: list[float], targets: list[float]) -> None:
    adapted = torch.tensor([[gap, 0.0] for gap in gaps], dtype=torch.float64)
    zero_shot = torch.tensor([[math.log(p / (1 - p)), 0.0] for p in targets], dtype=torch.float64)
    found = float(matching_temperature(adapted, zero_shot))
    assert found == pytest.approx(posthoc.matching(adapted.tolist(), zero_shot.tolist()), rel=1e-10)
    slopes = [posthoc.slope(adapted.tolist(), targets, 0.02 * 1.02**i) < 0 for i in range(500)]
    assert sum(a and not b for a, b in pairwise(slopes)) > 1, "there are several minima"


@pytest.mark.parametrize("classes", [2, 5, 300])
def test_cor_has_the_adapted_label_and_the_zero_shot_confidence(classes: int) -> None:
    adapted, zero_shot = draw(3, 4, classes, scale=6.0), draw(3, 4, classes, seed=1, scale=3.0)
    found = cor(adapted, zero_shot)
    torch.testing.assert_close(confidence(found), confidence(zero_shot), rtol=0, atol=1e-12)
    assert torch.equal(found.argmax(-1), adapted.argmax(-1))
    ratio = adapted / found
    torch.testing.assert_close(ratio, ratio[..., :1].expand_as(ratio), rtol=1e-12, atol=0)
    single = cor(adapted.float(), zero_shot.float())
    assert single.dtype == torch.float32
    torch.testing.assert_close(confidence(single), confidence(zero_shot).float(), rtol=0, atol=1e-6)


# ---- exactness, limits, shapes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_change_gives_one_exactly(dtype: torch.dtype) -> None:
    logits = draw(5, 30, 7, scale=8.0, dtype=dtype)
    assert torch.equal(cots_temperature(logits, logits), torch.ones(5, dtype=torch.float64))
    assert torch.equal(cots(logits[0], logits[0])[0], logits[0])
    assert torch.equal(cor(logits, logits), logits)


def test_confidences_of_one_to_the_last_bit_still_have_a_temperature() -> None:
    zero_shot = torch.tensor([[200.0, 0.0, 0.0]]).expand(11, -1)
    assert float(confidence(zero_shot[0].double())) == 1.0
    assert float(cots_temperature(3 * zero_shot, zero_shot)) == pytest.approx(3, rel=1e-12)
    mixed = torch.tensor([[300.0, 0.0, 10.0], [4.0, 2.0, 0.0]])
    assert torch.equal(matching_temperature(mixed, mixed), torch.ones((), dtype=torch.float64))


@pytest.mark.parametrize(
    ("adapted", "zero_shot", "expected"),
    [
        ([[3.0, 1.0, 0.0]], [[2.0, 2.0, 2.0]], LIMITS[1]),  # 1/C exactly
        ([[3.0, 3.0, 0.0]], [[9.0, 0.0, 0.0]], LIMITS[0]),  # of two tied classes none is surer than ½
        ([[5.0, 5.0, 5.0]], [[9.0, 0.0, 0.0]], 1.0),  # no temperature changes it
        ([[5.0]], [[7.0]], 1.0),  # one class
        ([[5.0, 5.0], [4.0, 0.0]], [[9.0, 0.0], [2.0, 0.0]], 2.0),  # the view that nothing changes has no say
    ],
)
def test_limits(adapted: list[list[float]], zero_shot: list[list[float]], expected: float) -> None:
    logits = torch.tensor(adapted)
    found = matching_temperature(logits, torch.tensor(zero_shot))
    assert float(found) == pytest.approx(expected, rel=1e-12)
    assert bool((logits / float(found)).isfinite().all())


@pytest.mark.equality
def test_an_image_gets_the_same_in_any_batch() -> None:
    adapted, zero_shot = draw(2, 3, 20, 9, scale=5.0), draw(2, 3, 20, 9, seed=1, scale=3.0)
    whole = cots_temperature(adapted, zero_shot)
    assert whole.shape == (2, 3)
    assert whole.dtype == torch.float64
    for i in range(2):
        assert torch.equal(cots_temperature(adapted[i], zero_shot[i]), whole[i])
        for j in range(3):
            assert torch.equal(cots_temperature(adapted[i, j], zero_shot[i, j]), whole[i, j])
    rows = cor(adapted, zero_shot)
    assert torch.equal(cor(adapted[1, 2, 3], zero_shot[1, 2, 3]), rows[1, 2, 3])
    assert torch.equal(cots_temperature(adapted[1:].numpy(), zero_shot[1:].numpy()), whole[1:])
    assert cots_temperature(adapted[:0], zero_shot[:0]).shape == (0, 3)


def test_what_is_refused() -> None:
    with pytest.raises(OtptError, match="two views"):
        cots_temperature(torch.zeros(1, 3), torch.zeros(1, 3))
    with pytest.raises(OtptError, match=r"of one shape \(..., V, C\)"):
        cots_temperature(torch.zeros(4, 3), torch.zeros(4, 2))
    with pytest.raises(OtptError, match=r"of one shape \(..., k, C\)"):
        matching_temperature(torch.zeros(3), torch.zeros(3))
    with pytest.raises(OtptError, match="expected finite zero_shot"):
        matching_temperature(np.zeros((2, 3)), np.full((2, 3), np.nan))
