"""The engines against the literal way: 77 tokens, explicit reflectors, torch's AdamW, one image at a time."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from oracles.methods.literal import LiteralTuner
from oracles.models.tiny import tiny_backbone, tiny_clip, tokenizer
from torch import Tensor

from otpt.methods import get_method, published_methods
from otpt.methods.method import TuningConfig
from otpt.methods.state import PromptState, prompt_state
from otpt.methods.tuner import adamw_first_step, tune, tune_many_steps

NAMES = ["cat", "dog", "red panda", "2012 BMW M3 coupe", "sea", "abyssinian (old)"]
VIEWS, SIZE = 30, {"vit": 32, "resnet": 64}
TUNED = [
    name
    for name, method in published_methods().items()
    if method.objectives and method.init == "words" and method.adapt == "context"
]
TUNED += ["r-tpt", "rlcf", "use"]


def pixels(kind: str, images: int, dtype: torch.dtype) -> Tensor:
    """Views that resemble each other within an image, as crops do: (B, V, 3, S, S)."""
    generator = torch.Generator().manual_seed(5)
    size = SIZE[kind]
    shared = torch.randn(images, 1, 3, size, size, generator=generator, dtype=torch.float64)
    own = torch.randn(images, VIEWS, 3, size, size, generator=generator, dtype=torch.float64)
    return (shared + 0.5 * own).to(dtype)


@pytest.fixture(scope="module")
def double() -> tuple[LiteralTuner, PromptState, Tensor, Tensor]:
    """(oracle, prompt state, pixels, image features) in float64."""
    return _case("vit", "float64")


@cache
def _case(kind: str, precision: str) -> tuple[LiteralTuner, PromptState, Tensor, Tensor]:
    backbone = tiny_backbone(kind, precision)
    oracle = LiteralTuner(tiny_clip(kind, dtype=backbone.dtype), tokenizer(), NAMES)
    views = pixels(kind, 3, backbone.dtype)
    features = torch.stack([backbone.encode_pixels(image) for image in views])
    return oracle, prompt_state(backbone, NAMES), views, features


def _literal(oracle: LiteralTuner, views: Tensor, config: TuningConfig) -> Tensor:
    settings = {"steps": config.steps, "reference": config.reference, "two_step": config.two_step}
    settings |= {"lr": config.learning_rate, "weight_decay": config.weight_decay, "selection": config.selection}
    found = [oracle.predict(image, weights=dict(config.weights), **settings) for image in views]
    return torch.stack([each["logits"] for each in found]).softmax(-1)


def check(config: TuningConfig, kind: str = "vit", precision: str = "float64") -> None:
    """Two images by the engine and the literal way; tuning must change something, or the test shows nothing."""
    oracle, text, views, features = _case(kind, precision)
    found, expected = tune(text, features[:2], [config])[config].logits.softmax(-1), _literal(oracle, views[:2], config)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10 if precision == "float64" else 1e-5)
    assert (expected - text.initial(features[:2]).logits.softmax(-1)).abs().max() > 1e-4


@pytest.mark.parametrize(
    ("name", "family"),
    [*((name, "fine-grained") for name in TUNED), *((name, "shift") for name in ("c-tpt", "o-tpt", "c-tpt+penalty"))],
)
def test_every_method_equals_the_literal_way_in_float64(name: str, family: str) -> None:
    check(get_method(name).tuning(family))


@pytest.mark.parametrize("steps", [1, 2])
def test_an_objective_that_no_method_has_equals_the_literal_way(steps: int) -> None:
    """TTL's loss on a context; TTL itself tunes the image tower."""
    check(TuningConfig((("weighted-entropy", 1.0),), steps=steps))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kind", "precision"),
    [
        *((name, "resnet", "float64") for name in ("o-tpt", "rlcf", "use")),
        *((name, "vit", "float32") for name in ("c-tpt", "o-tpt", "c-tpt+zs", "r-tpt", "use")),
        ("o-tpt", "resnet", "float32"),
    ],
)
def test_other_towers_and_float32(name: str, kind: str, precision: str) -> None:
    check(get_method(name).tuning("fine-grained"), kind, precision)


REFERENCES = ("tpt+penalty", "tpt+zs", "c-tpt+penalty", "c-tpt+zs")
OVERRIDES = [
    *((name, {"steps": 2}) for name in ("tpt", "o-tpt", "o-tpt+c-tpt", "tpt+penalty", "c-tpt+zs", "r-tpt", "use")),
    ("o-tpt", {"steps": 3}),
    *((name, {"two-step": "on"}) for name in ("c-tpt", "o-tpt")),
    *((name, {"reference": "clean"}) for name in REFERENCES),
]


@pytest.mark.parametrize(("name", "settings"), OVERRIDES)
def test_several_steps_two_step_mode_and_clean_reference(name: str, settings: dict[str, Any]) -> None:
    check(get_method(name).override(settings).tuning("fine-grained"))


@pytest.mark.parametrize("name", TUNED)
def test_both_engines_agree_where_both_apply(name: str, double) -> None:
    _, text, _, features = double
    config = get_method(name).override({"steps": 1}).tuning("fine-grained")
    one, many = tune(text, features, [config])[config], tune_many_steps(text, features, config)
    torch.testing.assert_close(one.logits.softmax(-1), many.logits.softmax(-1), rtol=0, atol=1e-10)
    torch.testing.assert_close(one.mean_cosine, many.mean_cosine, rtol=0, atol=1e-10)


def test_first_step_is_adamw() -> None:
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(4, 16, generator=generator, dtype=torch.float64)
    gradient = torch.randn(4, 16, generator=generator, dtype=torch.float64) * 10 ** torch.linspace(-9, 2, 16).double()
    parameter = torch.nn.Parameter(start.clone())
    parameter.grad = gradient.clone()
    torch.optim.AdamW([parameter], lr=5e-3).step()
    found = adamw_first_step(start, gradient, learning_rate=5e-3, weight_decay=0.01)
    torch.testing.assert_close(found, parameter.detach(), rtol=0, atol=1e-12)
    literal = start * (1 - 5e-5) - 0.005 * gradient / (gradient.abs() + 1e-8)
    torch.testing.assert_close(found, literal, rtol=0, atol=1e-15)


@pytest.mark.equality
def test_all_methods_together_equal_each_alone(double) -> None:
    _, text, _, features = double
    configs = [get_method(name).tuning("fine-grained") for name in TUNED]
    together = tune(text, features, configs)
    for config in configs:
        alone = tune(text, features, [config])[config]
        assert torch.equal(together[config].logits, alone.logits)


@pytest.mark.equality
@pytest.mark.parametrize("steps", [1, 2])
def test_an_image_gets_the_same_in_any_batch_and_order(steps: int) -> None:
    _, text, _, features = _case("vit", "float32")
    config = published_methods()["o-tpt"].override({"steps": steps}).tuning("fine-grained")
    whole = tune(text, features, [config])[config].logits
    for order in ([0], [2, 0], [1, 2, 0], [2, 2, 1]):
        part = tune(text, features[order], [config])[config].logits
        assert torch.equal(part, whole[order])


@pytest.mark.parametrize("name", ["o-tpt", "tpt+zs"])
@pytest.mark.parametrize("options", [{"memory_budget": 200_000}, {"contexts_per_pass": 2}, {"contexts_per_pass": 5}])
def test_chunks_and_passes_do_not_matter(name: str, options: dict[str, int]) -> None:
    _, text, _, features = _case("vit", "float64")
    config = get_method(name).tuning("fine-grained")
    other = prompt_state(tiny_backbone("vit", "float64"), NAMES, **options)
    for steps in (1, 2):
        stepped = TuningConfig(config.weights, steps=steps)
        expected, found = (tune(side, features, [stepped])[stepped] for side in (text, other))
        torch.testing.assert_close(found.logits, expected.logits, rtol=0, atol=1e-9)


@pytest.mark.equality
@pytest.mark.parametrize("steps", [1, 2])
def test_a_gradient_that_is_not_finite_keeps_the_initial_prompt(steps: int) -> None:
    _, text, _, features = _case("vit", "float32")
    broken = features.clone()
    broken[1, 1:] = float("nan")
    config = TuningConfig((("entropy", 1.0),), selection_ratio=1.0, steps=steps)
    found = tune(text, broken, [config])[config]
    assert found.skipped.tolist() == [False, True, False]
    assert torch.equal(found.contexts[1], text.init)
    torch.testing.assert_close(found.logits[1], text.initial(features).logits[1], rtol=0, atol=1e-4)
    good = tune(text, features, [config])[config]
    assert torch.equal(found.logits[[0, 2]], good.logits[[0, 2]])


def test_mean_cosine_is_of_the_tuned_texts(double) -> None:
    oracle, text, _, features = double
    config = published_methods()["o-tpt"].tuning("fine-grained")
    found = tune(text, features, [config])[config]
    texts = oracle.text_features(found.contexts[0])
    gram = texts @ texts.T
    expected = (gram.sum() - gram.trace()) / (len(NAMES) * (len(NAMES) - 1))
    assert found.mean_cosine[0].item() == pytest.approx(expected.item(), abs=1e-12)
