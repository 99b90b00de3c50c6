"""The reference values of the specification, the literal Householder form, and finite differences."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from oracles.methods.householder import literal_householder

from otpt import objectives as ob
from otpt.errors import OtptError
from otpt.registry import Objective


@pytest.fixture(scope="module")
def logits() -> torch.Tensor:
    i = torch.arange(1, 65, dtype=torch.float64)[:, None]
    j = torch.arange(1, 6, dtype=torch.float64)[None, :]
    return 8 * torch.sin(1.7 * i + 0.9 * j * (1 + 0.1 * i))


@pytest.fixture(scope="module")
def features() -> torch.Tensor:
    i = torch.arange(1, 6, dtype=torch.float64)[:, None]
    d = torch.arange(1, 9, dtype=torch.float64)[None, :]
    return torch.nn.functional.normalize(torch.cos(0.3 * i * d) + 1.5, dim=-1)


def test_selection_and_entropies(logits: torch.Tensor) -> None:
    chosen = ob.select_confident(logits, 6)
    assert chosen.tolist() == [8, 11, 40, 43, 37, 45]
    expected = [
        0.002246081648,
        0.003821557364,
        0.007312820479,
        0.029196153193,
        0.040625392832,
        0.045688507837,
    ]
    assert ob.view_entropies(logits)[chosen].tolist() == pytest.approx(expected, abs=1e-12)


def test_entropy_of_mean(logits: torch.Tensor) -> None:
    chosen = logits[ob.select_confident(logits, 6)]
    mean = chosen.softmax(-1).mean(0)
    expected = [0.1655737236669, 0.001356787282538, 0.8312602345688, 0.001330350686713, 0.0004789037951390]
    assert mean.tolist() == pytest.approx(expected, abs=1e-12)
    assert ob.entropy_of_mean(chosen).item() == pytest.approx(0.47281393299305, abs=1e-13)


def test_entropy_of_mean_survives_underflow() -> None:
    chosen = torch.tensor([[0.0, 2e4, -3e4], [0.0, 2e4, 0.0]], requires_grad=True)
    value = ob.entropy_of_mean(chosen)
    value.backward()
    assert value.item() == 0
    assert chosen.grad is not None
    assert chosen.grad.isfinite().all()


def test_range_penalty(logits: torch.Tensor) -> None:
    chosen = logits[ob.select_confident(logits, 6)]
    value = 10 * ob.range_penalty(chosen, ob.logit_range(chosen[0]))
    assert value.item() == pytest.approx(0.21027286467226, abs=1e-13)


def test_rescaled_entropy_depends_on_the_spread_only(logits: torch.Tensor) -> None:
    chosen = logits[ob.select_confident(logits, 6)]
    lo, hi = ob.logit_range(logits[0])
    rescaled = torch.stack([(r - r.min()) / (r.max() - r.min()) * (hi - lo) + lo for r in chosen])
    assert rescaled.amax().item() == pytest.approx(hi.item(), abs=1e-12)
    value = ob.rescaled_entropy(chosen, (lo, hi)).item()
    assert value == pytest.approx(ob.entropy_of_mean(rescaled).item(), abs=1e-13)
    assert value == pytest.approx(ob.rescaled_entropy(chosen, (lo + 5, hi + 5)).item(), abs=1e-12)


def test_text_objectives(features: torch.Tensor) -> None:
    gram = features @ features.T
    assert ((gram.sum() - 5) / 20).item() == pytest.approx(0.81894472461817, abs=1e-13)
    assert ob.text_dispersion(features).item() == pytest.approx(0.37885658231484, abs=1e-13)
    assert ob.orthogonality(features).item() == pytest.approx(0.92153023524076, abs=1e-13)
    assert ob.row_orthogonality(features).item() == pytest.approx(1.64072605668000, abs=1e-13)
    assert ob.frobenius_orthogonality(features).item() == pytest.approx(3.66952894635777, abs=1e-13)
    assert ob.squared_orthogonality(features).item() == pytest.approx(13.46544268815755, abs=1e-12)


@pytest.mark.parametrize(("classes", "width"), [(5, 8), (2, 16), (47, 64), (40, 12), (100, 64)])
def test_closed_form_is_the_householder_loss(classes: int, width: int) -> None:
    generator = torch.Generator().manual_seed(classes)
    raw = torch.randn(classes, width, generator=generator, dtype=torch.float64) + 1.0
    features = torch.nn.functional.normalize(raw, dim=-1).requires_grad_()
    closed, literal = ob.orthogonality(features), literal_householder(features)
    assert closed.item() == pytest.approx(literal.item(), abs=1e-13)
    (g_closed,) = torch.autograd.grad(closed, features)
    (g_literal,) = torch.autograd.grad(literal, features)
    torch.testing.assert_close(g_closed, g_literal, rtol=0, atol=1e-13)


def test_householder_is_finite_where_the_literal_form_is_not() -> None:
    features = torch.eye(4, 8, dtype=torch.float64).requires_grad_()
    assert literal_householder(features).isnan()
    value = ob.orthogonality(features)
    (gradient,) = torch.autograd.grad(value, features)
    assert value.item() == 0
    assert gradient.isfinite().all()


TEXT = [
    ob.text_dispersion,
    ob.orthogonality,
    ob.row_orthogonality,
    ob.frobenius_orthogonality,
    ob.squared_orthogonality,
]
VIEW = [
    ob.entropy_of_mean,
    ob.mean_of_entropies,
    lambda x: ob.clip_reward(x, torch.linspace(-0.5, 0.9, x.shape[-1], dtype=x.dtype).expand_as(x)),
    lambda x: ob.range_penalty(x, ob.logit_range(x[..., 0, :])),
    lambda x: ob.range_penalty(x, (x.new_full(x.shape[:-2], -0.6), x.new_full(x.shape[:-2], 0.7))),
    lambda x: ob.rescaled_entropy(x, ob.logit_range(x[..., 0, :])),
    lambda x: ob.rescaled_entropy(x, (x.new_zeros(x.shape[:-2]), x.new_full(x.shape[:-2], 3.0))),
]


@pytest.mark.parametrize("objective", TEXT)
@pytest.mark.parametrize("shape", [(4, 7), (6, 3), (2, 4, 5)])
def test_text_objectives_by_finite_differences(objective, shape) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(objective, (x,), eps=1e-6, atol=1e-8)


@pytest.mark.parametrize("objective", VIEW)
@pytest.mark.parametrize("shape", [(3, 5), (2, 3, 4)])
def test_view_objectives_by_finite_differences(objective, shape) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(objective, (x,), eps=1e-6, atol=1e-8)


def test_a_users_objective_that_returns_no_tensor() -> None:
    """A number of numpy has a shape, and yet no gradient."""
    mine = Objective("mine", lambda text_features: np.float64(1.0), digest="of mine")
    with pytest.raises(OtptError, match="'mine' returned a float64"):
        mine({"text_features": torch.randn(3, 4, requires_grad=True)}, {})


def test_no_gradient_flows_through_the_weights_of_ttl() -> None:
    draw = torch.Generator().manual_seed(2)
    logits = torch.randn(3, 5, generator=draw, dtype=torch.float64, requires_grad=True)
    (found,) = torch.autograd.grad(ob.weighted_entropies(logits), logits)
    for row, own in zip(logits.detach(), found, strict=True):
        log_p = row.log_softmax(0)
        entropy = -(log_p.exp() * log_p).sum()
        slope = -log_p.exp() * (log_p + entropy)  # ∂H/∂ℓ
        torch.testing.assert_close(own, math.exp(0.4 - entropy) * slope / 3, rtol=0, atol=1e-14)


@pytest.mark.parametrize("objective", TEXT + VIEW)
def test_batches_are_independent(objective) -> None:
    x = torch.randn(3, 4, 6, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    singles = torch.stack([objective(row) for row in x])
    torch.testing.assert_close(objective(x), singles, rtol=1e-14, atol=1e-14)
