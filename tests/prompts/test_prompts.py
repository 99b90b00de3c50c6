"""Prompts and both encoders, against whole sentences through the model's own text tower."""

from __future__ import annotations

import pytest
import torch
from oracles.models.tiny import tiny_backbone, tiny_clip, tokenizer
from torch.nn import functional as F

from otpt.backbones import Backbone
from otpt.errors import OtptError
from otpt.prompts import (
    Linearisation,
    PlainEncoder,
    PrefixEncoder,
    Prompt,
    check_class_names,
    prompt_encoder,
    tokenize_prompts,
)

NAMES = ["cat", "red panda", "2012 BMW M3 coupe", "missile", "white-tailed eagle (adult)", "東京タワー"]
PROMPTS = [
    Prompt("a photo of a"),
    Prompt("a_photo_of_the_cool"),
    Prompt("an example of"),
    Prompt("a photo of [CLS] in the wild"),
    Prompt("[CLS] on the table"),
    Prompt("An H&E image patch of", tokens=5),
    Prompt("a photo of a", tokens=2),
    Prompt("a cropped photo of the {}."),
    Prompt("a {} in a video game."),
]


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    return tiny_backbone("vit", "float64")


@pytest.mark.parametrize("prompt", PROMPTS, ids=lambda prompt: prompt.words)
def test_start_features_are_those_of_the_sentences(prompt: Prompt, backbone: Backbone) -> None:
    model = tiny_clip("vit", dtype=torch.float64)
    sentences = [prompt.sentence(name) for name in NAMES]
    expected = F.normalize(model.encode_text(tokenizer()(sentences)), dim=-1)
    tokens = tokenize_prompts(backbone.text, NAMES, prompt)
    for encoder in (prompt_encoder(backbone.text, tokens), PlainEncoder(backbone.text, tokens)):
        found = encoder.encode(tokens.start[None])[0]
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_a_text_that_fills_all_positions_is_read_at_its_end_token(backbone: Backbone) -> None:
    tokens = tokenize_prompts(backbone.text, ["cat", "x " * 69 + "x"], Prompt())
    assert tokens.ids[1, -1] == 49407
    expected = F.normalize(backbone.text._model.encode_text(tokens.ids), dim=-1)
    found = PrefixEncoder(backbone.text, tokens).encode(tokens.start[None])[0]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("prompt", "budget"), [*((prompt, 2**31) for prompt in PROMPTS), (PROMPTS[3], 10), (PROMPTS[3], 300_000)]
)
def test_prefix_and_plain_encoder_have_the_same_values_and_gradients(
    prompt: Prompt, budget: int, backbone: Backbone
) -> None:
    tokens = tokenize_prompts(backbone.text, NAMES, prompt)
    generator = torch.Generator().manual_seed(0)
    contexts = tokens.start + 0.1 * torch.randn(2, *tokens.start.shape, generator=generator, dtype=torch.float64)
    cotangents = torch.randn(2, len(NAMES), backbone.embed_dim, generator=generator, dtype=torch.float64)
    prefix = Linearisation(PrefixEncoder(backbone.text, tokens, memory_budget=budget), contexts)
    plain = Linearisation(PlainEncoder(backbone.text, tokens, memory_budget=budget), contexts)
    torch.testing.assert_close(prefix.text_features, plain.text_features, rtol=0, atol=1e-12)
    for _ in range(2):  # the graph serves any number of products
        torch.testing.assert_close(prefix.vjp(cotangents), plain.vjp(cotangents), rtol=0, atol=1e-10)


def test_gradient_by_finite_differences(backbone: Backbone) -> None:
    tokens = tokenize_prompts(backbone.text, NAMES, Prompt("a photo of [CLS] outside"))
    encoder = prompt_encoder(backbone.text, tokens)
    generator = torch.Generator().manual_seed(1)
    cotangent = torch.randn(1, len(NAMES), backbone.embed_dim, generator=generator, dtype=torch.float64)
    gradient = Linearisation(encoder, tokens.start[None]).vjp(cotangent)
    direction = torch.randn(1, *tokens.start.shape, generator=generator, dtype=torch.float64)
    step = 1e-5 * direction
    ahead, behind = encoder.encode(tokens.start + step), encoder.encode(tokens.start - step)
    slope = ((ahead - behind) * cotangent).sum() / 2e-5
    assert (gradient * direction).sum().item() == pytest.approx(slope.item(), rel=1e-6)


def test_token_counts(backbone: Backbone) -> None:
    def slots(prompt: Prompt) -> torch.Tensor:
        return tokenize_prompts(backbone.text, ["cat", "red panda"], prompt).slots

    assert slots(Prompt("a photo of a")).tolist() == [[1, 2, 3, 4]] * 2
    assert slots(Prompt("an example of")).shape == (2, 3)
    assert slots(Prompt("a photo of the cool")).shape == (2, 5)
    assert slots(Prompt("a photo of [CLS] in the wild")).tolist() == [[1, 2, 3, 5, 6, 7], [1, 2, 3, 6, 7, 8]]
    tokens = tokenize_prompts(backbone.text, ["cat"], Prompt("a photo of a"))
    assert tokens.ids[0, :8].tolist() == [49406, 320, 1125, 539, 320, 2368, 269, 49407]


def test_templates_are_understood() -> None:
    assert (
        Prompt("a photo of a {}.") == Prompt("a photo of a [CLS]") == Prompt("a_photo_of_a") == Prompt("a photo of a")
    )
    assert Prompt("a {} in a video game.").sentence("red_panda") == "a red panda in a video game."


def test_random_and_learned_starts(backbone: Backbone) -> None:
    prompt = Prompt.random(6, width=64, seed=3)
    tokens = tokenize_prompts(backbone.text, NAMES, prompt)
    assert tokens.start.shape == (6, 64)
    assert torch.equal(tokens.start, tokenize_prompts(backbone.text, NAMES, Prompt.random(6, width=64, seed=3)).start)
    assert not torch.equal(tokens.start, Prompt.random(6, width=64, seed=4).vectors)
    assert tokens.start.std().item() == pytest.approx(0.02, rel=0.2)
    with pytest.raises(OtptError, match=r"width 32.* width 64"):
        tokenize_prompts(backbone.text, NAMES, Prompt.random(6, width=32))


@pytest.mark.parametrize(
    ("prompt", "value"),
    [
        (lambda: Prompt("a photo of [CLS] and [CLS]"), "2"),
        (lambda: Prompt("[CLS]"), "words"),
        (lambda: Prompt("a photo of a", tokens=0), "0"),
        (lambda: Prompt.learned(torch.full((2, 3), float("nan"))), "finite"),
        (lambda: Prompt("An H&E image patch of"), "H&E.* 7 tokens"),
        (lambda: Prompt("a photo of a", tokens=5), "4 tokens, not 5"),
        (lambda: Prompt("a photo of a", vectors=torch.zeros(2, 64)), "2 vectors"),
        (lambda: Prompt("a photo of a", tokens=2, vectors=torch.zeros(4, 64)), "4 vectors"),
        (lambda: Prompt("a photo of [CLS] in the wild", tokens=2), "6"),
    ],
)
def test_bad_prompts(prompt, value: str, backbone: Backbone) -> None:
    with pytest.raises(OtptError, match=value):
        tokenize_prompts(backbone.text, NAMES, prompt())


def test_a_name_that_is_too_long(backbone: Backbone) -> None:
    with pytest.raises(OtptError, match="77"):
        tokenize_prompts(backbone.text, ["cat", "very " * 80 + "long"], Prompt())


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([], "two"),
        (["cat"], "'cat'"),
        (["cat", "  "], "2 of 2"),
        (["cat", "_"], "'_'"),
        (["cat", "\u200b"], "2 of 2"),
        (["cat", "dog", "Cat "], r"'Cat ' .*1 and 3"),
        (["red_panda", "red panda"], "'red panda'"),
        ("cat", "list"),
        (["cat", 3], "3"),
    ],
)
def test_bad_class_names(names, message: str) -> None:
    with pytest.raises(OtptError, match=message):
        check_class_names(names)


def test_class_names_that_can_be() -> None:
    assert check_class_names(["猫", "собака", "C++", "11"]) == ("猫", "собака", "C++", "11")
    assert len(check_class_names(["missile", "missile"], allow_duplicates=True)) == 2
