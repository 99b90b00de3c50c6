"""The mixtures of clean and strong views: reference values, literal loops, gradients."""

from __future__ import annotations

import pytest
import torch
from oracles.methods import field, posthoc
from torch import Tensor

from otpt.objectives import clean_weight, ensemble_cross_entropy, select_strong, strong_views

STRONG = [33, 29, 21, 5, 61, 56]


def draw(*shape: int, seed: int = 0) -> Tensor:
    return 3 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_the_reference_values() -> None:
    logits = field.logits()
    assert strong_views(logits).tolist() == STRONG
    assert float(clean_weight(logits)) == pytest.approx(0.636507936508, abs=1e-12)
    assert float(clean_weight(logits, 2.0)) == pytest.approx(0.546586041824, abs=1e-12)
    assert (float(clean_weight(logits)) - 0.5) / 0.4 + 0.5 == pytest.approx(0.841269841270, abs=1e-12)
    chosen = [0, *STRONG]
    found = ensemble_cross_entropy(logits[chosen], logits[chosen], logits)
    assert float(found) == pytest.approx(1.639655013183, abs=1e-12)


@pytest.mark.parametrize("views", [2, 10, 11, 21, 64])
def test_strong_views_are_a_tenth_of_the_augmented_ones(views: int) -> None:
    logits = draw(2, views, 4)
    logits[:, 0] *= 100  # the clean view is the surest by far, and still none of them
    found = strong_views(logits)
    assert found.shape == (2, max((views - 1) // 10, 1))
    for one, own in zip(logits, found, strict=True):
        assert own.tolist() == posthoc.by_entropy(one.tolist(), range(1, views))[: found.shape[1]]
    assert strong_views(logits, 1.0).shape == (2, views - 1)


@pytest.mark.parametrize("seed", range(8))
def test_values_are_the_literal_ones(seed: int) -> None:
    logits, tuned = draw(3, 31, 5, seed=seed), draw(3, 31, 5, seed=seed + 50)
    chosen = select_strong(logits, 4)
    rows = chosen[..., None].expand(-1, -1, 5)
    found = ensemble_cross_entropy(tuned.gather(1, rows), logits.gather(1, rows), logits)
    for i in range(3):
        assert float(clean_weight(logits)[i]) == pytest.approx(posthoc.se_weight(logits[i].tolist()), abs=1e-12)
        quadratic = posthoc.se_weight(logits[i].tolist(), quadratic=True)
        assert float(clean_weight(logits, 2)[i]) == pytest.approx(quadratic, abs=1e-12)
        own = posthoc.literal_use_loss(tuned[i][chosen[i]], logits[i], posthoc.strong(logits[i].tolist()))
        assert float(found[i]) == pytest.approx(float(own), abs=1e-12)


def test_the_gradient_is_that_of_finite_differences() -> None:
    logits, start = draw(4, 5), draw(31, 5, seed=1)
    leaf = logits.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda each: ensemble_cross_entropy(each, start[:4], start), (leaf,))


def test_probabilities_that_underflow_leave_it_finite() -> None:
    logits = torch.tensor([[2000.0, 0.0], [2000.0, 0.0], [0.0, 2000.0]], requires_grad=True)
    found = ensemble_cross_entropy(logits, logits.detach(), logits.detach())
    found.backward()
    assert bool(found.isfinite())
    assert bool(logits.grad.isfinite().all())
