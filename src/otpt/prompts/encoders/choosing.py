"""Which encoder serves which text tower and class list."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from otpt.backbones import TextTower
from otpt.prompts.encoders.beginnings import node_depths, saves_enough
from otpt.prompts.encoders.encoder import PromptEncoder
from otpt.prompts.encoders.memory import MEMORY_BUDGET
from otpt.prompts.encoders.plain_encoder import PlainEncoder
from otpt.prompts.encoders.prefix_encoder import PrefixEncoder, shared_prefix
from otpt.prompts.encoders.trie import class_texts
from otpt.prompts.encoders.trie_encoder import TrieEncoder
from otpt.prompts.tokens import PromptTokens, sentence_tokens, text_lengths


def prompt_encoder(tower: TextTower, tokens: PromptTokens, *, memory_budget: int = MEMORY_BUDGET) -> PromptEncoder:
    """The plain encoder for towers that are not causal; elsewhere the trie if it pays, or the shared prefix."""
    kind: type[PlainEncoder | TrieEncoder | PrefixEncoder] = PlainEncoder
    if tower.causal is not None:
        kind = TrieEncoder if trie_pays(tower, tokens) else PrefixEncoder
    encoder = kind(tower, tokens, memory_budget=memory_budget)
    encoder.autocast = tower.autocast
    return encoder


def encode_sentences(tower: TextTower, sentences: Sequence[str], *, memory_budget: int) -> Tensor:
    """Unit text features (N, D) of whole sentences, without a context and without graph."""
    tokens = sentence_tokens(tower, sentences)
    return prompt_encoder(tower, tokens, memory_budget=memory_budget).encode(tokens.start[None])[0]


def trie_pays(tower: TextTower, tokens: PromptTokens) -> bool:
    """Whether names begin alike often enough. Without a context texts are encoded once, where it does not matter."""
    if not len(tokens.start):
        return False
    lengths = text_lengths(tower, tokens.ids)
    prefix = shared_prefix(tokens, lengths)
    rows = prefix + int((lengths - prefix).sum())
    return saves_enough(rows, len(node_depths(class_texts(tokens, lengths))))
