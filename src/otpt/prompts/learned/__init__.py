"""Prompts that were learned before: of CoOp, CoCoOp and MaPLe, and the files they come in."""

from __future__ import annotations

from otpt.prompts.learned.checkpoints import read_learned, write_learned
from otpt.prompts.learned.contexts import (
    CocoopContext,
    CoopContext,
    LearnedPrompt,
    MaplePrompts,
    context_alone,
    fingerprint,
    visual_prompts,
)
from otpt.prompts.learned.deep_encoder import DeepPrefixEncoder

__all__ = [
    "CocoopContext",
    "CoopContext",
    "DeepPrefixEncoder",
    "LearnedPrompt",
    "MaplePrompts",
    "context_alone",
    "fingerprint",
    "read_learned",
    "visual_prompts",
    "write_learned",
]
