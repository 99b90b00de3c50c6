"""The formulas against PyTorch's FLOP counter, on the real modules: shapes are real, weights are not looked at."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from otpt.backbones.sources.architectures import build_model
from otpt.backbones.sources.clip_tokenizer import clip_tokenizer
from otpt.backbones.tokens import Tokenizer
from otpt.backbones.towers.causal_tower import _read
from otpt.backbones.tuned.tuned_resnet import _AttentionPool
from otpt.backbones.tuned.tuned_vit import tune_vit
from otpt.costs import image_tower, read_architecture, text_forward, text_product, texts_of
from otpt.costs.architecture import Architecture, ResNet, VisionTransformer
from otpt.costs.counting import count_image_tower
from otpt.costs.language import graph_bytes, text_parameters
from otpt.data.classes import builtin_class_list
from otpt.prompts import PrefixEncoder, Prompt, PromptEncoder, prompt_encoder, tokenize_prompts
from otpt.prompts.encoders.trie_encoder import TrieEncoder

pytestmark = pytest.mark.slow

NAMES = ("cat", "dog", "red panda", "2012 Tesla Model S", "sea", "golden retriever", "Airbus A320", "tree")
NEARLY = {"rel": 0.05}
AMPLE = 1e12


@cache
def on_meta(model: Architecture) -> Any:
    """The model with shapes alone."""
    with torch.device("meta"):
        return build_model(model.config, quick_gelu=False)


def tuned(visual: Any, model: Architecture, views: int) -> Any:
    """The tower as it runs, but for what changes no operation (folded norms, packed weights)."""
    if isinstance(model.vision, VisionTransformer) and model.vision.class_token:
        return tune_vit(visual, views, pack=False)
    if isinstance(model.vision, ResNet):
        visual.attnpool = _AttentionPool(visual.attnpool, views, pack=False)
    return visual


@pytest.mark.parametrize("name", ["ViT-B-16", "ViT-L-14", "RN50", "ViT-B-16-SigLIP", "pocket"])
def test_operations_of_the_image_tower(name: str) -> None:
    model, views = read_architecture(name), 2
    visual = tuned(on_meta(model).visual, model, views)
    side = model.vision.image_size
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        visual(torch.empty(views, 3, side, side, device="meta"))
    assert image_tower(model, views, chunk=views).flops == pytest.approx(counter.get_total_flops(), **NEARLY)


def test_bytes_and_weights_are_those_of_the_modules() -> None:
    """Bytes as every operator of the plain tower moves them: fused ones and the last block make it less."""
    model = read_architecture("RN50")
    counted, formula = count_image_tower(model, 8), image_tower(model, 8)
    assert formula.weights == pytest.approx(counted.weights, rel=0.01)
    # batch-norms and activations are operators of their own there, joined to the convolutions here
    assert 0.25 * counted.bytes < formula.bytes < counted.bytes


def text_tower(model: Architecture) -> Any:
    """The model's text tower with shapes alone, as the shared-prefix encoder takes it."""
    clip, width = on_meta(model), model.text.width
    tokenizer = Tokenizer(clip_tokenizer(), model.text.length)
    return SimpleNamespace(
        causal=_read(clip, tokenizer.end_token),
        autocast=None,
        width=width,
        start_length=tokenizer.start_length,
        tokenize=tokenizer,
        embed=lambda ids: torch.empty(*ids.shape, width, device="meta"),
        parameters=[each for name, each in clip.named_parameters() if not name.startswith("visual.")],
    )


CARS = builtin_class_list("cars").names


@pytest.mark.parametrize(
    ("name", "names", "kind"),
    [(name, NAMES, PrefixEncoder) for name in ("ViT-B-16", "ViT-L-14", "RN50")] + [("ViT-B-16", CARS, TrieEncoder)],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_operations_of_the_text_side(name: str, names: Sequence[str], kind: type[PromptEncoder]) -> None:
    model = read_architecture(name)
    tower, texts = text_tower(model), texts_of(tuple(names))
    tokens = tokenize_prompts(tower, names, Prompt())
    encoder, context = prompt_encoder(tower, tokens), tokens.start[None]
    assert isinstance(encoder, kind)
    with FlopCounterMode(display=False) as forward:
        encoder.encode(context)
    line = encoder.linearise(context)
    with FlopCounterMode(display=False) as product:
        line.vjp(torch.ones_like(line.text_features))
    assert text_forward(model, texts).flops == pytest.approx(forward.get_total_flops(), **NEARLY)
    assert text_product(model, texts, budget=AMPLE).flops == pytest.approx(product.get_total_flops(), **NEARLY)
    # the formula also counts what fills the last block of a trie
    assert graph_bytes(model.text, texts) == pytest.approx(line.graph_bytes, rel=0 if kind is PrefixEncoder else 0.03)
    count = sum(each.numel() for each in tower.parameters)
    assert text_parameters(model.text, model.features) == pytest.approx(count, rel=0.01)


def test_operations_of_whole_sentences() -> None:
    """SigLIP's text tower is not causal: every class takes all 64 positions."""
    model = read_architecture("ViT-B-16-SigLIP")
    text = on_meta(model).text
    embedded: list[torch.Tensor] = []
    text.token_embedding.register_forward_hook(lambda *parts: embedded.append(parts[2].requires_grad_()))
    ids = torch.zeros(len(NAMES), 64, dtype=torch.long, device="meta")
    with FlopCounterMode(display=False) as forward:
        features = text(ids)
    with FlopCounterMode(display=False) as product:
        torch.autograd.grad(features.sum(), embedded)
    texts = texts_of(NAMES)
    assert text_forward(model, texts).flops == pytest.approx(forward.get_total_flops(), **NEARLY)
    assert text_product(model, texts, budget=AMPLE).flops == pytest.approx(product.get_total_flops(), **NEARLY)


def test_a_graph_beyond_the_budget_is_computed_again() -> None:
    model, texts = read_architecture("ViT-B-16"), texts_of(NAMES)
    kept = text_product(model, texts, budget=AMPLE).flops
    again = text_product(model, texts, budget=1e3).flops
    assert again == pytest.approx(kept + text_forward(model, texts).flops)
