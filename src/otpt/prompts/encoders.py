"""Which encoder serves which text tower and class list."""

from __future__ import annotations

from otpt.backbones import TextTower
from otpt.prompts.encoder import PromptEncoder
from otpt.prompts.memory import MEMORY_BUDGET
from otpt.prompts.plain_encoder import PlainEncoder
from otpt.prompts.prefix_encoder import PrefixEncoder, shared_prefix
from otpt.prompts.tokens import PromptTokens, real_lengths
from otpt.prompts.trie import class_texts, node_count
from otpt.prompts.trie_encoder import TrieEncoder

LEAST_SAVED_ROWS = 64
LEAST_SAVED_SHARE = 0.15
"""A trie is used where it saves so many rows of the shared-prefix encoder, and such a share of them; other class lists
keep that encoder and its bits. Of Cars it saves 45 %, of Aircraft 23 %, of SUN397 7 % and of ImageNet 4 %."""


def prompt_encoder(tower: TextTower, tokens: PromptTokens, *, memory_budget: int = MEMORY_BUDGET) -> PromptEncoder:
    """The plain encoder for towers that are not causal; elsewhere the trie if it pays, or the shared prefix."""
    kind: type[PlainEncoder | TrieEncoder | PrefixEncoder] = PlainEncoder
    if tower.causal is not None:
        kind = TrieEncoder if trie_pays(tokens) else PrefixEncoder
    encoder = kind(tower, tokens, memory_budget=memory_budget)
    encoder.autocast = tower.autocast
    return encoder


def trie_pays(tokens: PromptTokens) -> bool:
    """Whether names begin alike often enough. Without a context texts are encoded once, where it does not matter."""
    if not len(tokens.start):
        return False
    lengths = real_lengths(tokens.ids)
    prefix = shared_prefix(tokens, lengths)
    rows = prefix + int((lengths - prefix).sum())
    saved = rows - node_count(class_texts(tokens))
    return saved >= max(LEAST_SAVED_ROWS, LEAST_SAVED_SHARE * rows)
