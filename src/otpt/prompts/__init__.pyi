from .encoder import Linearisation, PromptEncoder
from .encoders import prompt_encoder
from .fixed_texts import DescriptionEncoder, Descriptions, FixedEncoder, FixedTexts, TextFeatures
from .memory import MEMORY_BUDGET
from .part_encoder import PartEncoder
from .plain_encoder import PlainEncoder
from .prefix_encoder import PrefixEncoder
from .prompt import Prompt
from .template_encoder import TemplateEncoder
from .templates import Templates, dataset_templates, published_templates
from .tokens import PromptTokens, check_class_names, tokenize_prompts
from .trie_encoder import TrieEncoder

__all__ = [
    "MEMORY_BUDGET",
    "DescriptionEncoder",
    "Descriptions",
    "FixedEncoder",
    "FixedTexts",
    "Linearisation",
    "PartEncoder",
    "PlainEncoder",
    "PrefixEncoder",
    "Prompt",
    "PromptEncoder",
    "PromptTokens",
    "TemplateEncoder",
    "Templates",
    "TextFeatures",
    "TrieEncoder",
    "check_class_names",
    "dataset_templates",
    "prompt_encoder",
    "published_templates",
    "tokenize_prompts",
]
