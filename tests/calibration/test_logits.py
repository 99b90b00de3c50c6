"""Rescaling of logits (temperature, SaLS, CoTS, CoR, DAC) and the precision of the softmax, against oracles."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles.methods import field, posthoc
from scipy.optimize import minimize_scalar
from torch import Tensor

from otpt import calibration, functional
from otpt.calibration import cor, cots_temperature, dac_factors, matching_temperature, own_dac_factors
from otpt.calibration.logits import LIMITS, BaseTexts, cots, dac, dac_base
from otpt.errors import OtptError


def drawn_labels(seed, n=400, classes=6, temperature=2.0):
    """Logits (N, C) and labels drawn from softmax(logits/temperature): the best T is near ``temperature``."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(n, classes, generator=generator, dtype=torch.float64) * 4
    labels = torch.multinomial(torch.softmax(logits / temperature, dim=1), 1, generator=generator)[:, 0]
    return logits, labels


def nll(logits, labels, temperature):
    return float(torch.nn.functional.cross_entropy(logits / temperature, labels))


def test_published_constants():
    assert (calibration.fixed_temperature("vit"), calibration.fixed_temperature("resnet")) == (1.16, 1.15)
    with pytest.raises(OtptError, match="'other'"):
        calibration.fixed_temperature("other")


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_apply_keeps_shape_and_dtype_and_arg_max(dtype):
    logits = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(0)).to(dtype)
    scaled = calibration.apply_temperature(logits, 1.16)
    assert scaled.dtype == dtype
    torch.testing.assert_close(scaled, torch.tensor(logits.double().numpy() / 1.16).to(dtype))
    assert torch.equal(scaled.argmax(-1), logits.argmax(-1))
    torch.testing.assert_close(calibration.apply_temperature(logits.numpy(), 1.16), scaled)


@pytest.mark.parametrize("temperature", [0, -1.0, float("nan"), float("inf")])
def test_bad_temperature(temperature):
    with pytest.raises(OtptError, match="expected a finite temperature > 0, but got"):
        calibration.apply_temperature(torch.zeros(2), temperature)


@pytest.mark.parametrize("true", [0.02, 0.3, 1.0, 2.0, 9.0])
@pytest.mark.parametrize("seed", [0, 1])
def test_fit_against_grid_and_scipy(true, seed):
    logits, labels = drawn_labels(seed, temperature=true)
    logits = logits + (0.02 if true < 0.1 else 0) * torch.randn(
        logits.shape, generator=torch.Generator().manual_seed(9), dtype=torch.float64
    )
    found = calibration.fit_temperature(logits, labels)
    grid = np.geomspace(1e-2, 1e2, 201)
    values = [nll(logits, labels, t) for t in grid]
    best = int(np.argmin(values))
    assert grid[max(best - 1, 0)] <= found <= grid[min(best + 1, 200)]
    brute = minimize_scalar(
        lambda u: nll(logits, labels, np.exp(u)),
        bounds=(np.log(grid[best]) - 0.1, np.log(grid[best]) + 0.1),
        method="bounded",
        options={"xatol": 1e-10},
    )
    assert found == pytest.approx(float(np.exp(brute.x)), rel=1e-6)
    assert nll(logits, labels, found) <= brute.fun + 1e-14


def test_fit_has_zero_slope():
    # two classes a distance d apart, a share q right: 1/T = log(q/(1 − q))/d in closed form
    d, n, right = 3.0, 1000, 870
    logits = torch.tensor([[d, 0.0]]).expand(n, 2)
    labels = (torch.arange(n) >= right).long()
    assert calibration.fit_temperature(logits, labels) == pytest.approx(d / np.log(870 / 130), rel=1e-12)


def test_fit_of_other_types_and_where_temperature_does_not_matter():
    assert calibration.fit_temperature(torch.randn(5, 1), torch.zeros(5, dtype=torch.long)) == 1.0
    assert calibration.fit_temperature(torch.full((5, 3), 2.0), torch.tensor([0, 1, 2, 0, 1])) == 1.0
    logits, labels = drawn_labels(seed=5)
    t = calibration.fit_temperature(logits, labels)
    frozen = logits.numpy().copy()
    frozen.setflags(write=False)
    assert calibration.fit_temperature(frozen, labels.numpy().astype(np.uint8)) == t
    assert calibration.fit_temperature(logits.half(), labels.int()) == pytest.approx(t, rel=1e-2)
    assert calibration.fit_temperature(logits.requires_grad_(), labels) == t


def test_fit_in_chunks(monkeypatch):
    logits, labels = drawn_labels(seed=6)
    t = calibration.fit_temperature(logits, labels)
    monkeypatch.setattr("otpt.calibration.logits._CHUNK_ENTRIES", 600)
    assert calibration.fit_temperature(logits, labels) == pytest.approx(t, rel=1e-12)


def test_fit_at_its_bounds():
    logits, labels = drawn_labels(seed=7, temperature=2.0)
    for own, bounds, bound in (
        (logits.argmax(1), (1e-3, 1e3), 1e-3),
        (logits.argmin(1), (0.1, 50.0), 50.0),
        (labels, (5.0, 10.0), 5.0),
        (labels, (0.1, 0.5), 0.5),
    ):
        with pytest.warns(UserWarning, match=f"bound {bound:g}:"):
            assert calibration.fit_temperature(logits, own, bounds=bounds) == bound


@pytest.mark.parametrize(
    ("logits", "labels", "bounds", "value"),
    [
        (torch.tensor([[float("nan"), 1.0]]), torch.tensor([0]), (0.1, 1.0), "nan"),
        (torch.zeros(3), torch.tensor([0]), (0.1, 1.0), r"\(3,\)"),
        (torch.zeros(0, 3), torch.zeros(0, dtype=torch.long), (0.1, 1.0), r"\(0, 3\)"),
        (torch.zeros(2, 3), torch.tensor([0]), (0.1, 1.0), r"\(1,\)"),
        (torch.zeros(1, 3), torch.tensor([0.0]), (0.1, 1.0), "torch.float32"),
        (torch.zeros(1, 3), torch.tensor([True]), (0.1, 1.0), "torch.bool"),
        (torch.zeros(1, 3), torch.tensor([3]), (0.1, 1.0), "from 0 to 2, but got .*3"),
        (torch.zeros(1, 3), torch.tensor([-1]), (0.1, 1.0), "-1"),
        (torch.zeros(1, 3, dtype=torch.long), torch.tensor([0]), (0.1, 1.0), "torch.int64"),
        (torch.zeros(1, 2), torch.tensor([0]), (2.0, 1.0), r"\(2.0, 1.0\)"),
        (torch.zeros(1, 2), torch.tensor([0]), (float("nan"), 1.0), "nan"),
    ],
)
def test_bad_fit(logits, labels, bounds, value):
    with pytest.raises(OtptError, match=value):
        calibration.fit_temperature(logits, labels, bounds=bounds)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sals_against_a_loop(dtype):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 4, 6, generator=generator, dtype=dtype) * 7 + 20
    zero_shot = torch.randn(2, 4, 6, generator=generator, dtype=dtype) * 3 + 25
    found = calibration.sals(logits, zero_shot)
    assert found.dtype == dtype
    for i in range(2):
        for j in range(4):
            adapted, z = logits[i, j].double().tolist(), zero_shot[i, j].double().tolist()
            for c in range(6):
                share = (adapted[c] - min(adapted)) / (max(adapted) - min(adapted))
                expected = share * (max(z) - min(z)) + min(z)
                assert float(found[i, j, c]) == pytest.approx(expected, rel=1e-6 if dtype == torch.float32 else 1e-14)


@settings(max_examples=80, deadline=None, database=None, derandomize=True)
@given(st.integers(0, 2**32 - 1), st.integers(1, 8), st.sampled_from([torch.float32, torch.float64]))
def test_sals_keeps_the_order(seed, classes, dtype):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(5, classes, generator=generator, dtype=dtype) * 5
    zero_shot = torch.randn(5, classes, generator=generator, dtype=dtype) * 3
    found = calibration.sals(logits, zero_shot)
    # rounding keeps the order, though it may tie what was nearly tied: the old argmax is still a maximum
    at_old_maximum = found.gather(-1, logits.argmax(-1, keepdim=True))[:, 0]
    assert torch.equal(at_old_maximum, found.amax(-1))
    assert (found.gather(-1, logits.argsort(-1)).diff(dim=-1) >= 0).all()
    low, high = zero_shot.aminmax(dim=-1)
    torch.testing.assert_close(found.amin(-1), low)
    torch.testing.assert_close(found.amax(-1), high if classes > 1 else low)


def test_constant_logits_become_the_lower_end():
    logits = torch.tensor([[4.0, 4.0, 4.0], [1.0, 2.0, 3.0]], requires_grad=True)
    zero_shot = torch.tensor([[7.0, 9.0, 8.0], [7.0, 9.0, 8.0]])
    found = calibration.sals(logits, zero_shot)
    assert found.tolist() == [[7.0, 7.0, 7.0], [7.0, 8.0, 9.0]]
    found.square().sum().backward()
    assert torch.isfinite(logits.grad).all()


def test_gradients_and_dtype_of_sals():
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(4, 5, generator=generator, dtype=torch.float64, requires_grad=True)
    zero_shot = torch.randn(4, 5, generator=generator, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(calibration.sals, (logits, zero_shot))
    assert calibration.sals(logits.half(), zero_shot).dtype == torch.float16


@pytest.mark.parametrize("wrong", [torch.zeros(2, 4), torch.full((2, 3), float("nan")), torch.zeros(2, 3).int()])
def test_bad_pairs(wrong):
    with pytest.raises(OtptError):
        calibration.sals(torch.zeros(2, 3), wrong)
    with pytest.raises(OtptError):
        calibration.sals(wrong, torch.zeros(2, 3))


def clip_like(seed, shape=(200, 30)):
    """Logits as CLIP gives them: about 100 times a cosine of 0.15 to 0.35."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 3 + 22


@pytest.mark.parametrize("temperature", [1.0, 1.15, 1.16, 0.7])
@pytest.mark.parametrize("seed", [0, 1])
def test_official_rounds_three_times(temperature, seed):
    """Against numpy: logits, quotient and softmax each rounded to float16, the softmax in float64."""
    logits = clip_like(seed, (2000, 30))
    quotient = (logits.numpy().astype(np.float16).astype(np.float32) / np.float32(temperature)).astype(np.float16)
    e = np.exp(quotient.astype(np.float64))
    expected = (e / e.sum(axis=-1, keepdims=True)).astype(np.float16)
    found = calibration.probabilities(logits, temperature=temperature, official=True)
    assert found.dtype == torch.float32
    half = found.numpy().astype(np.float16)
    assert np.array_equal(half.astype(np.float32), found.numpy())  # float16 numbers, all of them
    # float32 inside the softmax may tip a value that lies on the border of two float16 numbers
    steps = np.abs(half.view(np.int16).astype(int) - expected.view(np.int16).astype(int))
    assert steps.max() <= 1
    assert (steps > 0).mean() < 1e-3


def test_official_is_torch_in_half_precision():
    logits = clip_like(5)
    expected = torch.softmax(logits.half() / 1.16, dim=-1)
    assert expected.dtype == torch.float16
    found = calibration.probabilities(logits, temperature=1.16, official=True)
    assert torch.equal(found, expected.float())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_plain_is_softmax_and_keeps_the_dtype(dtype):
    logits = clip_like(3).to(dtype)
    expected = np.exp(logits.double().numpy() / 1.16)
    expected /= expected.sum(-1, keepdims=True)
    found = calibration.probabilities(logits, temperature=1.16)
    assert found.dtype == dtype
    np.testing.assert_allclose(found.numpy(), expected, rtol=2e-5 if dtype == torch.float32 else 1e-12)
    assert torch.equal(calibration.probabilities(logits.numpy(), temperature=1.16), found)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_plain_computes_half_logits_in_float32(dtype):
    logits = clip_like(4).to(dtype)
    found = calibration.probabilities(logits, temperature=1.16)
    assert found.dtype == torch.float32
    assert torch.equal(found, torch.softmax(logits.float() / 1.16, dim=-1))


def test_plain_is_differentiable():
    logits = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda z: calibration.probabilities(z, temperature=1.3), (logits,))


def test_refusals():
    with pytest.raises(OtptError, match="expected logits within ±65504"):
        calibration.probabilities(torch.tensor([70000.0, 0.0]), official=True)
    for official in (False, True):
        with pytest.raises(OtptError, match="expected a finite temperature > 0, but got 0"):
            calibration.probabilities(torch.zeros(2), temperature=0, official=official)
        with pytest.raises(OtptError, match="expected finite logits"):
            calibration.probabilities(torch.tensor([float("nan")]), official=official)


def draw(*shape: int, seed: int = 0, scale: float = 1.0, dtype: torch.dtype = torch.float64) -> Tensor:
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def confidence(logits: Tensor, temperature: float | Tensor = 1.0) -> Tensor:
    return (logits / temperature).softmax(dim=-1).amax(dim=-1)


@pytest.mark.slow
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


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("classes", [2, 3, pytest.param(40, marks=pytest.mark.slow)])
def test_cots_is_the_global_minimum(classes: int, seed: int) -> None:
    adapted, zero_shot = draw(40, classes, seed=seed, scale=4.0), draw(40, classes, seed=seed + 100, scale=2.5)
    found = float(cots_temperature(adapted, zero_shot))
    assert found == pytest.approx(posthoc.cots(adapted.tolist(), zero_shot.tolist()), rel=1e-10)


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_change_gives_one_exactly(dtype: torch.dtype) -> None:
    logits = draw(5, 30, 7, scale=8.0, dtype=dtype)
    assert torch.equal(cots_temperature(logits, logits), torch.ones(5, dtype=torch.float64))
    assert torch.equal(cots(logits[0], logits[0])[0], logits[0])
    assert torch.equal(cor(logits, logits), logits)


@pytest.mark.slow
def test_confidences_of_one_to_the_last_bit_still_have_a_temperature() -> None:
    zero_shot = torch.tensor([[200.0, 0.0, 0.0]]).expand(11, -1)
    assert float(confidence(zero_shot[0].double())) == 1.0
    assert float(cots_temperature(3 * zero_shot, zero_shot)) == pytest.approx(3, rel=1e-12)
    mixed = torch.tensor([[300.0, 0.0, 10.0], [4.0, 2.0, 0.0]])
    assert torch.equal(matching_temperature(mixed, mixed), torch.ones((), dtype=torch.float64))


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_what_is_refused() -> None:
    with pytest.raises(OtptError, match="two views"):
        cots_temperature(torch.zeros(1, 3), torch.zeros(1, 3))
    with pytest.raises(OtptError, match=r"of one shape \(..., V, C\)"):
        cots_temperature(torch.zeros(4, 3), torch.zeros(4, 2))
    with pytest.raises(OtptError, match=r"of one shape \(..., k, C\)"):
        matching_temperature(torch.zeros(3), torch.zeros(3))
    with pytest.raises(OtptError, match="expected finite zero_shot"):
        matching_temperature(np.zeros((2, 3)), np.full((2, 3), np.nan))


EXACT = {"rtol": 0, "atol": 1e-12}


def drawn(seed: int, classes: int = 9) -> torch.Tensor:
    return field.unit(torch.randn(classes, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64))


def test_the_reference_values_with_base_classes() -> None:
    before, after = field.texts(), field.second_texts()
    expected = torch.tensor([1, 1, 1, 1.027435439175, 1.008390276469], dtype=torch.float64)
    torch.testing.assert_close(dac_factors(before, after, before[:3], after[:3], neighbours=2), expected, **EXACT)


def test_the_reference_values_among_all_classes() -> None:
    expected = [1.005826138116, 0.928100131388, 0.963713212291, 1.027435439175, 0.995580163569]
    found = own_dac_factors(field.texts(), field.second_texts(), neighbours=2)
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), **EXACT)


@pytest.mark.parametrize("neighbours", [1, 3, 5, 20])
def test_factors_are_the_literal_ones(neighbours: int) -> None:
    before, after = drawn(0), drawn(1)
    others = [[b for b in range(9) if b != c] for c in range(9)]
    pair = before.tolist(), after.tolist()
    expected = [posthoc.dac_factor(*pair, c, others[c], neighbours) for c in range(9)]
    assert own_dac_factors(before, after, neighbours=neighbours).tolist() == pytest.approx(expected, abs=1e-10)
    found = own_dac_factors(before, after, torch.tensor([7, 2]), neighbours)
    assert found.tolist() == pytest.approx([expected[7], expected[2]], abs=1e-10)
    based = dac_factors(before, after, before[:4], after[:4], neighbours)
    expected = [posthoc.dac_factor(*pair, c, range(4), neighbours) for c in range(4, 9)]
    assert based.tolist() == pytest.approx([1, 1, 1, 1, *expected], abs=1e-10)


def test_logits_are_multiplied_by_the_factor_of_the_predicted_class() -> None:
    before, after = drawn(0), drawn(1)
    logits = torch.randn(12, 9, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    found, extras = dac(logits, before, after, dac_neighbours=3)
    for row, own in zip(logits.tolist(), found.tolist(), strict=True):
        c = posthoc.label(row)
        factor = posthoc.dac_factor(before.tolist(), after.tolist(), c, [b for b in range(9) if b != c], 3)
        assert own == pytest.approx([factor * each for each in row], abs=1e-10)
    assert extras["temperature"] == pytest.approx(float(logits[0, 0] / found[0, 0]), abs=1e-10)
    assert len(set(logits.argmax(dim=1).tolist())) > 2


def test_nothing_to_measure_gives_one() -> None:
    assert own_dac_factors(drawn(0, 1), drawn(1, 1)).tolist() == [1.0]
    assert own_dac_factors(drawn(0), drawn(0)).tolist() == 9 * [1.0]
    with pytest.raises(OtptError, match="number of neighbours is 0; expected 1 or more"):
        own_dac_factors(drawn(0), drawn(1), neighbours=0)


def test_views_under_a_learned_prompt_by_its_base_classes() -> None:
    before, after = drawn(3), drawn(4)
    texts = BaseTexts(before[4:], after[4:], before[:4], after[:4])
    logits = torch.tensor([[0.0, 1, 2, 9, 3], [7, 1, 2, 3, 4]], dtype=torch.float64)
    found, extras = dac_base(logits, texts, dac_neighbours=3)
    factors = [posthoc.dac_factor(before.tolist(), after.tolist(), 4 + c, range(4), 3) for c in (3, 0)]
    expected = torch.tensor(factors, dtype=torch.float64)[:, None] * logits
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
    assert extras == {"temperature": pytest.approx(1 / factors[0], abs=1e-10)}


def test_from_plain_tensors_it_asks_for_the_texts() -> None:
    before, after = drawn(3), drawn(4)
    logits = 10 * drawn(5)[:, :2].mT
    found = functional.calibrate(logits, logits, method="dac", text_features=before, adapted_text_features=after)
    torch.testing.assert_close(found, dac(logits, before, after)[0], rtol=0, atol=0)
    with pytest.raises(OtptError, match="adapted_text_features"):
        functional.calibrate(logits, logits, method="dac", text_features=before)
