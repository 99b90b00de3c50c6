from .encoders.choosing import prompt_encoder
from .encoders.encoder import Linearisation, PromptEncoder
from .encoders.memory import MEMORY_BUDGET
from .encoders.part_encoder import PartEncoder
from .encoders.plain_encoder import PlainEncoder
from .encoders.prefix_encoder import PrefixEncoder
from .encoders.template_encoder import TemplateEncoder
from .encoders.trie_encoder import TrieEncoder
from .fixed_texts import DescriptionEncoder, Descriptions, FixedEncoder, FixedTexts, TextFeatures
from .prompt import Prompt
from .templates import Templates, dataset_templates, published_templates
from .tokens import PromptTokens, check_class_names, tokenize_prompts

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
