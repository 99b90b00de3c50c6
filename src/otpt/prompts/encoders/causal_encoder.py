"""What the encoders of causal text towers share: rows that stand for tokens go through the layers together.

A CLIP text tower is causal and read at the end token. So a token's row depends on the tokens before it alone: rows
after an end token are never computed, and where texts begin alike their rows are the same. Each encoder decides which
rows there are and what each of them may see; all linear maps act on one tall matrix. In the last layer only the end
tokens are carried on.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from otpt.backbones import CausalLayer, TextTower
from otpt.backbones.towers.activations import ACTIVATIONS
from otpt.prompts.encoders.encoder import PromptEncoder
from otpt.prompts.tokens import PromptTokens

_ROW_FLOATS = 14
"""Floats kept for the backward pass, per row and layer, in units of the width: the normalised inputs of attention and
MLP (2), queries, keys and values (3), their attention (1), the MLP's hidden row before and after the activation (8)."""


@dataclass(frozen=True)
class Rows:
    """The rows of a chunk of classes, as far as they do not depend on the context.

    Attributes:
        fixed: (R, W) token embeddings + positions; the context's rows hold positions only.
        context_rows, context_tokens: rows that the context is added to, and which rows of the context those are.
        end_rows: (C_chunk,) row of each class's end token.
    """

    fixed: Tensor
    context_rows: Tensor
    context_tokens: Tensor
    end_rows: Tensor


@dataclass(frozen=True)
class Chunk:
    """A chunk of classes: its rows, and by subclasses what each of them may see."""

    rows: Rows


AnyChunk = TypeVar("AnyChunk", bound=Chunk)


def row_bytes(tower: TextTower) -> int:
    """Bytes that a row of the graph takes."""
    assert tower.causal is not None
    size: int = _ROW_FLOATS * tower.width * tower.causal.positional.element_size() * len(tower.causal.layers)
    return size


class CausalEncoder(PromptEncoder, Generic[AnyChunk]):
    """Text features through a :class:`CausalTower`."""

    def __init__(self, tower: TextTower, chunks: Sequence[Tensor], *, rows: int, memory_budget: int) -> None:
        """``rows``: of all chunks."""
        assert tower.causal is not None
        self._tower = tower.causal
        self._activation = ACTIVATIONS[self._tower.activation]
        self._device = self._tower.positional.device
        self._prepared: list[AnyChunk] = []
        super().__init__(chunks, graph_bytes=rows * row_bytes(tower), memory_budget=memory_budget)

    @abstractmethod
    def _attend(self, qkv: Tensor, prepared: AnyChunk) -> Tensor:
        """Attention of each row to those that it may see: (B, R, 3W) → (B, R, W)."""

    def _rows(
        self, tower: TextTower, tokens: PromptTokens, places: Sequence[tuple[int, int]], ends: Sequence[int]
    ) -> Rows:
        """Rows that hold the tokens at ``places``, pairs of class and position; ``ends`` are those of end tokens."""
        classes, positions = torch.tensor(places).T
        embeddings = tower.embed(tokens.ids[classes, positions])
        # (R, n): which row is which slot of its class
        is_slot = tokens.slots[classes] == positions[:, None]
        context_rows, slot = is_slot.nonzero(as_tuple=True)
        context_tokens = tokens.rows[classes[context_rows], slot]
        embeddings[context_rows.to(embeddings.device)] = 0
        fixed = embeddings + self._tower.positional[positions.to(self._device)]
        return Rows(
            fixed,
            context_rows.to(self._device),
            context_tokens.to(self._device),
            torch.tensor(ends, device=self._device),
        )

    def _encode_chunk(self, chunk: int, contexts: Tensor) -> Tensor:
        prepared, tower = self._prepared[chunk], self._tower
        rows, batch = prepared.rows, contexts.shape[0]
        spread = contexts.index_select(1, rows.context_tokens)
        x = rows.fixed.expand(batch, -1, -1).index_add(1, rows.context_rows, spread)
        for depth, layer in enumerate(tower.layers[:-1]):
            x = self._enter(depth, x, contexts, prepared)
            mixed = self._attend(self._qkv(x, layer), prepared)
            x = self._feed_forward(x + F.linear(mixed, layer.out_weight, layer.out_bias), layer)
        # The last layer: keys and values of all rows, the rest at the end tokens only.
        layer = tower.layers[-1]
        x = self._enter(len(tower.layers) - 1, x, contexts, prepared)
        mixed = self._attend(self._qkv(x, layer), prepared).index_select(1, rows.end_rows)
        x = x.index_select(1, rows.end_rows)
        x = self._feed_forward(x + F.linear(mixed, layer.out_weight, layer.out_bias), layer)
        x = tower.final_norm(x)
        if tower.projection is not None:
            x = x @ tower.projection
        return x if tower.projection_bias is None else x + tower.projection_bias

    def _enter(self, depth: int, x: Tensor, contexts: Tensor, prepared: AnyChunk) -> Tensor:
        """The rows (B, R, W) as they enter layer ``depth``; prompts of deeper layers come in here."""
        return x

    def _qkv(self, x: Tensor, layer: CausalLayer) -> Tensor:
        """Queries, keys and values of all rows: (B, R, W) → (B, R, 3W)."""
        return F.linear(layer.norm1(x), layer.qkv_weight, layer.qkv_bias)

    def _feed_forward(self, x: Tensor, layer: CausalLayer) -> Tensor:
        hidden = F.linear(layer.norm2(x), layer.fc_weight, layer.fc_bias)
        return x + F.linear(self._activation(hidden), layer.proj_weight, layer.proj_bias)
