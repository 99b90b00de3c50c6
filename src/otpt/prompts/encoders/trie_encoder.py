"""The exact encoder of causal text towers for class names that begin alike ("2012 BMW M3 coupe", "2012 BMW X6 SUV").

What texts share at their beginning is computed once, not only the prefix that all of them share: the tower is causal,
so a row depends on the tokens before it alone. Rows are the nodes of a trie, :mod:`otpt.prompts.encoders.trie`; each
sees its ancestors and itself. Same function, same gradients.

Attention goes in blocks of consecutive nodes: a block sees itself and the ancestors of its first node, with a mask for
what is not an ancestor. So keys and values of few rows are gathered, and all blocks are one batched product.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from otpt.backbones import TextTower
from otpt.prompts.encoders.beginnings import make_blocks
from otpt.prompts.encoders.causal_encoder import CausalEncoder, Chunk, row_bytes
from otpt.prompts.encoders.memory import MEMORY_BUDGET
from otpt.prompts.encoders.trie import Trie, class_texts, make_tries, sight
from otpt.prompts.tokens import PromptTokens, text_lengths


@dataclass(frozen=True)
class TrieChunk(Chunk):
    """Nodes of a trie.

    Attributes:
        ancestors: (K·A,) rows that each of K blocks sees outside of itself.
        visible: (K, 1, T, A + T) which of these, and which of its own T rows, a row may see.
    """

    ancestors: Tensor
    visible: Tensor


class TrieEncoder(CausalEncoder[TrieChunk]):
    """Text features through a :class:`CausalTower`, every common beginning shared, no padding."""

    def __init__(self, tower: TextTower, tokens: PromptTokens, *, memory_budget: int = MEMORY_BUDGET) -> None:
        texts = class_texts(tokens, text_lengths(tower, tokens.ids))
        tries = make_tries(texts, max(memory_budget // row_bytes(tower), 1))
        chunks = [torch.tensor(trie.texts) for trie in tries]
        rows = sum(len(trie.places) for trie in tries)
        super().__init__(tower, chunks, rows=rows, memory_budget=memory_budget)
        self._prepared = [self._prepare(tower, tokens, trie) for trie in tries]

    def _prepare(self, tower: TextTower, tokens: PromptTokens, trie: Trie) -> TrieChunk:
        blocks = make_blocks([depth for _, depth in trie.places])
        filled = trie.places + [trie.places[-1]] * (blocks.count * blocks.rows - len(trie.places))
        ancestors, visible = sight(trie, blocks)
        return TrieChunk(
            self._rows(tower, tokens, filled, trie.ends),
            ancestors.flatten().to(self._device),
            visible[:, None].to(self._device),
        )

    def _attend(self, qkv: Tensor, prepared: TrieChunk) -> Tensor:
        """Attention of each node to its ancestors and itself: → (B, R, W)."""
        batch, rows, width = qkv.shape
        blocks, _, block, seen = prepared.visible.shape
        heads, outside = self._tower.heads, seen - block
        each = width // 3 // heads
        # (3, B·K, heads, T, head width)
        own = qkv.view(batch * blocks, block, 3, heads, each).permute(2, 0, 3, 1, 4)
        above = qkv[..., width // 3 :].index_select(1, prepared.ancestors)
        above = above.view(batch * blocks, outside, 2, heads, each).permute(2, 0, 3, 1, 4)
        keys, values = torch.cat([above, own[1:]], dim=3).unbind(0)
        visible = prepared.visible.repeat(batch, 1, 1, 1)
        mixed = F.scaled_dot_product_attention(own[0], keys, values, attn_mask=visible)
        return mixed.transpose(1, 2).reshape(batch, rows, width // 3)
