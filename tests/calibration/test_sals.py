"""SaLS: the range of the zero-shot logits, the order of the adapted ones."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from otpt import calibration
from otpt.errors import OtptError


def test_reference_value():
    found = calibration.sals(torch.tensor([1.0, 3.0, 2.5]), torch.tensor([10.0, 12.0, 11.0]))
    assert found.tolist() == [10.0, 12.0, 11.5]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_against_a_loop(dtype):
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
def test_order_and_range(seed, classes, dtype):
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


def test_gradients():
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(4, 5, generator=generator, dtype=torch.float64, requires_grad=True)
    zero_shot = torch.randn(4, 5, generator=generator, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(calibration.sals, (logits, zero_shot))


def test_dtype_is_that_of_the_logits():
    logits, zero_shot = torch.randn(2, 3), torch.randn(2, 3, dtype=torch.float64)
    assert calibration.sals(logits, zero_shot).dtype == torch.float32
    assert calibration.sals(logits.half(), zero_shot).dtype == torch.float16


@pytest.mark.parametrize("wrong", [torch.zeros(2, 4), torch.full((2, 3), float("nan")), torch.zeros(2, 3).int()])
def test_bad_input(wrong):
    with pytest.raises(OtptError):
        calibration.sals(torch.zeros(2, 3), wrong)
    with pytest.raises(OtptError):
        calibration.sals(wrong, torch.zeros(2, 3))
