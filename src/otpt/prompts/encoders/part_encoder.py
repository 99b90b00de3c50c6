"""Text features of which only some depend on the context."""

from __future__ import annotations

import torch
from torch import Tensor

from otpt.prompts.encoders.encoder import PromptEncoder


class PartEncoder(PromptEncoder):
    """Some texts by an encoder of theirs; the others keep the features that they were given.

    Args:
        part: the encoder of those texts.
        texts: (A,) which of all texts they are.
        fixed: (T, D) unit features of all texts.
    """

    def __init__(self, part: PromptEncoder, texts: Tensor, fixed: Tensor) -> None:
        super().__init__([torch.arange(len(fixed))], graph_bytes=part._graph_bytes, memory_budget=part._memory_budget)
        self._part, self._texts, self._fixed = part, texts, fixed

    def _encode_chunk(self, chunk: int, contexts: Tensor) -> Tensor:
        parts = [self._part._features(i, contexts) for i in range(len(self._part._chunks))]
        fixed = self._fixed.expand(len(contexts), -1, -1)
        return fixed.index_copy(1, self._texts, self._part._assemble(parts))

    def _features(self, chunk: int, contexts: Tensor) -> Tensor:
        return self._encode_chunk(chunk, contexts)  # of norm one already
