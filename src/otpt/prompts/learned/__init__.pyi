from .checkpoints import read_learned, write_learned
from .contexts import (
    CocoopContext,
    CoopContext,
    LearnedPrompt,
    MaplePrompts,
    context_alone,
    fingerprint,
    visual_prompts,
)
from .deep_encoder import DeepPrefixEncoder
from .sources import ContextSource, read_context, read_contexts

__all__ = [
    "CocoopContext",
    "ContextSource",
    "CoopContext",
    "DeepPrefixEncoder",
    "LearnedPrompt",
    "MaplePrompts",
    "context_alone",
    "fingerprint",
    "read_context",
    "read_contexts",
    "read_learned",
    "visual_prompts",
    "write_learned",
]
