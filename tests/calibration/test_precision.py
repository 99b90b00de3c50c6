"""Probabilities in plain and in official precision."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from otpt import calibration
from otpt.errors import OtptError


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
