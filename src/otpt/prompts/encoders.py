"""Which encoder serves which text tower."""

from __future__ import annotations

from otpt.backbones import TextTower
from otpt.prompts.encoder import PromptEncoder
from otpt.prompts.memory import MEMORY_BUDGET
from otpt.prompts.plain_encoder import PlainEncoder
from otpt.prompts.prefix_encoder import PrefixEncoder
from otpt.prompts.tokens import PromptTokens


def prompt_encoder(tower: TextTower, tokens: PromptTokens, *, memory_budget: int = MEMORY_BUDGET) -> PromptEncoder:
    """The shared-prefix encoder where the tower allows it, the plain one elsewhere."""
    kind: type[PlainEncoder | PrefixEncoder] = PlainEncoder if tower.causal is None else PrefixEncoder
    encoder = kind(tower, tokens, memory_budget=memory_budget)
    encoder.autocast = tower.autocast
    return encoder
