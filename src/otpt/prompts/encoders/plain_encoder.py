"""The plain encoder: whole padded sentences through the model's own text tower.

For towers that are not causal or are not read at the end token (SigLIP, CoCa, BERT): every position matters there,
so the model's own forward pass is used.
"""

from __future__ import annotations

import torch
from torch import Tensor

from otpt.backbones import TextTower
from otpt.prompts.encoders.encoder import PromptEncoder
from otpt.prompts.encoders.memory import MEMORY_BUDGET
from otpt.prompts.tokens import PromptTokens

_GRAPH_FLOATS = 16 * 12
"""Floats kept per position for the backward pass, in units of the width: a dozen layers of a transformer."""


class PlainEncoder(PromptEncoder):
    """Text features through :meth:`TextTower.encode_embeddings`."""

    def __init__(self, tower: TextTower, tokens: PromptTokens, *, memory_budget: int = MEMORY_BUDGET) -> None:
        self._tower = tower
        classes, length = tokens.ids.shape
        embeddings = tower.embed(tokens.ids)
        sentence_bytes = length * tower.width * embeddings.element_size() * _GRAPH_FLOATS
        chunks = torch.arange(classes).split(max(memory_budget // sentence_bytes, 1))
        super().__init__(chunks, graph_bytes=classes * sentence_bytes, memory_budget=memory_budget)
        rows = torch.arange(classes)[:, None].expand_as(tokens.slots)
        embeddings[rows, tokens.slots] = 0
        self._ids, self._embeddings = tokens.ids.to(embeddings.device), embeddings
        self._slots = tokens.slots.to(embeddings.device)
        self._rows = tokens.rows.to(embeddings.device)

    def _encode_chunk(self, chunk: int, contexts: Tensor) -> Tensor:
        classes = self._indices(self._ids.device)[1][chunk]
        ids, slots, rows = self._ids[classes], self._slots[classes], self._rows[classes]
        index = slots[..., None].expand(-1, -1, contexts.shape[-1])
        features = [
            self._tower.encode_embeddings(ids, self._embeddings[classes].scatter_add(1, index, context[rows]))
            for context in contexts
        ]
        return torch.stack(features)
