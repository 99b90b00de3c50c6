"""What every prompt encoder gives: text features of contexts, and their vector–Jacobian product.

An encoder is made once for a class list. ``encode`` maps contexts (B, n, W) to unit text features (B, C, D) without
graph. ``linearise`` does the same at contexts where gradients are wanted, and answers ``vjp``: cotangents (B, C, D) on
the text features → gradients (B, n, W) on the contexts.

Work is cut into chunks of classes by a memory budget. A linearisation whose graph fits the budget is kept and serves
any number of products; one that does not is recomputed, chunk by chunk, for each product.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F


class PromptEncoder(ABC):
    """Text features of all classes as a function of the context.

    Attributes:
        autocast: type in which the tower runs, gradients included; None for that of the contexts.
    """

    autocast: torch.dtype | None = None

    def __init__(self, chunks: Sequence[Tensor], *, graph_bytes: int, memory_budget: int) -> None:
        """``chunks``: class indices of each chunk; ``graph_bytes``: of one context's whole graph."""
        self._chunks = tuple(chunks)
        self._order = torch.argsort(torch.cat(list(chunks)))
        self._placed: dict[torch.device, tuple[Tensor, tuple[Tensor, ...]]] = {}
        self._graph_bytes = graph_bytes
        self._memory_budget = memory_budget

    @abstractmethod
    def _encode_chunk(self, chunk: int, contexts: Tensor) -> Tensor:
        """Features, not normalised, of one chunk's classes: contexts (B, n, W) → (B, C_chunk, D)."""

    def _features(self, chunk: int, contexts: Tensor) -> Tensor:
        if self.autocast is None:
            return F.normalize(self._encode_chunk(chunk, contexts), dim=-1)
        with torch.autocast(contexts.device.type, dtype=self.autocast):
            features = self._encode_chunk(chunk, contexts)
        return F.normalize(features.to(contexts.dtype), dim=-1)

    def _assemble(self, parts: Sequence[Tensor]) -> Tensor:
        """Chunks' features in the order of the class list."""
        joined = torch.cat(list(parts), dim=1)
        return joined.index_select(1, self._indices(joined.device)[0])

    def _indices(self, device: torch.device) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Order and chunks on the device of the features; copied there once."""
        if device not in self._placed:
            self._placed[device] = self._order.to(device), tuple(each.to(device) for each in self._chunks)
        return self._placed[device]

    @torch.no_grad()
    def encode(self, contexts: Tensor) -> Tensor:
        """(B, n, W) → unit text features (B, C, D), no graph."""
        return self._assemble([self._features(i, contexts) for i in range(len(self._chunks))])

    def linearise(self, contexts: Tensor) -> Linearisation:
        """Text features at ``contexts`` (B, n, W), ready for vector–Jacobian products."""
        keep = self._graph_bytes * contexts.shape[0] <= self._memory_budget
        return Linearisation(self, contexts, keep_graph=keep)


class Linearisation:
    """Text features at given contexts and the product of cotangents with their Jacobian.

    Attributes:
        text_features: (B, C, D), unit rows, detached.
    """

    def __init__(self, encoder: PromptEncoder, contexts: Tensor, *, keep_graph: bool) -> None:
        self._encoder = encoder
        self._contexts = contexts.detach().clone().requires_grad_()
        self._parts: list[Tensor] | None = None
        chunks = range(len(encoder._chunks))
        if keep_graph:
            with torch.enable_grad():
                self._parts = [encoder._features(i, self._contexts) for i in chunks]
            self.text_features = encoder._assemble([part.detach() for part in self._parts])
        else:
            self.text_features = encoder.encode(contexts)

    @property
    def graph_bytes(self) -> int:
        """Estimated size in bytes of the graph that is kept; 0 if none is."""
        return 0 if self._parts is None else self._encoder._graph_bytes * len(self._contexts)

    def release(self) -> None:
        """Drop the graph: products stay the same, but compute it again each time."""
        self._parts = None

    def vjp(self, cotangents: Tensor) -> Tensor:
        """Σ_cd G_cd ∂e_cd/∂θ for each context of the batch: (B, C, D) → (B, n, W)."""
        total = torch.zeros_like(self._contexts)
        for i, classes in enumerate(self._encoder._indices(cotangents.device)[1]):
            cotangent = cotangents.index_select(1, classes)
            with torch.enable_grad():
                part = self._encoder._features(i, self._contexts) if self._parts is None else self._parts[i]
                # not as grad_outputs, for whose shapes torch imports its symbolic algebra (half a second)
                value = (part * cotangent).sum()
            (gradient,) = torch.autograd.grad(value, self._contexts, retain_graph=self._parts is not None)
            total += gradient
        return total
