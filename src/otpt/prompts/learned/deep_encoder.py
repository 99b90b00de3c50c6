"""The shared-prefix encoder with prompts of its own in deeper layers, as MaPLe has them.

A context is (J·n, W): n rows for the sentence's tokens 1 … n, then n rows for each of the layers 1 … J − 1. Before such
a layer the rows of these tokens are overwritten; no positional embedding is added again.
"""

from __future__ import annotations

from torch import Tensor

from otpt.backbones import TextTower
from otpt.errors import OtptError
from otpt.prompts.encoders.memory import MEMORY_BUDGET
from otpt.prompts.encoders.prefix_encoder import PrefixChunk, PrefixEncoder
from otpt.prompts.tokens import PromptTokens


class DeepPrefixEncoder(PrefixEncoder):
    """Contexts (B, J·n, W) → unit text features (B, C, D)."""

    def __init__(
        self, tower: TextTower, tokens: PromptTokens, *, depth: int, memory_budget: int = MEMORY_BUDGET
    ) -> None:
        if tower.causal is None:
            raise OtptError("MaPLe needs a causal CLIP text tower; this backbone has another one.")
        if depth > len(tower.causal.layers):
            raise OtptError(
                f"The prompts of MaPLe are for {depth} layers; this text tower has {len(tower.causal.layers)}."
            )
        super().__init__(tower, tokens, memory_budget=memory_budget)
        self._depth, self._tokens = depth, tokens.slots.shape[1]

    def _enter(self, depth: int, x: Tensor, contexts: Tensor, prepared: PrefixChunk) -> Tensor:
        if not 1 <= depth < self._depth:
            return x
        own = contexts.index_select(1, depth * self._tokens + prepared.rows.context_tokens)
        return x.index_copy(1, prepared.rows.context_rows, own)
