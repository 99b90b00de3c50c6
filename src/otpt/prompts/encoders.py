"""Encoders of contexts to text features, and their vector–Jacobian products.

An encoder is created once per class list. ``encode`` maps contexts (B, n, W) to unit text features (B, C, D) without a
graph. :class:`Linearisation` computes the same with gradients: its ``vjp`` maps cotangents (B, C, D) of the text
features to gradients (B, n, W) of the contexts.

:class:`PrefixEncoder` is for causal CLIP text towers, :class:`PlainEncoder` for all others. Classes are processed in
chunks that fit a memory budget. A graph within the budget is retained for further products; otherwise it is recomputed
for each product, chunk by chunk.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain

import torch
from torch import Tensor
from torch.nn import functional as F

from otpt.backbones import TextTower
from otpt.backbones.text_tower import padded_length
from otpt.errors import OtptError
from otpt.prompts.prompt import Descriptions, Templates
from otpt.prompts.tokens import PromptTokens, sentence_tokens
from otpt.threads import check_cancelled, in_threads

MEMORY_BUDGET = 2 * 1024**3
"""Default memory limit for text graphs in bytes; a constant, because chunk sizes affect rounding."""

_ROW_FLOATS = 14
"""Number of floats stored for the backward pass of a causal tower, per row and layer, in units of the width: normalised
inputs of attention and MLP (2), queries, keys and values (3), attention output (1), hidden row of the MLP before and
after the activation (8)."""
_SENTENCE_FLOATS = 16 * 12
"""The same number for other towers, per position, assuming 12 transformer layers."""


class PromptEncoder(ABC):
    """Base class of encoders from contexts to the text features of all classes.

    Attributes:
        autocast: autocast dtype of the tower and its gradients, or None.
        nbytes: size of the stored token embeddings in bytes.
    """

    autocast: torch.dtype | None = None
    nbytes = 0

    def __init__(self, chunks: Sequence[Tensor], device: torch.device, *, graph_bytes: int, memory_budget: int) -> None:
        """Initialise with the class indices of each chunk and the size of the whole graph of one context."""
        self._chunks = tuple(chunk.to(device) for chunk in chunks)
        self._order = torch.argsort(torch.cat(list(chunks))).to(device)  # restores the order of the class list
        self._graph_bytes = graph_bytes
        self._memory_budget = memory_budget

    @abstractmethod
    def _encode_chunk(self, chunk: int, contexts: Tensor) -> Tensor:
        """Return unnormalised features of the classes in a chunk: contexts (B, n, W) → (B, C_chunk, D)."""

    def _features(self, chunk: int, contexts: Tensor) -> Tensor:
        check_cancelled()
        if self.autocast is None:
            return F.normalize(self._encode_chunk(chunk, contexts), dim=-1)
        with torch.autocast(contexts.device.type, dtype=self.autocast):
            features = self._encode_chunk(chunk, contexts)
        return F.normalize(features.to(contexts.dtype), dim=-1)

    @torch.no_grad()
    def encode(self, contexts: Tensor) -> Tensor:
        """Return unit text features (B, C, D) of contexts (B, n, W), without a graph."""
        parts = [self._features(i, contexts) for i in range(len(self._chunks))]
        return torch.cat(parts, dim=1).index_select(1, self._order)


class Linearisation:
    """Text features at given contexts, and their vector–Jacobian product.

    Args:
        encoder: encoder of the classes.
        contexts: (B, n, W).

    Attributes:
        text_features: detached unit features (B, C, D).
        graph_bytes: estimated size of the retained graph, or 0.
    """

    def __init__(self, encoder: PromptEncoder, contexts: Tensor) -> None:
        self._encoder = encoder
        self._contexts = contexts.detach().clone().requires_grad_()
        self._parts: list[Tensor] | None = None
        self.graph_bytes = encoder._graph_bytes * len(contexts)
        if self.graph_bytes <= encoder._memory_budget:
            with torch.enable_grad():
                self._parts = [encoder._features(i, self._contexts) for i in range(len(encoder._chunks))]
            self.text_features = torch.cat(self._parts, dim=1).detach().index_select(1, encoder._order)
        else:
            self.graph_bytes = 0
            self.text_features = encoder.encode(contexts)

    def release(self) -> None:
        """Release the graph; further products recompute it."""
        self._parts, self.graph_bytes = None, 0

    def vjp(self, cotangents: Tensor) -> Tensor:
        """Return Σ_cd G_cd ∂e_cd/∂θ for each context θ: cotangents G (B, C, D) → (B, n, W)."""
        total = torch.zeros_like(self._contexts)
        for i, classes in enumerate(self._encoder._chunks):
            cotangent = cotangents.index_select(1, classes)
            with torch.enable_grad():
                part = self._encoder._features(i, self._contexts) if self._parts is None else self._parts[i]
                # not with grad_outputs, whose shape check makes torch import sympy (half a second)
                value = (part * cotangent).sum()
            gradient = None
            if value.requires_grad:
                retain = self._parts is not None
                (gradient,) = torch.autograd.grad(value, self._contexts, retain_graph=retain, allow_unused=True)
            if gradient is None:
                raise OtptError(
                    "The text features have no gradient with respect to the context; expected a differentiable "
                    "encoder, without torch.no_grad or detach."
                )
            total += gradient
        return total


@dataclass(frozen=True)
class _Tails:
    """Group of tails of equal length in a chunk, with their attention mask ``visible`` (length, prefix + length)."""

    classes: int
    length: int
    visible: Tensor


@dataclass(frozen=True)
class _Rows:
    """Rows of a chunk of classes: the prefix, then tails in groups of equal length.

    Attributes:
        fixed: (R, W), token plus positional embeddings; only positional embeddings in the rows of the context.
        context_rows, context_tokens: row indices of the context's tokens, and the token index of each.
        end_rows: (C_chunk,), row index of each class's end token.
        tails: groups of tails, in order.
    """

    fixed: Tensor
    context_rows: Tensor
    context_tokens: Tensor
    end_rows: Tensor
    tails: tuple[_Tails, ...]


class PrefixEncoder(PromptEncoder):
    """Encoder for a :class:`CausalTower` with a shared prefix and without padding.

    The common tokens of all classes, [start, context …], do not depend on the class in a causal tower, so they are
    computed once. Each class adds a tail (name, full stop, end token) of about 4.5 tokens instead of 77. The rows
    ``[prefix | tails of length t₁ | tails of length t₂ | …]`` form one matrix for all linear maps; attention runs per
    tail length. The last layer computes only the end tokens.

    With ``depth`` J > 1 there are prompts in deeper layers (MaPLe): contexts (B, J·n, W) have n rows for the tokens
    1 … n of the sentence, then n rows for each of the layers 1 … J − 1, which replace these tokens before the layer,
    without positional embeddings.
    """

    def __init__(
        self, tower: TextTower, tokens: PromptTokens, *, depth: int = 1, memory_budget: int = MEMORY_BUDGET
    ) -> None:
        if tower.causal is None:
            raise OtptError("Prompts in several layers (MaPLe) require a causal CLIP text tower; use another backbone.")
        if depth > len(tower.causal.layers):
            raise OtptError(f"The prompts have {depth} layers; this text tower has only {len(tower.causal.layers)}.")
        self._tower, self._depth, self._tokens = tower.causal, depth, tokens.slots.shape[1]
        self._device = self._tower.positional.device
        lengths = tower.lengths(tokens.ids)
        # leading positions with the same token or context row in every class, without the end token
        row_at = torch.full(tokens.ids.shape, -1).scatter(1, tokens.slots, tokens.rows)  # (C, L), −1 without context
        same = ((tokens.ids == tokens.ids[:1]) & (row_at == row_at[:1])).all(dim=0)
        self._prefix = min(int(same.long().cumprod(0).sum()), int(lengths.min()) - 1)
        tails = lengths - self._prefix
        row_bytes = _ROW_FLOATS * tower.width * self._tower.positional.element_size() * len(self._tower.layers)
        chunks = _cut(torch.argsort(tails, stable=True), tails, max(memory_budget // row_bytes, 1))
        rows = len(chunks) * self._prefix + int(tails.sum())
        super().__init__(chunks, self._device, graph_bytes=rows * row_bytes, memory_budget=memory_budget)
        self._rows = [self._prepare(tower, tokens, tails, chunk) for chunk in chunks]
        self.nbytes = sum(rows_of_chunk.fixed.nbytes for rows_of_chunk in self._rows)

    def _prepare(self, tower: TextTower, tokens: PromptTokens, tails: Tensor, chunk: Tensor) -> _Rows:
        prefix = self._prefix
        places = [(int(chunk[0]), position) for position in range(prefix)]  # (class, position) of each row
        ends = []
        for c in chunk.tolist():
            places += [(c, prefix + t) for t in range(int(tails[c]))]
            ends.append(len(places) - 1)
        classes, positions = torch.tensor(places).T
        embeddings = tower.embed(tokens.ids[classes, positions])
        is_slot = tokens.slots[classes] == positions[:, None]  # (R, n)
        context_rows, slot = is_slot.nonzero(as_tuple=True)
        context_tokens = tokens.rows[classes[context_rows], slot]
        embeddings[context_rows.to(embeddings.device)] = 0
        groups = []
        lengths, counts = tails[chunk].unique_consecutive(return_counts=True)
        for length, count in zip(lengths.tolist(), counts.tolist(), strict=True):
            visible = torch.ones(length, prefix + length, dtype=torch.bool, device=self._device).tril(prefix)
            groups.append(_Tails(count, length, visible))
        return _Rows(
            embeddings + self._tower.positional[positions.to(self._device)],
            context_rows.to(self._device),
            context_tokens.to(self._device),
            torch.tensor(ends, device=self._device),
            tuple(groups),
        )

    def _encode_chunk(self, chunk: int, contexts: Tensor) -> Tensor:
        rows, tower = self._rows[chunk], self._tower
        spread = contexts.index_select(1, rows.context_tokens)
        x = rows.fixed.expand(len(contexts), -1, -1).index_add(1, rows.context_rows, spread)
        last = len(tower.layers) - 1
        for depth, layer in enumerate(tower.layers):
            if 1 <= depth < self._depth:
                deep_prompts = contexts.index_select(1, depth * self._tokens + rows.context_tokens)
                x = x.index_copy(1, rows.context_rows, deep_prompts)
            qkv = F.linear(layer.ln_1(x), layer.attn.in_proj_weight, layer.attn.in_proj_bias)
            mixed = self._attend(qkv, rows)
            if depth == last:
                mixed, x = mixed.index_select(1, rows.end_rows), x.index_select(1, rows.end_rows)
            x = tower.after_attention(layer, x, mixed)
        return tower.features(x)

    def _attend(self, qkv: Tensor, rows: _Rows) -> Tensor:
        """Apply causal attention to the prefix, and from each tail to prefix and tail: (B, R, 3W) → (B, R, W)."""
        batch, _, width = qkv.shape
        heads, prefix = self._tower.heads, self._prefix
        # split instead of slices, because its backward pass is a single concatenation
        first, *tails = qkv.split([prefix, *(group.classes * group.length for group in rows.tails)], dim=1)
        q, shared_k, shared_v = first.view(batch, prefix, 3, heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(q, shared_k, shared_v, is_causal=True)
        parts = [mixed.transpose(1, 2).reshape(batch, prefix, width // 3)]
        for group, tail in zip(rows.tails, tails, strict=True):
            # (3, B, classes, heads, length, head width)
            split = tail.view(batch, group.classes, group.length, 3, heads, -1).permute(3, 0, 1, 4, 2, 5)
            q, k, v = split.unbind(0)
            keys = torch.cat([shared_k[:, None].expand(-1, group.classes, -1, -1, -1), k], dim=3)
            values = torch.cat([shared_v[:, None].expand(-1, group.classes, -1, -1, -1), v], dim=3)
            mixed = F.scaled_dot_product_attention(q, keys, values, attn_mask=group.visible)
            parts.append(mixed.transpose(2, 3).reshape(batch, -1, width // 3))
        return torch.cat(parts, dim=1)


def _cut(by_length: Tensor, tails: Tensor, max_rows: int) -> list[Tensor]:
    """Split classes into chunks with at most ``max_rows`` tail rows, but at least one class each."""
    chunks, start, rows = list[Tensor](), 0, 0
    for i, c in enumerate(by_length.tolist()):
        length = int(tails[c])
        if i > start and rows + length > max_rows:
            chunks.append(by_length[start:i])
            start, rows = i, 0
        rows += length
    return [*chunks, by_length[start:]]


class PlainEncoder(PromptEncoder):
    """Encoder of sentences with the model's own text tower.

    For towers that are not causal or pool other tokens than the end token (SigLIP, CoCa, BERT). Towers that mask the
    padding get the tokens up to the longest sentence, the others (SigLIP) all tokens of the context.
    """

    def __init__(self, tower: TextTower, tokens: PromptTokens, *, memory_budget: int = MEMORY_BUDGET) -> None:
        self._tower = tower
        ids = tokens.ids[:, : padded_length(tower, tokens.ids)] if tower.ignores_padding else tokens.ids
        classes, length = ids.shape
        embeddings = tower.embed(ids)
        sentence_bytes = length * tower.width * embeddings.element_size() * _SENTENCE_FLOATS
        chunks = torch.arange(classes).split(max(memory_budget // sentence_bytes, 1))
        super().__init__(chunks, embeddings.device, graph_bytes=classes * sentence_bytes, memory_budget=memory_budget)
        rows = torch.arange(classes)[:, None].expand_as(tokens.slots)
        embeddings[rows, tokens.slots] = 0
        self._ids, self._embeddings = ids.to(embeddings.device), embeddings
        self.nbytes = embeddings.nbytes
        self._slots = tokens.slots.to(embeddings.device)
        self._rows = tokens.rows.to(embeddings.device)

    def _encode_chunk(self, chunk: int, contexts: Tensor) -> Tensor:
        classes = self._chunks[chunk]
        ids, slots, rows = self._ids[classes], self._slots[classes], self._rows[classes]
        index = slots[..., None].expand(-1, -1, contexts.shape[-1])
        features = [
            self._tower.encode_embeddings(ids, self._embeddings[classes].scatter_add(1, index, context[rows]))
            for context in contexts
        ]
        return torch.stack(features)


def prompt_encoder(tower: TextTower, tokens: PromptTokens, *, memory_budget: int = MEMORY_BUDGET) -> PromptEncoder:
    """Return a :class:`PrefixEncoder` for causal towers, a :class:`PlainEncoder` for all others."""
    kind: type[PlainEncoder | PrefixEncoder] = PlainEncoder if tower.causal is None else PrefixEncoder
    encoder = kind(tower, tokens, memory_budget=memory_budget)
    encoder.autocast = tower.autocast
    return encoder


def encode_sentences(tower: TextTower, sentences: Sequence[str], *, memory_budget: int = MEMORY_BUDGET) -> Tensor:
    """Return unit text features (N, D) of sentences without a context."""
    tokens = sentence_tokens(tower, sentences)
    return prompt_encoder(tower, tokens, memory_budget=memory_budget).encode(tokens.start[None])[0]


def template_features(
    tower: TextTower, names: Sequence[str], templates: Templates, *, memory_budget: int = MEMORY_BUDGET
) -> Tensor:
    """Return mean text features (C, D) over templates: (1/T) Σ_t unit(E(template t with the name of class c)).

    On a CPU, templates are encoded in parallel, each by one thread.
    """
    encode, texts = partial(encode_sentences, tower, memory_budget=memory_budget), templates.texts(names)
    features = in_threads(encode, texts) if tower.device.type == "cpu" else list(map(encode, texts))
    return torch.stack(features).mean(dim=0)


def description_features(tower: TextTower, descriptions: Descriptions, *, memory_budget: int = MEMORY_BUDGET) -> Tensor:
    """Return mean text features (C, D) over descriptions: (1/K_c) Σ_k unit(E(description k of class c))."""
    sentences = list(chain.from_iterable(descriptions.texts))
    features = encode_sentences(tower, sentences, memory_budget=memory_budget)
    counts = [len(of_class) for of_class in descriptions.texts]
    return torch.stack([of_class.mean(dim=0) for of_class in features.split(counts)])


class FixedEncoder(PromptEncoder):
    """Encoder that returns precomputed text features (C, D), normalised, for every context."""

    def __init__(self, features: Tensor) -> None:
        super().__init__([torch.arange(len(features))], features.device, graph_bytes=0, memory_budget=0)
        self._given = features

    def _encode_chunk(self, chunk: int, contexts: Tensor) -> Tensor:
        return self._given.expand(len(contexts), -1, -1)
