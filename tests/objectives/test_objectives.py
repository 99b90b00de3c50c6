"""Objectives: published values, literal forms, identities, and gradients by finite differences."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
import torch
from oracles.methods import field, posthoc
from oracles.methods.householder import literal_householder
from torch import Tensor
from torch.nn.functional import normalize

from otpt import objectives as ob
from otpt.errors import OtptError
from otpt.objectives import clean_weight, ensemble_cross_entropy, select_strong, strong_views
from otpt.registry import OBJECTIVES, Objective

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


def test_attribute_objectives() -> None:
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
    expected = [0.002246081648, 0.003821557364, 0.007312820479, 0.029196153193, 0.040625392832, 0.045688507837]
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


@pytest.mark.parametrize(("classes", "width"), [(5, 8), (2, 16), (8, 8), (47, 64), (40, 12), (100, 64), (3, 2)])
def test_the_spectral_reading_is_the_squared_operator_norm(classes: int, width: int) -> None:
    generator = torch.Generator().manual_seed(classes)
    for mean in (0.0, 1.0):
        raw = torch.randn(classes, width, generator=generator, dtype=torch.float64) + mean
        features = torch.nn.functional.normalize(raw, dim=-1).requires_grad_()
        unit = features.detach()

        def on_the_tangent(gradient: torch.Tensor, unit: torch.Tensor = unit) -> torch.Tensor:
            return gradient - (gradient * unit).sum(dim=-1, keepdim=True) * unit  # texts stay unit vectors

        off = features @ features.T - torch.eye(classes, dtype=torch.float64)
        value, literal = ob.spectral_orthogonality(features), torch.linalg.matrix_norm(off, ord=2) ** 2
        assert value.item() == pytest.approx(literal.item(), abs=1e-10)
        gradient, expected = (on_the_tangent(torch.autograd.grad(norm, features)[0]) for norm in (value, literal))
        torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-10)
    orthogonal = torch.eye(classes, width, dtype=torch.float64)
    assert ob.spectral_orthogonality(orthogonal).item() == (1 if classes > width else 0)


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
    ob.spectral_orthogonality,
    *(partial(on_the_sphere, form) for form in FORMS.values()),
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
@pytest.mark.parametrize("shape", [(6, 3), (2, 4, 5)])
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


STRONG = [33, 29, 21, 5, 61, 56]


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return 3 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_the_reference_values_of_the_mixtures() -> None:
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
    logits = drawn(2, views, 4)
    logits[:, 0] *= 100  # the clean view is the surest by far, and still none of them
    found = strong_views(logits)
    assert found.shape == (2, max((views - 1) // 10, 1))
    for one, own in zip(logits, found, strict=True):
        assert own.tolist() == posthoc.by_entropy(one.tolist(), range(1, views))[: found.shape[1]]
    assert strong_views(logits, 1.0).shape == (2, views - 1)


@pytest.mark.parametrize("seed", range(3))
def test_values_are_the_literal_ones(seed: int) -> None:
    logits, tuned = drawn(3, 31, 5, seed=seed), drawn(3, 31, 5, seed=seed + 50)
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
    logits, start = drawn(4, 5), drawn(31, 5, seed=1)
    leaf = logits.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda each: ensemble_cross_entropy(each, start[:4], start), (leaf,))


def test_probabilities_that_underflow_leave_it_finite() -> None:
    logits = torch.tensor([[2000.0, 0.0], [2000.0, 0.0], [0.0, 2000.0]], requires_grad=True)
    found = ensemble_cross_entropy(logits, logits.detach(), logits.detach())
    found.backward()
    assert bool(found.isfinite())
    assert bool(logits.grad.isfinite().all())
