"""DOTA, OGA, ADAPT, OnZeta, PTA, LSA, the label prior and ECALP: reference values, and literal loops to 1e-10."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from oracles.methods import streams_2026 as literal
from torch import Tensor
from torch.nn.functional import normalize

from otpt.methods import get_method
from otpt.methods.gaussians import adapt_gda, dota, oga
from otpt.methods.online import ecalp, label_prior, lsa, onzeta, pta
from otpt.registry import Component

SCALE = 10.0
DIGITS = {"rtol": 0, "atol": 6e-7}
TEXTS = normalize(torch.tensor([[1, 0.2, 0.1], [0.3, 1, 0.1]], dtype=torch.float64), dim=1)
IMAGES = normalize(
    torch.tensor(
        [[0.9, 0.4, 0.2], [0.4, 0.9, 0.3], [0.7, 0.6, 0.5], [0.8, 0.3, 0.4], [0.2, 0.8, 0.5], [0.9, 0.5, 0.1]],
        dtype=torch.float64,
    ),
    dim=1,
)


def numbers(text: str) -> Tensor:
    """Rows separated by "|"."""
    return torch.tensor([[float(each) for each in row.split()] for row in text.split("|")], dtype=torch.float64)


def run(
    function: Callable[..., Tensor], images: Tensor, state: dict[str, Any] | None = None, **settings: Any
) -> Tensor:
    """First rows (N, C) of a stream of images, (N, D) or (N, V, D)."""
    state = {} if state is None else state
    found = []
    for each in images:
        views = each.view(-1, each.shape[-1])
        available = {
            "features": views, "logits": SCALE * views @ TEXTS.mT, "text_features": TEXTS, "logit_scale": SCALE,
            "state": state,
        }  # fmt: skip
        found.append(Component("", function).call(available, settings)[0])
    return torch.stack(found)


def test_dota() -> None:
    state: dict[str, Any] = {}
    found = run(dota, IMAGES[:3], state)
    torch.testing.assert_close(found, numbers("9.725479 6.561153|5.818469 9.735446|8.127461 7.845498"), **DIGITS)
    gaussians = state["gaussians"]
    torch.testing.assert_close(gaussians.means[:1], numbers("0.489641 0.284587 0.183982"), **DIGITS)
    torch.testing.assert_close(gaussians.counts[None], numbers("2.547331 2.452669"), **DIGITS)
    torch.testing.assert_close(gaussians.covariance.diagonal()[None], numbers("0.207478 0.197625 0.050110"), **DIGITS)
    torch.testing.assert_close(gaussians.covariance[0, 1].item(), 0.145281, **DIGITS)
    covariances = gaussians.scatters / gaussians.counts[:, None, None]
    torch.testing.assert_close(covariances.mean(dim=0), gaussians.covariance, rtol=0, atol=1e-12)
    pairs = run(dota, IMAGES[:4].view(2, 2, 3), mean_views=True, stream_ratio=1.0)
    torch.testing.assert_close(pairs[1:], numbers("8.725474 6.843825"), **DIGITS)


def test_oga() -> None:
    state: dict[str, Any] = {}
    found = run(oga, IMAGES, state, oga_capacity=3, oga_by_capacity=True).softmax(dim=1)
    expected = (
        "0.961276 0.038724|0.017969 0.982031|0.574141 0.425859|0.981768 0.018232|0.006057 0.993943|0.940990 0.059010"
    )
    torch.testing.assert_close(found, numbers(expected), **DIGITS)
    stored = [[IMAGES.sub(g).abs().sum(dim=1).argmin().item() for g in own] for own in state["stored"].cache.values()]
    assert set(stored[0]) == {0, 5, 3}
    assert set(stored[1][:2]) == {1, 4}
    found = run(oga, IMAGES, oga_capacity=3).softmax(dim=1)[[2, 4, 5]]
    torch.testing.assert_close(found, numbers("0.576096 0.423904|0.005214 0.994786|0.963610 0.036390"), **DIGITS)


def test_adapt_gda() -> None:
    settings = {"adapt_capacity": 2, "adapt_weight": 60.0}
    expected = (
        "9.710569 4.028544|0.000013 9.723890|8.095213 6.339963|9.310068 2.183163|2.235596 8.997121|9.528726 5.556807"
    )
    torch.testing.assert_close(run(adapt_gda, IMAGES, **settings, adapt_released=True), numbers(expected), **DIGITS)
    expected = "0.974663 0.025337|0 1|0.616368 0.383632|0.988623 0.011377|0.004121 0.995879|0.939768 0.060232"
    torch.testing.assert_close(run(adapt_gda, IMAGES, **settings).softmax(dim=1), numbers(expected), **DIGITS)


def test_ecalp() -> None:
    found = run(ecalp, IMAGES[:4], ecalp_texts=2, ecalp_images=3).exp()
    expected = "0.877785 0.122215|0.079783 0.920217|0.674187 0.325813|0.971147 0.028853"
    torch.testing.assert_close(found, numbers(expected), **DIGITS)


def test_onzeta() -> None:
    state: dict[str, Any] = {}
    found = run(onzeta, IMAGES[:3], state, stream_length=6, onzeta_temperature=0.4).exp()
    torch.testing.assert_close(found, numbers("0.870829 0.129171|0.161353 0.838647|0.716890 0.283110"), **DIGITS)
    torch.testing.assert_close(state["proxies"].multipliers[None], numbers("1.359042 7.830348"), **DIGITS)
    torch.testing.assert_close(state["proxies"].proxies[:1], numbers("0.976296 0.139575 0.165426"), **DIGITS)


def test_pta() -> None:
    state: dict[str, Any] = {}
    found = run(pta, IMAGES[:3], state)
    torch.testing.assert_close(found, numbers("19.701512 13.092484|13.039638 19.715551|17.665363 17.178348"), **DIGITS)
    torch.testing.assert_close(state["prototypes"][:1], numbers("0.059486 0.034162 0.022428"), **DIGITS)
    found = run(pta, IMAGES[:3], pta_feed_back=True)
    torch.testing.assert_close(found, numbers("19.701512 13.092484|13.271657 19.715551|17.735771 17.255171"), **DIGITS)


def test_priors() -> None:
    settings = {"stream_length": 6, "lsa_passes": 99}
    found = run(lsa, IMAGES, **settings, lsa_as_printed=True).softmax(dim=1)
    expected = (
        "0.957368 0.042632|0.019145 0.980855|0.563722 0.436278|0.958428 0.041572|0.007650 0.992350|0.879840 0.120160"
    )
    torch.testing.assert_close(found, numbers(expected), **DIGITS)
    found = run(lsa, IMAGES[:3], **settings).softmax(dim=1)
    torch.testing.assert_close(found, numbers("0.946897 0.053103|0.019294 0.980706|0.560292 0.439708"), **DIGITS)
    state: dict[str, Any] = {}
    found = run(label_prior, IMAGES[:3], state, prior_weight=5.0).exp()
    torch.testing.assert_close(found, numbers("0.959470 0.040530|0.022437 0.977563|0.567338 0.432662"), **DIGITS)
    torch.testing.assert_close(state["prior"][None], numbers("0.503788 0.496212"), **DIGITS)


LITERAL: dict[str, tuple[Callable[[Any, float, bool], Any], dict[str, Any]]] = {
    "dota": (lambda e, s, mean: literal.Dota(e, s, eta=0.3, rho=0.02, epsilon=1e-4, mean=mean), {}),
    "oga": (lambda e, s, mean: literal.Oga(e, s, capacity=8, released=False), {}),
    "oga-released": (lambda e, s, mean: literal.Oga(e, s, capacity=8, released=True), {}),
    "adapt-gda": (
        lambda e, s, mean: literal.AdaptGda(e, s, capacity=4, weight=60.0, released=False, mean=mean),
        {"adapt_capacity": 4},
    ),
    "adapt-gda-released": (
        lambda e, s, mean: literal.AdaptGda(e, s, capacity=4, weight=60.0, released=True, mean=mean),
        {"adapt_capacity": 4},
    ),
    "onzeta": (lambda e, s, mean: literal.OnZeta(e, s, length=60, temperature=0.04), {}),
    "onlab": (lambda e, s, mean: literal.OnZeta(e, s, length=60, temperature=0.04, beta=0), {}),
    "pta": (lambda e, s, mean: literal.Pta(e, s, released=False, mean=mean), {}),
    "pta-released": (lambda e, s, mean: literal.Pta(e, s, released=True, mean=mean), {}),
    "lsa": (lambda e, s, mean: literal.Lsa(e, s, length=60, passes=10, printed=False), {}),
    "label-prior": (lambda e, s, mean: literal.LabelPrior(e, s, weight=60.0), {}),
    "ecalp": (lambda e, s, mean: literal.Ecalp(e, s, k_text=3, k_image=8), {}),
}


OF_VIEWS = [name for name in LITERAL if name.startswith(("dota", "adapt", "pta"))]
CASES = [*((name, "fine-grained") for name in LITERAL), *((name, "shift") for name in OF_VIEWS)]


@pytest.mark.parametrize(("name", "family"), CASES)
def test_literal(name: str, family: str) -> None:
    """Sixty images of ten views, six classes in eight dimensions; the cache of OGA then has more than 4D entries."""
    method = get_method(name)
    draw = np.random.default_rng(3)
    texts = draw.normal(size=(6, 8)) + 1
    texts /= np.linalg.norm(texts, axis=1, keepdims=True)
    views = (
        texts[draw.integers(0, 6, 60)][:, None]
        + 0.25 * draw.normal(size=(60, 1, 8))
        + 0.1 * draw.normal(size=(60, 10, 8))
    )
    views /= np.linalg.norm(views, axis=2, keepdims=True)
    make, changed = LITERAL[name]
    settings = {**method.defaults, **method.settings_for(family), **changed}
    mean = bool(settings.get("mean_views"))
    assert mean == (family == "shift")
    if mean:
        settings["stream_ratio"] = 0.35
    if "stream_length" in settings:
        settings["stream_length"] = 60
    expected = make(texts, 20.0, mean)
    expected.ratio = 0.35
    component, state = next(each for each in method.functions if each.function), {}
    for own in views:
        given = {"features": own, "logits": 20.0 * own @ texts.T, "text_features": texts}
        tensors = {key: torch.from_numpy(value) for key, value in given.items()}
        available = {**tensors, "logit_scale": 20.0, "state": state}
        found = component.call(available, settings)
        assert found.shape == (10, 6)
        wanted = torch.from_numpy(expected(own))
        if not name.startswith(("dota", "pta", "adapt")):
            found, wanted = found.log_softmax(dim=-1), wanted.log_softmax(dim=-1)
        torch.testing.assert_close(found[0], wanted, rtol=0, atol=1e-10)
