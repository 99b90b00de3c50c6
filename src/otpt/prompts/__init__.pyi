from .encoder import Linearisation, PromptEncoder
from .encoders import prompt_encoder
from .memory import MEMORY_BUDGET
from .plain_encoder import PlainEncoder
from .prefix_encoder import PrefixEncoder
from .prompt import Prompt
from .tokens import PromptTokens, check_class_names, tokenize_prompts

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
