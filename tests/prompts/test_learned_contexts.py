"""Contexts of CoOp and CoCoOp: class-specific ones, and ones that each image has for itself."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from oracles.models.tiny import tiny_backbone
from oracles.models.towers import siglip
from torch import Tensor
from torch.nn import functional as F

from otpt.backbones import Backbone
from otpt.errors import OtptError
from otpt.methods import get_method
from otpt.methods.prompt_tuning import prompt_state, tune
from otpt.prompts import PlainEncoder, PrefixEncoder, Prompt, tokenize_prompts
from otpt.prompts.learned import CocoopContext

NAMES = ["cat", "red panda", "2012 BMW M3 coupe"]
EXACT = {"rtol": 0, "atol": 1e-10}


@cache
def backbone() -> Backbone:
    return tiny_backbone("vit", "float64")


def normal(*shape: int, seed: int = 0) -> Tensor:
    return 0.5 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def views(seed: int, count: int = 20) -> Tensor:
    return F.normalize(normal(count, 32, seed=seed), dim=-1)


@pytest.mark.parametrize("tokens", [4, 16])
def test_each_class_has_its_own_context(tokens: int) -> None:
    """Class by class the features are those of the shared context with that class's vectors."""
    vectors = normal(len(NAMES), tokens, 64)
    found = prompt_state(backbone(), NAMES, Prompt.learned(vectors)).text_features
    for c, own in enumerate(vectors):
        expected = prompt_state(backbone(), NAMES, Prompt.learned(own)).text_features[c]
        torch.testing.assert_close(found[c], expected, **EXACT)


def test_gradients_of_class_specific_contexts() -> None:
    """The prefix encoder against whole padded sentences through the model's own tower."""
    tokens = tokenize_prompts(backbone().text, NAMES, Prompt.learned(normal(len(NAMES), 4, 64)))
    cotangents = normal(2, len(NAMES), 32, seed=1)
    contexts = torch.stack([tokens.start, tokens.start + normal(*tokens.start.shape, seed=2)])
    lines = [kind(backbone().text, tokens).linearise(contexts) for kind in (PrefixEncoder, PlainEncoder)]
    torch.testing.assert_close(lines[0].text_features, lines[1].text_features, **EXACT)
    fast, plain = (line.vjp(cotangents) for line in lines)
    assert fast.shape == (2, len(NAMES) * 4, 64)
    torch.testing.assert_close(fast, plain, **EXACT)


def test_class_specific_contexts_of_a_tower_that_is_not_causal() -> None:
    tower = siglip("float64")
    vectors = normal(len(NAMES), 2, 64)
    found = prompt_state(tower, NAMES, Prompt.learned(vectors)).text_features
    expected = torch.stack(
        [prompt_state(tower, NAMES, Prompt.learned(own)).text_features[c] for c, own in enumerate(vectors)]
    )
    torch.testing.assert_close(found, expected, **EXACT)


@pytest.mark.parametrize("name", ["coop+tpt", "coop+c-tpt", "coop+o-tpt"])
def test_class_specific_contexts_are_tuned(name: str) -> None:
    """One closed-form step against torch's AdamW on one graph from vectors to loss."""
    vectors = normal(len(NAMES), 4, 64)
    text = prompt_state(backbone(), NAMES, Prompt.learned(vectors))
    config = get_method(name).tuning("fine-grained")
    found = tune(text, views(3)[None], [config])[config].logits[0]

    tokens = tokenize_prompts(backbone().text, NAMES, Prompt.learned(vectors))
    embeddings = backbone().text.embed(tokens.ids)
    leaf = torch.nn.Parameter(vectors.clone())
    optimiser = torch.optim.AdamW([leaf], lr=5e-3)

    def features() -> Tensor:
        rows = torch.cat([embeddings[:, :1], leaf, embeddings[:, 5:]], dim=1)
        return F.normalize(backbone().text.encode_embeddings(tokens.ids, rows), dim=-1)

    texts = features()
    logits = backbone().logit_scale * views(3) @ texts.T
    chosen = torch.distributions.Categorical(logits=logits).entropy().argsort()[:2]
    mean = logits[chosen].softmax(-1).mean(0)
    weights = dict(config.weights)
    loss = -(mean * mean.log()).sum() - weights.get("dispersion", 0) * (texts - texts.mean(0)).norm(dim=1).mean()
    gram = texts @ texts.T
    loss = loss + weights.get("orthogonality", 0) * (gram.norm(dim=1) - 1).abs().mean()
    loss.backward()
    optimiser.step()
    with torch.no_grad():
        expected = backbone().logit_scale * views(3)[0] @ features().T
    torch.testing.assert_close(found.softmax(-1), expected.softmax(-1), **EXACT)


def net(width: int = 64, dim: int = 32, hidden: int = 2) -> CocoopContext:
    shapes = ((4, width), (hidden, dim), (hidden,), (width, hidden), (width,))
    return CocoopContext(*(normal(*shape, seed=i) for i, shape in enumerate(shapes)))


@pytest.mark.parametrize("steps", [1, 2])
def test_each_image_starts_from_its_own_context(steps: int) -> None:
    """Image by image the result is that of a shared context with that image's vectors."""
    context = net()
    images = torch.stack([views(1), views(2)])
    starts = context.starts(images[:, 0])
    assert (starts[0] - starts[1]).abs().max() > 1e-2
    text = prompt_state(backbone(), NAMES, context.prompt())
    configs = [get_method(n).override({"steps": steps}).tuning("fine-grained") for n in ("cocoop+tpt", "cocoop+o-tpt")]
    found = tune(text, images, configs, starts=starts)
    for i, start in enumerate(starts):
        alone = tune(prompt_state(backbone(), NAMES, Prompt.learned(start)), images[i : i + 1], configs)
        for config in configs:
            for field in ("logits", "contexts", "mean_cosine"):
                values = getattr(found[config], field)[i], getattr(alone[config], field)[0]
                torch.testing.assert_close(*values, **EXACT)


def test_bad_contexts() -> None:
    def sentence(prompt: Prompt) -> str:
        with pytest.raises(OtptError) as error:
            prompt_state(backbone(), NAMES, prompt)
        return str(error.value)

    assert "512 wide" in sentence(Prompt.learned(normal(4, 512)))
    assert "512 wide" in sentence(Prompt.learned(normal(3, 4, 512)))
    assert "5 classes" in sentence(Prompt.learned(normal(5, 4, 64)))
    other = Prompt.learned(normal(3, 4, 64), class_names=("cat", "dog", "pug"))
    assert "its class 2 is 'dog', here it is 'red panda'" in sentence(other)
    prompt_state(backbone(), NAMES, Prompt.learned(normal(3, 4, 64), class_names=tuple(NAMES)))
    with pytest.raises(OtptError, match=r"48.* 32"):
        net(dim=48).check_fits(32)
    with pytest.raises(OtptError, match="4,"):
        Prompt.learned(normal(4))
