"""Stream methods through the engine, against literal loops over a stream of images, in float64 to 1e-10."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from oracles.methods.streams import Array, Bca, Boost, BoostAdapter, Dmn, Dpe, Tda, softmax
from oracles.models.tiny import tiny_backbone
from torch import Tensor

import otpt
from otpt import Backbone, Classifier, OtptError, ViewRecipe
from otpt.methods import Protocol, get_method
from otpt.methods.state import prompt_state

pytestmark = pytest.mark.slow

NAMES = ("cat", "dog", "red panda", "sea", "pug", "tea")
VIEWS = 32
EXACT = {"rtol": 0, "atol": 1e-10}
CACHED = {"alpha": 2.0, "beta": 5.0}
STREAMS = ("tda", "boostadapter", "dmn", "bca", "dpe")


@cache
def backbone() -> Backbone:
    return tiny_backbone("vit", "float64")


@cache
def texts() -> Tensor:
    return prompt_state(backbone(), NAMES).text_features


def images(count: int = 40, *, doubt: float = 1.0) -> Tensor:
    """(N, V, D) unit features: between the texts, nearer to one of them, so that images are sure, doubtful or wrong."""
    draw = torch.Generator().manual_seed(5)
    noise = torch.randn(count, VIEWS, texts().shape[1], generator=draw, dtype=torch.float64)
    own = torch.randn(count, 1, texts().shape[1], generator=draw, dtype=torch.float64)
    label = torch.randint(0, len(NAMES), (count,), generator=draw)
    centre = torch.linalg.pinv(texts()).sum(dim=1)  # as far from one text as from the others
    away = 0.06 * texts()[label][:, None] + 0.01 * own + 0.01 * noise
    mixed = doubt * centre / centre.norm() + (2 + torch.arange(count) % 11)[:, None, None] * away
    return mixed / mixed.norm(dim=-1, keepdim=True)


def classifier(family: str = "fine-grained") -> Classifier:
    return Classifier(backbone(), views=ViewRecipe(n_views=VIEWS), family=family).set_classes(NAMES)


def predicted(name: str | otpt.Method, features: Tensor, family: str = "fine-grained") -> Array:
    """Probabilities (N, C) of a stream."""
    method = get_method(name)
    found = classifier(family).classify_features(features, [method])
    return np.stack([each[method.name].probabilities for each in found])


def literal(name: str, *, mean: bool) -> Any:
    e, scale = texts().numpy(), backbone().logit_scale
    methods: dict[str, Callable[[], Any]] = {
        "tda": lambda: Tda(e, scale, **CACHED, mean=mean),
        "boostadapter": lambda: BoostAdapter(e, scale, delta=1, **CACHED, mean=mean),
        "boost": lambda: Boost(e, scale, delta=1, **CACHED, mean=mean),
        "dmn": lambda: Dmn(e, scale),
        "bca": lambda: Bca(e, scale, mean=mean),
        "dpe": lambda: Dpe(e, scale, alpha=6.0, beta=5.0, rate=6e-4, contrast=0.5, mean=mean),
    }
    return methods[name]()


@cache
def literal_stream(name: str, *, mean: bool) -> tuple[Any, Array]:
    """The oracle after all images, and its logits (N, C)."""
    method = literal(name, mean=mean)
    return method, np.stack([method(each)[0] for each in images().numpy()])


@pytest.mark.parametrize("family", ["fine-grained", "shift"])
@pytest.mark.parametrize("name", [*STREAMS, "boost"])
def test_a_stream_is_the_literal_one(name: str, family: str) -> None:
    _, logits = literal_stream(name, mean=family == "shift")
    expected = np.stack([softmax(each) for each in logits])
    np.testing.assert_allclose(predicted(name, images(), family), expected, **EXACT)


def test_the_stream_takes_every_branch() -> None:
    """Caches overflow, doubtful images enter the negative one, labels change: else the comparison shows little."""
    found = {name: literal_stream(name, mean=False) for name in STREAMS}
    tda, centres, evolving = (found[name][0] for name in ("tda", "bca", "dpe"))
    zero_shot = [tda.logits(each)[0].argmax() for each in images().numpy()]
    changed = np.stack([logits.argmax(axis=1) != zero_shot for _, logits in found.values()], axis=1)
    assert max(len(own) for own in tda.positive.values()) == 3
    assert sum(len(own) for own in tda.negative.values()) >= 4
    assert max(centres.n) > 20000
    assert max(centres.k) > 1
    assert 1 < evolving.updates < 41
    assert np.any(changed, axis=0).all()


@pytest.mark.parametrize(
    ("settings", "own"),
    [
        ({"memory-size": 3}, {"size": 3}),
        ({"memory-weight": 0.25}, {"weight": 0.25}),
    ],
)
def test_settings_of_the_memory(settings: dict[str, float], own: dict[str, Any]) -> None:
    features, method = images(), Dmn(texts().numpy(), backbone().logit_scale, **own)
    expected = np.stack([softmax(method(each)[0]) for each in features.numpy()])
    np.testing.assert_allclose(predicted(get_method("dmn").override(settings), features), expected, **EXACT)


@pytest.mark.usefixtures("registries")
@pytest.mark.parametrize("name", [*STREAMS, "boost"])
def test_other_views_have_terms_of_their_own(name: str) -> None:
    @otpt.aggregation
    def fourth_view(probabilities: Tensor) -> Tensor:
        return probabilities[3]

    features, method = images(15), literal(name, mean=False)
    expected = np.stack([softmax(method(each)[3]) for each in features.numpy()])
    np.testing.assert_allclose(predicted(f"{name}+fourth-view", features), expected, **EXACT)


@pytest.mark.parametrize("name", [*STREAMS, "boost"])
def test_confident_images_leave_everything_finite(name: str) -> None:
    """In single precision the least probable classes underflow; a log-probability must not."""
    model = tiny_backbone("vit", "float32")
    features = images(12, doubt=0.0).float()
    found = Classifier(model, views=ViewRecipe(n_views=VIEWS)).set_classes(NAMES).classify_features(features, [name])
    assert all(np.isfinite(each[name].probabilities).all() for each in found)


def test_numbers_by_data_set() -> None:
    table = {
        ("tda", "imagenet-sketch", "shift"): {"cache_alpha": 2.363, "cache_beta": 7.45, "mean_views": 1},
        ("tda", "caltech101", "fine-grained"): {"cache_alpha": 5, "cache_beta": 5, "mean_views": 0},
        ("tda", "mine", "fine-grained"): {"cache_alpha": 2, "cache_beta": 5, "mean_views": 0},
        ("boostadapter", "food101", "fine-grained"): {"cache_alpha": 1, "cache_beta": 1, "boost_delta": 3},
        ("boost", "imagenet-r", "shift"): {"cache_alpha": 1, "cache_beta": 8, "boost_delta": 3, "mean_views": 1},
        ("dpe", "cars", "fine-grained"): {"cache_alpha": 3, "cache_beta": 7, "dpe_rate": 1e-4, "dpe_contrast": 1.5},
        ("dpe", "imagenet-a", "shift"): {"dpe_rate": 3e-4, "mean_views": 1, "mean_prediction": 1},
        ("dpe", "imagenet-v2", "shift"): {"dpe_rate": 5e-4, "mean_views": 1, "mean_prediction": 0},
        ("bca", "imagenet-v2", "shift"): {"mean_views": 1},
        ("dmn", "imagenet-v2", "shift"): {},
    }
    for (name, dataset, family), expected in table.items():
        found = get_method(name).settings_for(family, dataset)
        assert {key: found[key] for key in expected} == expected, name


def test_views_are_made_where_they_are_needed() -> None:
    def views(name: str, family: str, dataset: str = "") -> int:
        recipe = Protocol(family=family, dataset=dataset).recipe_for(get_method(name))
        assert recipe is not None
        return recipe.n_views

    assert [views(name, "fine-grained") for name in ("tda", "bca", "dpe", "boost", "dmn")] == [1, 1, 1, 64, 64]
    assert [views(name, "shift") for name in ("tda", "bca", "dpe", "boost", "dmn")] == [64, 64, 64, 64, 64]
    assert views("dpe", "shift", "imagenet-a") == 64
    with pytest.raises(OtptError, match="'tda'"):
        Protocol(family="shift", views=1).recipe_for(get_method("tda"))
    alone = get_method("tda").override({"mean-views": 0})
    found = Protocol(family="shift", views=1).recipe_for(alone)
    assert found is not None
    assert found.n_views == 1


def test_a_caution_concerns_numbers_by_data_set() -> None:
    tda = get_method("tda")
    assert "chosen on the test images" in tda.caution
    assert tda.caution_on(["food101", "mine"]) == tda.caution
    assert tda.caution_on(["mine"]) == ""
    assert tda.override({"cache-alpha": 2}).caution == tda.caution
    assert tda.override({"cache-alpha": 2, "cache-beta": 5}).caution_on(["food101"]) == ""
    assert otpt.Method("mine", caution="Beware.").caution_on(["food101"]) == "Beware."
    assert get_method("dmn").caution == ""
