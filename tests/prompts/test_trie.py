"""Every common beginning of class texts once: the same features and gradients as sentence by sentence."""

from __future__ import annotations

import pytest
import torch
from oracles.data.alike_names import ALIKE
from oracles.models.tiny import tiny_backbone

from otpt.backbones import Backbone
from otpt.data.classes import builtin_class_list
from otpt.prompts import (
    PlainEncoder,
    PrefixEncoder,
    Prompt,
    PromptTokens,
    TrieEncoder,
    prompt_encoder,
    tokenize_prompts,
)
from otpt.prompts.encoders.beginnings import Text, make_blocks, node_depths
from otpt.prompts.encoders.trie import class_texts, make_tries, sight
from otpt.prompts.tokens import text_lengths


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    return tiny_backbone("vit", "float64")


def _tokens(backbone: Backbone, names: list[str], prompt: Prompt | None = None) -> PromptTokens:
    return tokenize_prompts(backbone.text, names, prompt or Prompt())


def _texts(backbone: Backbone, tokens: PromptTokens) -> list[Text]:
    return class_texts(tokens, text_lengths(backbone.text, tokens.ids))


@pytest.mark.parametrize("budget", [10, 600_000, 2**31])
@pytest.mark.parametrize(
    "prompt",
    [Prompt("a photo of a"), Prompt("[CLS] on the table"), Prompt.random(2, width=64, seed=3)],
    ids=["before", "after", "vectors"],
)
def test_values_and_gradients_are_those_of_the_plain_encoder(prompt: Prompt, budget: int, backbone: Backbone) -> None:
    tokens = _tokens(backbone, ALIKE, prompt)
    generator = torch.Generator().manual_seed(0)
    contexts = tokens.start + 0.1 * torch.randn(2, *tokens.start.shape, generator=generator, dtype=torch.float64)
    cotangents = torch.randn(2, len(ALIKE), backbone.embed_dim, generator=generator, dtype=torch.float64)
    trie = TrieEncoder(backbone.text, tokens, memory_budget=budget).linearise(contexts)
    plain = PlainEncoder(backbone.text, tokens).linearise(contexts)
    torch.testing.assert_close(trie.text_features, plain.text_features, rtol=0, atol=1e-12)
    for _ in range(2):  # the graph serves any number of products
        torch.testing.assert_close(trie.vjp(cotangents), plain.vjp(cotangents), rtol=0, atol=1e-10)


def test_a_context_for_each_class_is_shared_by_nobody(backbone: Backbone) -> None:
    vectors = torch.randn(4, 2, 64, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    tokens = _tokens(backbone, ALIKE[:4], Prompt.learned(vectors))
    assert len(node_depths(_texts(backbone, tokens))) == 1 + sum(len(text) - 1 for text in _texts(backbone, tokens))
    encoders = (TrieEncoder(backbone.text, tokens), PlainEncoder(backbone.text, tokens))
    found, expected = (each.encode(tokens.start[None]) for each in encoders)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("most", [1, 3, 8, 100])
def test_a_node_sees_its_ancestors_and_itself(most: int, backbone: Backbone) -> None:
    texts = _texts(backbone, _tokens(backbone, ALIKE))
    (trie,) = make_tries(texts, 10**6)
    beginnings = {text[:length] for text in texts for length in range(1, len(text) + 1)}
    assert len(trie.places) == len(node_depths(texts)) == len(beginnings)
    blocks = make_blocks(node_depths(texts), most)
    block = blocks.rows
    ancestors, visible = sight(trie, blocks)
    outside = ancestors.shape[1]
    for node, (text, position) in enumerate(trie.places):
        k, i = divmod(node, block)
        seen = visible[k, i].nonzero()[:, 0].tolist()
        nodes = [int(ancestors[k, j]) if j < outside else k * block + j - outside for j in seen]
        own = [texts[trie.places[each][0]][: trie.places[each][1] + 1] for each in sorted(nodes)]
        assert own == [texts[text][:length] for length in range(1, position + 2)]
    assert bool(visible.any(dim=-1).all()), "what fills the last block must see something"


def test_lists_that_gain_little_keep_their_encoder(backbone: Backbone) -> None:
    def kind(names: list[str]) -> type:
        return type(prompt_encoder(backbone.text, _tokens(backbone, names)))

    assert kind(ALIKE) is TrieEncoder
    assert kind(ALIKE[:3]) is PrefixEncoder, "few rows"
    for name, expected in (("cars", TrieEncoder), ("aircraft", TrieEncoder), ("food101", PrefixEncoder)):
        assert kind(list(builtin_class_list(name).names)) is expected, name
