"""Text features averaged over templates; there is no context."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from otpt.backbones import TextTower
from otpt.prompts.encoders.choosing import encode_sentences
from otpt.prompts.encoders.encoder import PromptEncoder
from otpt.prompts.encoders.memory import MEMORY_BUDGET
from otpt.prompts.templates import Templates
from otpt.threads import in_threads


class TemplateEncoder(PromptEncoder):
    """e_c = unit( (1/T) Σ_t unit(E(text of class c by template t)) ), for the T templates.

    Contexts are (B, 0, W), and nothing has a gradient. On a CPU several templates are computed at a time, each by one
    thread; each goes through the text tower in chunks that fit the memory budget.
    """

    def __init__(
        self, tower: TextTower, names: Sequence[str], templates: Templates, *, memory_budget: int = MEMORY_BUDGET
    ) -> None:
        super().__init__([torch.arange(len(names))], graph_bytes=0, memory_budget=memory_budget)
        self._tower, self._texts = tower, templates.texts(names)

    def _encode_chunk(self, chunk: int, contexts: Tensor) -> Tensor:
        encode = partial(encode_sentences, self._tower, memory_budget=self._memory_budget)
        on_cpu = self._tower.device.type == "cpu"
        found = in_threads(encode, self._texts) if on_cpu else [encode(texts) for texts in self._texts]
        return torch.stack(found).mean(dim=0).expand(len(contexts), -1, -1)
