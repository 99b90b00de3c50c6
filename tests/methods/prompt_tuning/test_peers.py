"""Tuned methods of the field against the literal way: their regularisers, static prompts, texts with attributes."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from open_clip import SimpleTokenizer
from oracles.methods.literal import LiteralTuner
from oracles.models.tiny import tiny_backbone, tiny_clip
from torch import Tensor

from otpt.errors import OtptError
from otpt.methods import get_method, names_with_attributes
from otpt.methods.method import TuningConfig
from otpt.methods.state import PromptState, prompt_state
from otpt.methods.tuner import tune
from otpt.prompts import Prompt, PromptEncoder
from otpt.registry import OBJECTIVES

pytestmark = pytest.mark.slow

NAMES = ["cat", "dog", "red panda", "2012 BMW M3 coupe", "sea", "abyssinian (old)"]
ATTRIBUTES = {
    "cat": ["furry", "small", "quick"],
    "dog": ["loyal", "brown", "large"],
    "red panda": ["striped", "red and white", "sleepy"],
    "2012 BMW M3 coupe": ["fast", "shiny", "low"],
    "sea": ["blue", "calm", "wide"],
    "abyssinian (old)": ["ticked", "slender", "gold"],
}
PEERS = ["a-tpt", "a-tpt-released", "soc", "d-tpt", "tpt+moments", "soc+c-tpt"]
STATIC = ["c-tpt+static", "o-tpt+static", "a-tpt+static", "a-tpt-released+static", "soc+static", "d-tpt+static"]
TCA = ["tca", "tca-single", "attributes+tpt", "attributes+o-tpt", "tca+static"]
TWO_STEP = {"two-step": "on"}
VIEWS = 30


def config_of(name: str, family: str = "fine-grained", **settings: Any) -> TuningConfig:
    found = get_method(name).override(settings).tuning(family)
    assert found is not None
    return found


def few_attributes(count: int) -> dict[str, list[str]]:
    return {name: words[:count] for name, words in ATTRIBUTES.items()}


@cache
def images(kind: str) -> tuple[Tensor, Tensor]:
    """Pixels (2, V, 3, S, S) of images whose views resemble each other, and their features."""
    generator = torch.Generator().manual_seed(5)
    size = {"vit": 32, "resnet": 64}[kind]
    shared = torch.randn(2, 1, 3, size, size, generator=generator, dtype=torch.float64)
    pixels = shared + 0.5 * torch.randn(2, VIEWS, 3, size, size, generator=generator, dtype=torch.float64)
    backbone = tiny_backbone(kind, "float64")
    return pixels, torch.stack([backbone.encode_pixels(image) for image in pixels])


@cache
def sides(kind: str, attributes: int) -> tuple[LiteralTuner, PromptState]:
    """The oracle and the prompt state, without attributes for 0."""
    backbone, model = tiny_backbone(kind, "float64"), tiny_clip(kind, dtype=torch.float64)
    if not attributes:
        return LiteralTuner(model, SimpleTokenizer(), NAMES), prompt_state(backbone, NAMES)
    given = few_attributes(attributes)
    texts = [f"{word} {name}" for name in NAMES for word in given[name]]
    oracle = LiteralTuner(model, SimpleTokenizer(), texts, attributes=attributes)
    return oracle, prompt_state(backbone, NAMES, attributes=given)


def settings_of(config: TuningConfig) -> dict[str, float]:
    """Those of its objectives, defaults included."""
    defaults = {key: each.default for name, _ in config.weights for key, each in OBJECTIVES[name].settings.items()}
    return {**defaults, **dict(config.settings)}


def literal(oracle: LiteralTuner, pixels: Tensor, config: TuningConfig) -> tuple[Tensor, Tensor]:
    """Probabilities (B, C) and contexts (B, n, W)."""
    numbers = {"steps": config.steps, "two_step": config.two_step, "settings": settings_of(config)}
    found = [oracle.predict(image, weights=dict(config.weights), **numbers) for image in pixels]
    return torch.stack([each["probabilities"] for each in found]), torch.stack([each["context"] for each in found])


def check(kind: str, attributes: int, config: TuningConfig) -> Tensor:
    """The probabilities, which are the oracle's, also where images come in two batches."""
    (oracle, text), (pixels, features) = sides(kind, attributes), images(kind)
    expected, contexts = literal(oracle, pixels, config)
    found = tune(text, features, [config])[config]
    torch.testing.assert_close(found.logits.softmax(-1), expected, rtol=0, atol=1e-10)
    torch.testing.assert_close(found.contexts, contexts, rtol=0, atol=1e-8)
    batches = [tune(text, part, [config])[config].logits for part in (features[:1], features[1:])]
    assert torch.equal(torch.cat(batches), found.logits)
    start = text.initial(features).logits.softmax(-1)
    assert (expected - start).abs().max() > 1e-4, "tuning must change something, or the test shows nothing"
    return expected


@pytest.mark.parametrize(
    ("name", "family", "kind"),
    [
        *((name, "fine-grained", "vit") for name in PEERS),
        *((name, "shift", "vit") for name in ("a-tpt-released", "soc")),
        *((name, "fine-grained", "resnet") for name in ("a-tpt", "tpt+moments")),
    ],
)
def test_every_peer_equals_the_literal_way(name: str, family: str, kind: str) -> None:
    check(kind, 0, config_of(name, family))


@pytest.mark.parametrize(
    ("name", "settings"),
    [*((name, {"steps": 2}) for name in ("a-tpt", "soc", "d-tpt")), ("tpt+moments", {"steps": 3}), ("a-tpt", TWO_STEP)],
)
def test_several_steps_and_two_step_mode(name: str, settings: dict[str, Any]) -> None:
    check("vit", 0, config_of(name, **settings))


@pytest.mark.parametrize(
    ("name", "settings"), [("soc", {"huber-delta": 0.05}), ("soc", {"huber-delta": 0.9}), ("d-tpt", {"reverse-kl": 1})]
)
def test_settings_reach_the_loss(name: str, settings: dict[str, float]) -> None:
    _, text = sides("vit", 0)
    usual = config_of(name)
    found = tune(text, images("vit")[1], [usual])[usual].logits.softmax(-1)
    assert (check("vit", 0, config_of(name, **settings)) - found).abs().max() > 1e-9


def test_moments_are_not_seen_by_a_single_step() -> None:
    _, text = sides("vit", 0)
    _, features = images("vit")
    one, tpt = config_of("tpt+moments", steps=1), config_of("tpt")
    found = tune(text, features, [one, tpt])
    assert torch.equal(found[one].logits, found[tpt].logits)
    two, tpt = config_of("tpt+moments"), config_of("tpt", steps=2)
    found = tune(text, features, [two, tpt])
    assert (found[two].logits - found[tpt].logits).abs().max() > 1e-6


# ---- static prompts ----


@pytest.mark.parametrize(("name", "kind"), [*((name, "vit") for name in STATIC), ("soc+static", "resnet")])
def test_a_static_prompt_is_the_step_of_the_regulariser_alone(name: str, kind: str) -> None:
    config = config_of(name)
    assert not config.weights_on("views")
    check(kind, 0, config)


def test_a_static_prompt_is_encoded_once_for_all_images_and_needs_the_clean_view_alone() -> None:
    from otpt import Classifier

    method = get_method("soc+static")
    assert not method.needs_views("fine-grained")
    classifier = Classifier(tiny_backbone("vit", "float64"), method).set_classes(NAMES)
    features = images("vit")[1].flatten(0, 1)[:10, None]  # ten images of one view
    passes = []
    real = PromptEncoder.encode

    def counted(self: PromptEncoder, contexts: Tensor) -> Tensor:
        passes.append(len(contexts))
        return real(self, contexts)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PromptEncoder, "encode", counted)
        answers = classifier.classify_features(features, [method])
        assert passes == [1]
        classifier.classify_features(features, [method])
        assert passes == [1]
    oracle, _ = sides("vit", 0)
    _, (context, *_) = literal(oracle, images("vit")[0][:1], config_of("soc+static"))
    expected = oracle.logits(features[:, 0], context).softmax(-1)
    found = torch.stack([torch.from_numpy(answer["soc+static"].probabilities) for answer in answers])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


# ---- texts with attributes ----


@pytest.mark.parametrize(
    ("name", "attributes", "family", "settings"),
    [
        *((name, 2, "fine-grained", {}) for name in TCA),
        ("tca-single", 1, "shift", {}),
        ("tca", 3, "shift", {}),
        ("tca", 2, "fine-grained", {"steps": 2}),
    ],
)
def test_attributes_equal_the_literal_way(name: str, attributes: int, family: str, settings: dict[str, Any]) -> None:
    check("vit", attributes, config_of(name, family, **settings))


def test_the_mean_cosine_is_that_of_the_classes() -> None:
    _, text = sides("vit", 2)
    texts = text.text_features
    means = [(texts[2 * c] + texts[2 * c + 1]) / 2 for c in range(len(NAMES))]
    classes = torch.stack([mean / mean.norm() for mean in means])
    torch.testing.assert_close(text.class_features(texts), classes, rtol=0, atol=1e-14)


def test_the_same_texts_in_other_groups_have_another_fingerprint() -> None:
    """Gradients are kept by it, and these differ."""
    backbone = tiny_backbone("vit", "float64")
    two = prompt_state(backbone, ["x c", "y c"], attributes={"x c": ["a", "b"], "y c": ["a", "b"]})
    four = prompt_state(backbone, ["a x c", "b x c", "a y c", "b y c"])
    assert torch.equal(two.text_features, four.text_features)
    assert two.fingerprint != four.fingerprint


@pytest.mark.parametrize(
    ("attributes", "words"),
    [
        ({}, "needs attributes of the classes"),
        ({"cat": ["small"], "dog": ["large"], "cow": ["calm"]}, "'cow'"),
        ({"cat": ["small"]}, "'dog'"),
        ({"cat": ["small"], "dog": []}, "'dog'"),
        ({"cat": ["small"], "dog": ["large", "loyal"]}, "'dog'"),
        ({"cat": "small", "dog": "large"}, "'small'"),
        ({"cat": ["small"], "dog": [" "]}, "[' ']"),
    ],
)
def test_attributes_that_do_not_fit_are_refused(attributes: dict[str, list[str]], words: str) -> None:
    with pytest.raises(OtptError) as error:
        names_with_attributes(["cat", "dog"], attributes)
    assert words in str(error.value)
    assert str(error.value).count(". ") == 0, "one sentence"


def test_moments_of_an_image_with_an_init_of_its_own() -> None:
    """CoCoOp: the text features at the init are the image's own."""
    backbone = tiny_backbone("vit", "float64")
    _, text = sides("vit", 0)
    _, features = images("vit")
    noise = torch.randn(2, *text.init.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    starts = text.init + 0.1 * noise
    config = config_of("tpt+moments")
    found = tune(text, features[:2], [config], starts=starts)[config].logits
    for i, start in enumerate(starts):
        alone = prompt_state(backbone, NAMES, Prompt.learned(start))
        expected = tune(alone, features[i : i + 1], [config])[config].logits[0]
        torch.testing.assert_close(found[i], expected, rtol=0, atol=1e-8)
