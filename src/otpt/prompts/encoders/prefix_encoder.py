"""The exact shared-prefix encoder of causal text towers.

The tokens that all classes share, [start, context …], are computed once: the tower is causal, so no class can flow back
into them. What remains for a class is its own tail: name, full stop, end token; about 4.5 tokens in place of 77. Same
function, same gradients.

Rows of one pass are ``[prefix | tails of length t₁ | tails of length t₂ | …]``; attention goes length by length.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from otpt.backbones import TextTower
from otpt.prompts.encoders.causal_encoder import CausalEncoder, Chunk, row_bytes
from otpt.prompts.encoders.memory import MEMORY_BUDGET
from otpt.prompts.tokens import PromptTokens, text_lengths


@dataclass(frozen=True)
class _Group:
    """Tails of equal length within a chunk; ``visible`` (length, prefix + length) is what each position may see."""

    classes: int
    length: int
    visible: Tensor


@dataclass(frozen=True)
class PrefixChunk(Chunk):
    """Rows of the prefix, then those of the tails, in groups of equal length."""

    groups: tuple[_Group, ...]


class PrefixEncoder(CausalEncoder[PrefixChunk]):
    """Text features through a :class:`CausalTower`, prefix shared, no padding."""

    def __init__(self, tower: TextTower, tokens: PromptTokens, *, memory_budget: int = MEMORY_BUDGET) -> None:
        lengths = text_lengths(tower, tokens.ids)
        self._prefix = shared_prefix(tokens, lengths)
        tails = lengths - self._prefix
        by_length = torch.argsort(tails, stable=True)
        chunks = _cut(by_length, tails, max(memory_budget // row_bytes(tower), 1))
        rows = sum(self._prefix + int(tails[chunk].sum()) for chunk in chunks)
        super().__init__(tower, chunks, rows=rows, memory_budget=memory_budget)
        self._prepared = [self._prepare(tower, tokens, tails, chunk) for chunk in chunks]

    def _prepare(self, tower: TextTower, tokens: PromptTokens, tails: Tensor, chunk: Tensor) -> PrefixChunk:
        prefix, first = self._prefix, int(chunk[0])
        places = [(first, position) for position in range(prefix)]
        ends = []
        for c in chunk.tolist():
            places += [(c, prefix + t) for t in range(int(tails[c]))]
            ends.append(len(places) - 1)
        lengths, counts = tails[chunk].unique_consecutive(return_counts=True)
        groups = []
        for length, count in zip(lengths.tolist(), counts.tolist(), strict=True):
            visible = torch.ones(length, prefix + length, dtype=torch.bool, device=self._device).tril(prefix)
            groups.append(_Group(count, length, visible))
        return PrefixChunk(self._rows(tower, tokens, places, ends), tuple(groups))

    def _attend(self, qkv: Tensor, prepared: PrefixChunk) -> Tensor:
        """Causal attention of the prefix among itself and of each tail to prefix and itself: → (B, R, W)."""
        batch, _, width = qkv.shape
        heads, prefix = self._tower.heads, self._prefix
        # One split and not many slices: its backward pass is one concatenation.
        first, *tails = qkv.split([prefix, *(group.classes * group.length for group in prepared.groups)], dim=1)
        q, shared_k, shared_v = first.view(batch, prefix, 3, heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(q, shared_k, shared_v, is_causal=True)
        parts = [mixed.transpose(1, 2).reshape(batch, prefix, width // 3)]
        for group, rows in zip(prepared.groups, tails, strict=True):
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


def shared_prefix(tokens: PromptTokens, lengths: Tensor) -> int:
    """Number of leading positions that hold the same token, or the same tunable token, in every class."""
    ids, slots = tokens.ids, tokens.slots
    # (C, L): which row of the context is there, or −1
    row_at = torch.full(ids.shape, -1).scatter(1, slots, tokens.rows)
    same = ((ids == ids[:1]) & (row_at == row_at[:1])).all(dim=0)
    shared = int(same.long().cumprod(0).sum())
    # Every class keeps at least its end token as a tail.
    return min(shared, int(lengths.min()) - 1)


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
