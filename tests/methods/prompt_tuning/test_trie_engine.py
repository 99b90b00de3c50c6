"""Both engines on class names that begin alike, which share rows of the text tower, against the literal way."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from oracles.data.alike_names import ALIKE
from oracles.methods.literal import LiteralTuner
from oracles.models.tiny import tiny_backbone, tiny_clip, tokenizer
from torch import Tensor

from otpt.methods import get_method
from otpt.methods.prompt_tuning import TextSide, TuningConfig, tune
from otpt.prompts import TrieEncoder
from otpt.threads import one_thread

VIEWS = 20


@cache
def _case(precision: str) -> tuple[LiteralTuner, TextSide, Tensor, Tensor]:
    """(oracle, text side, pixels, image features) of two images."""
    backbone = tiny_backbone("vit", precision)
    oracle = LiteralTuner(tiny_clip("vit", dtype=backbone.dtype), tokenizer(), ALIKE)
    generator = torch.Generator().manual_seed(5)
    shared, own = (torch.randn(2, n, 3, 32, 32, generator=generator).to(backbone.dtype) for n in (1, VIEWS))
    pixels = shared + 0.5 * own
    features = torch.stack([backbone.encode_pixels(image) for image in pixels])
    text = TextSide(backbone, ALIKE, allow_duplicates=True)
    assert isinstance(text.encoder, TrieEncoder)
    return oracle, text, pixels, features


def _literal(oracle: LiteralTuner, pixels: Tensor, config: TuningConfig) -> Tensor:
    found = [oracle.predict(image, weights=dict(config.weights), steps=config.steps) for image in pixels]
    return torch.stack([each["logits"] for each in found]).softmax(-1)


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("name", ["tpt", "c-tpt", "o-tpt"])
def test_equals_the_literal_way_in_float64(name: str, steps: int) -> None:
    oracle, text, pixels, features = _case("float64")
    config = get_method(name).override({"steps": steps}).tuning("fine-grained")
    assert config is not None
    found = tune(text, features, [config])[config].logits.softmax(-1)
    torch.testing.assert_close(found, _literal(oracle, pixels, config), rtol=0, atol=1e-10)
    assert (found - text.zero_shot(features).softmax(-1)).abs().max() > 1e-4


def test_equals_the_literal_way_in_float32() -> None:
    oracle, text, pixels, features = _case("float32")
    config = get_method("o-tpt").tuning("fine-grained")
    assert config is not None
    found = tune(text, features, [config])[config].logits.softmax(-1)
    torch.testing.assert_close(found, _literal(oracle, pixels, config), rtol=0, atol=1e-5)


@pytest.mark.equality
def test_an_answer_has_the_same_bits_in_any_batch_and_order() -> None:
    _, text, _, features = _case("float32")
    configs = [get_method(name).override({"steps": n}).tuning("fine-grained") for name, n in (("o-tpt", 1), ("tpt", 2))]
    with one_thread():
        together = tune(text, features, [config for config in configs if config])
        turned = tune(text, features.flip(0), [config for config in configs if config])
        alone = tune(TextSide(tiny_backbone("vit"), ALIKE, allow_duplicates=True), features[:1], list(together))
    for config, found in together.items():
        assert torch.equal(found.logits, turned[config].logits.flip(0))
        assert torch.equal(found.logits[:1], alone[config].logits)
        assert torch.equal(found.contexts[:1], alone[config].contexts)
