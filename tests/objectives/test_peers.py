"""Regularisers of the calibration peers: published reference values, identities, finite differences."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from oracles.methods import field
from torch import Tensor
from torch.nn.functional import normalize

from otpt import objectives as ob
from otpt.registry import OBJECTIVES

E, E2 = field.texts(), field.second_texts()


def mean_cosine(texts: Tensor) -> float:
    gram = texts @ texts.T
    return float((gram.sum() - gram.trace()) / (len(texts) * (len(texts) - 1)))


def test_nearest_angle() -> None:
    assert mean_cosine(E) == pytest.approx(0.818944724618, abs=1e-12)
    assert mean_cosine(E2) == pytest.approx(0.806550806948, abs=1e-12)
    assert ob.nearest_angle(E).item() == pytest.approx(0.499496614534, abs=1e-12)
    assert ob.nearest_angle(E2).item() == pytest.approx(0.517282415956, abs=1e-12)


def test_two_texts_of_one_name_are_clipped_and_get_no_gradient() -> None:
    repeated = torch.cat([E, E[:1]]).requires_grad_()
    value = ob.nearest_angle(repeated)
    assert value.item() == pytest.approx(0.349833151949, abs=1e-12)
    assert math.acos(0.99999) == pytest.approx(0.004472139682, abs=1e-12)
    pair = repeated[[0, 5]].detach().requires_grad_()
    (gradient,) = torch.autograd.grad(ob.nearest_angle(pair), pair)
    assert torch.equal(gradient, torch.zeros_like(pair))


def test_only_the_nearest_class_gets_a_gradient() -> None:
    """Rows 1 and 2 are equally near to row 0; an equal share for each would not be the gradient of a maximum."""
    texts = torch.tensor([[1.0, 0, 0], [0.8, 0.6, 0], [0.8, 0, 0.6], [0, -0.6, -0.8]], dtype=torch.float64)
    (gradient,) = torch.autograd.grad(ob.nearest_angle(texts.requires_grad_()), texts)
    slope = -1 / (4 * math.sqrt(1 - 0.8**2))
    # row 0 has one neighbour, and is the neighbour of rows 1 and 2 itself
    shares = (gradient[1:3] / (slope * texts[0].detach()))[:, 0]
    assert sorted(shares.tolist()) == pytest.approx([1.0, 2.0], abs=1e-12)


@pytest.mark.parametrize(
    ("delta", "value"), [(0.3, 0.200683417385), (0.5, 0.284472362309), (0.8, 0.335530284157), (0.9, 0.336619609077)]
)
def test_huber_of_cosines(delta: float, value: float) -> None:
    assert ob.huber_cosine(E, delta).item() == pytest.approx(value, abs=1e-12)


def test_huber_is_the_mean_cosine_where_all_cosines_exceed_delta() -> None:
    delta = 0.3
    gram = E @ E.T
    assert gram.min() > delta
    centre = E.mean(0)
    mean = (5 * centre.square().sum() - 1) / 4
    assert mean.item() == pytest.approx(0.818944724618, abs=1e-12)
    assert (1 - centre.square().sum()).item() == pytest.approx(0.144844220305, abs=1e-12)
    assert (E - centre).square().sum(1).mean().item() == pytest.approx(0.144844220305, abs=1e-12)
    assert ob.huber_cosine(E, delta).item() == pytest.approx(delta * (mean.item() - delta / 2), abs=1e-14)
    texts = E.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(ob.huber_cosine(texts, delta), texts)
    expected = delta * 2 / 20 * (E.sum(0) - E)  # of the sum over i ≠ j, the unit rows' own terms left out
    torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-14)


def test_huber_is_half_the_mean_squared_cosine_where_none_exceeds_delta() -> None:
    texts = normalize(torch.randn(5, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64), dim=1)
    squared = ob.squared_orthogonality(texts).item() / 20
    assert ob.huber_cosine(texts, 1.0).item() == pytest.approx(squared / 2, abs=1e-14)


def test_divergence_of_coordinates() -> None:
    assert ob.coordinate_divergence(E).item() == pytest.approx(0.010695531946, abs=1e-12)
    assert ob.coordinate_divergence(E, 1.0).item() == pytest.approx(0.010687210542, abs=1e-12)


def test_attributes() -> None:
    six = field.texts(6)
    assert ob.attribute_inter(six, 2).item() == pytest.approx(0.293272360628, abs=1e-12)
    assert ob.attribute_intra(six, 2).item() == pytest.approx(0.257621739091, abs=1e-12)


def test_one_attribute_is_the_dispersion() -> None:
    texts = E.clone().requires_grad_()
    assert ob.attribute_inter(texts, 1).item() == ob.text_dispersion(E).item()
    value = ob.attribute_intra(texts, 1)
    (gradient,) = torch.autograd.grad(value, texts)
    assert value.item() == 0
    assert torch.equal(gradient, torch.zeros_like(E))
    assert (
        OBJECTIVES["attribute-inter"]({"text_features": E, "attributes": 1}, {}).item() == -ob.text_dispersion(E).item()
    )


def test_moments() -> None:
    def covariance(texts: Tensor) -> Tensor:
        return torch.cov(texts.T, correction=0)

    means, covariances = 0.003159122799, 0.001763919545
    assert (E2.mean(0) - E.mean(0)).square().sum().item() == pytest.approx(means, abs=1e-12)
    assert (covariance(E2) - covariance(E)).square().sum().item() == pytest.approx(covariances, abs=1e-12)
    assert ob.moment_distance(E2, E).item() == pytest.approx(means + covariances, abs=2e-12)


def test_moments_have_no_gradient_at_the_init() -> None:
    texts = E.clone().requires_grad_()
    value = ob.moment_distance(texts, E)
    (gradient,) = torch.autograd.grad(value, texts)
    assert value.item() == 0
    assert torch.equal(gradient, torch.zeros_like(E))


def test_signs() -> None:
    widen, narrow = OBJECTIVES["nearest-angle"], OBJECTIVES["nearest-angle-narrowed"]
    assert widen({"text_features": E}, {}).item() == pytest.approx(-0.499496614534, abs=1e-12)
    assert narrow({"text_features": E}, {}).item() == pytest.approx(0.499496614534, abs=1e-12)
    assert OBJECTIVES["attribute-inter"]({"text_features": field.texts(6), "attributes": 2}, {}).item() < 0
    assert OBJECTIVES["attribute-intra"]({"text_features": field.texts(6), "attributes": 2}, {}).item() > 0


def on_the_sphere(objective, x: Tensor) -> Tensor:
    return objective(normalize(x, dim=-1))


def away_from_the_init(x: Tensor) -> Tensor:
    """Moments against texts that are no function of ``x``."""
    rows, width = x.shape[-2:]
    return ob.moment_distance(x, torch.linspace(-0.5, 0.5, rows * width, dtype=x.dtype).sin().view(rows, width))


FORMS = {
    "moments": away_from_the_init,
    "nearest-angle": ob.nearest_angle,
    "huber": ob.huber_cosine,
    "huber-small": partial(ob.huber_cosine, huber_delta=0.1),
    "coordinates": ob.coordinate_divergence,
    "coordinates-reverse": partial(ob.coordinate_divergence, reverse_kl=1.0),
    "attribute-inter": partial(ob.attribute_inter, attributes=2),
    "attribute-intra": partial(ob.attribute_intra, attributes=2),
}


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("shape", [(4, 7), (6, 3), (2, 4, 5)])
def test_gradients_by_finite_differences(name: str, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(partial(on_the_sphere, FORMS[name]), (x,), eps=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", FORMS)
def test_batches_are_independent(name: str) -> None:
    raw = torch.randn(3, 4, 6, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    x = normalize(raw, dim=-1)
    singles = torch.stack([FORMS[name](row) for row in x])
    torch.testing.assert_close(FORMS[name](x), singles, rtol=1e-14, atol=1e-14)
