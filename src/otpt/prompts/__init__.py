"""From a context and class names to text features."""

from __future__ import annotations

from otpt.backbones import TextTower
from otpt.prompts.encoder import MEMORY_BUDGET, Linearisation, PromptEncoder
from otpt.prompts.plain_encoder import PlainEncoder
from otpt.prompts.prefix_encoder import PrefixEncoder
from otpt.prompts.prompt import Prompt
from otpt.prompts.tokens import PromptTokens, check_class_names, tokenize_prompts

__all__ = [
    "MEMORY_BUDGET",
    "Linearisation",
    "PlainEncoder",
    "PrefixEncoder",
    "Prompt",
    "PromptEncoder",
    "PromptTokens",
    "check_class_names",
    "prompt_encoder",
    "tokenize_prompts",
]


def prompt_encoder(tower: TextTower, tokens: PromptTokens, *, memory_budget: int = MEMORY_BUDGET) -> PromptEncoder:
    """The shared-prefix encoder where the tower allows it, the plain one elsewhere."""
    kind = PlainEncoder if tower.causal is None else PrefixEncoder
    return kind(tower, tokens, memory_budget=memory_budget)
