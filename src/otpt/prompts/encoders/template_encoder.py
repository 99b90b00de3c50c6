"""Text features averaged over templates; there is no context."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from otpt.backbones import TextTower
from otpt.prompts.encoders.choosing import prompt_encoder
from otpt.prompts.encoders.encoder import PromptEncoder
from otpt.prompts.encoders.memory import MEMORY_BUDGET
from otpt.prompts.templates import Templates
from otpt.prompts.tokens import sentence_tokens
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
        if self._tower.device.type == "cpu":
            found = in_threads(self._of_template, self._texts)
        else:
            found = [self._of_template(texts) for texts in self._texts]
        return torch.stack(found).mean(dim=0).expand(len(contexts), -1, -1)

    def _of_template(self, texts: Sequence[str]) -> Tensor:
        """Unit text features (C, D)."""
        tokens = sentence_tokens(self._tower, texts)
        return prompt_encoder(self._tower, tokens, memory_budget=self._memory_budget).encode(tokens.start[None])[0]
