"""The exact shared-prefix encoder of causal text towers.

A CLIP text tower is causal and read at the end token. So nothing after the end token is ever computed, and the tokens
that all classes share, [start, context …], are computed once: no class can flow back into them. What remains for a
class is its own tail: name, full stop, end token; about 4.5 tokens in place of 77. Same function, same gradients.

Rows of one pass are ``[prefix | tails of length t₁ | tails of length t₂ | …]``: all linear maps see one tall matrix,
attention goes length by length. In the last layer only the end tokens are carried on.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from otpt.backbones import CausalLayer, TextTower
from otpt.prompts.activations import activation
from otpt.prompts.encoder import PromptEncoder
from otpt.prompts.memory import MEMORY_BUDGET
from otpt.prompts.tokens import PromptTokens, real_lengths

_ROW_FLOATS = 14
"""Floats kept for the backward pass, per row and layer, in units of the width: the normalised inputs of attention and
MLP (2), queries, keys and values (3), their attention (1), the MLP's hidden row before and after the activation (8)."""


@dataclass(frozen=True)
class _Group:
    """Tails of equal length within a chunk; ``visible`` (length, prefix + length) is what each position may see."""

    classes: int
    length: int
    visible: Tensor


@dataclass(frozen=True)
class Chunk:
    """Everything about a chunk of classes that does not depend on the context.

    Attributes:
        fixed: (R, W) token embeddings + positions of prefix and tails; the context's rows hold positions only.
        context_rows, context_tokens: rows that the context is added to, and which rows of the context those are.
        end_rows: (C_chunk,) row of each class's end token.
    """

    fixed: Tensor
    context_rows: Tensor
    context_tokens: Tensor
    end_rows: Tensor
    groups: tuple[_Group, ...]


class PrefixEncoder(PromptEncoder):
    """Text features through a :class:`CausalTower`, prefix shared, no padding."""

    def __init__(self, tower: TextTower, tokens: PromptTokens, *, memory_budget: int = MEMORY_BUDGET) -> None:
        assert tower.causal is not None
        self._tower = tower.causal
        self._activation = activation(self._tower.activation)
        lengths = real_lengths(tokens.ids)
        self._prefix = _shared_prefix(tokens, lengths)
        self._device = self._tower.positional.device
        tails = lengths - self._prefix
        by_length = torch.argsort(tails, stable=True)
        width, layers = tower.width, len(self._tower.layers)
        row_bytes = _ROW_FLOATS * width * self._tower.positional.element_size() * layers
        rows_that_fit = max(memory_budget // row_bytes, 1)
        chunks = _cut(by_length, tails, rows_that_fit)
        rows = sum(self._prefix + int(tails[chunk].sum()) for chunk in chunks)
        super().__init__(chunks, graph_bytes=rows * row_bytes, memory_budget=memory_budget)
        self._plans = [self._plan(tower, tokens, tails, chunk) for chunk in chunks]

    def _plan(self, tower: TextTower, tokens: PromptTokens, tails: Tensor, chunk: Tensor) -> Chunk:
        prefix, first = self._prefix, int(chunk[0])
        rows = [(first, position) for position in range(prefix)]
        end_rows = []
        for c in chunk.tolist():
            rows += [(c, prefix + t) for t in range(int(tails[c]))]
            end_rows.append(len(rows) - 1)
        lengths, counts = tails[chunk].unique_consecutive(return_counts=True)
        groups = []
        for length, count in zip(lengths.tolist(), counts.tolist(), strict=True):
            visible = torch.ones(length, prefix + length, dtype=torch.bool, device=self._device).tril(prefix)
            groups.append(_Group(count, length, visible))
        classes, positions = torch.tensor(rows).T
        embeddings = tower.embed(tokens.ids[classes, positions])
        # (R, n): which row is which slot of its class
        is_slot = tokens.slots[classes] == positions[:, None]
        context_rows, slot = is_slot.nonzero(as_tuple=True)
        context_tokens = tokens.rows[classes[context_rows], slot]
        embeddings[context_rows.to(embeddings.device)] = 0
        fixed = embeddings + self._tower.positional[positions.to(self._device)]
        return Chunk(
            fixed,
            context_rows.to(self._device),
            context_tokens.to(self._device),
            torch.tensor(end_rows, device=self._device),
            tuple(groups),
        )

    def _encode_chunk(self, chunk: int, contexts: Tensor) -> Tensor:
        plan, tower = self._plans[chunk], self._tower
        batch = contexts.shape[0]
        spread = contexts.index_select(1, plan.context_tokens)
        x = plan.fixed.expand(batch, -1, -1).index_add(1, plan.context_rows, spread)
        for depth, layer in enumerate(tower.layers[:-1]):
            x = self._enter(depth, x, contexts, plan)
            mixed = self._attend(self._qkv(x, layer), plan)
            x = self._feed_forward(x + F.linear(mixed, layer.out_weight, layer.out_bias), layer)
        # The last layer: keys and values of all rows, the rest at the end tokens only.
        layer = tower.layers[-1]
        x = self._enter(len(tower.layers) - 1, x, contexts, plan)
        mixed = self._attend(self._qkv(x, layer), plan).index_select(1, plan.end_rows)
        x = x.index_select(1, plan.end_rows)
        x = self._feed_forward(x + F.linear(mixed, layer.out_weight, layer.out_bias), layer)
        x = tower.final_norm(x)
        if tower.projection is not None:
            x = x @ tower.projection
        return x if tower.projection_bias is None else x + tower.projection_bias

    def _enter(self, depth: int, x: Tensor, contexts: Tensor, plan: Chunk) -> Tensor:
        """The rows (B, R, W) as they enter layer ``depth``; prompts of deeper layers come in here."""
        return x

    def _qkv(self, x: Tensor, layer: CausalLayer) -> Tensor:
        """Queries, keys and values of all rows: (B, R, W) → (B, R, 3W)."""
        return F.linear(layer.norm1(x), layer.qkv_weight, layer.qkv_bias)

    def _feed_forward(self, x: Tensor, layer: CausalLayer) -> Tensor:
        hidden = F.linear(layer.norm2(x), layer.fc_weight, layer.fc_bias)
        return x + F.linear(self._activation(hidden), layer.proj_weight, layer.proj_bias)

    def _attend(self, qkv: Tensor, plan: Chunk) -> Tensor:
        """Causal attention of the prefix among itself and of each tail to prefix and itself: → (B, R, W)."""
        batch, _, width = qkv.shape
        heads, prefix = self._tower.heads, self._prefix
        # One split and not many slices: its backward pass is one concatenation.
        first, *tails = qkv.split([prefix, *(group.classes * group.length for group in plan.groups)], dim=1)
        q, shared_k, shared_v = first.view(batch, prefix, 3, heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(q, shared_k, shared_v, is_causal=True)
        parts = [mixed.transpose(1, 2).reshape(batch, prefix, width // 3)]
        for group, rows in zip(plan.groups, tails, strict=True):
            # (3, B, classes, heads, length, head width)
            own = rows.view(batch, group.classes, group.length, 3, heads, -1).permute(3, 0, 1, 4, 2, 5)
            q, k, v = own.unbind(0)
            keys, values = (
                torch.cat([shared[:, None].expand(-1, group.classes, -1, -1, -1), each], dim=3)
                for shared, each in ((shared_k, k), (shared_v, v))
            )
            mixed = F.scaled_dot_product_attention(q, keys, values, attn_mask=group.visible)
            parts.append(mixed.transpose(2, 3).reshape(batch, -1, width // 3))
        return torch.cat(parts, dim=1)


def _shared_prefix(tokens: PromptTokens, lengths: Tensor) -> int:
    """Number of leading positions that hold the same token, or the same tunable token, in every class."""
    ids, slots = tokens.ids, tokens.slots
    same = (ids == ids[:1]).all(dim=0)
    positions = torch.arange(ids.shape[1])
    # (C, L): which row of the context is there, or −1
    token_at = torch.full(ids.shape, -1).scatter(1, slots, tokens.rows)
    same &= (token_at == token_at[:1]).all(dim=0)
    shared = int(same.long().cumprod(0).sum())
    # Every class keeps at least its end token as a tail.
    return min(shared, int(lengths.min()) - 1, len(positions))


def _cut(by_length: Tensor, tails: Tensor, rows_that_fit: int) -> list[Tensor]:
    """Consecutive classes whose tails have at most that many rows in total (at least one class per chunk)."""
    chunks, start, rows = list[Tensor](), 0, 0
    for i, c in enumerate(by_length.tolist()):
        length = int(tails[c])
        if i > start and rows + length > rows_that_fit:
            chunks.append(by_length[start:i])
            start, rows = i, 0
        rows += length
    return [*chunks, by_length[start:]]
