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
