"""From a context and class names to text features."""

from otpt.prompts.encoders import (
    MEMORY_BUDGET,
    DescriptionEncoder,
    FixedEncoder,
    Linearisation,
    PlainEncoder,
    PrefixEncoder,
    PromptEncoder,
    TemplateEncoder,
    prompt_encoder,
)
from otpt.prompts.prompt import (
    Descriptions,
    FixedTexts,
    Prompt,
    Templates,
    TextFeatures,
    dataset_templates,
    published_templates,
)
from otpt.prompts.tokens import PromptTokens, check_class_names, tokenize_prompts

__all__ = [
    "MEMORY_BUDGET",
    "DescriptionEncoder",
    "Descriptions",
    "FixedEncoder",
    "FixedTexts",
    "Linearisation",
    "PlainEncoder",
    "PrefixEncoder",
    "Prompt",
    "PromptEncoder",
    "PromptTokens",
    "TemplateEncoder",
    "Templates",
    "TextFeatures",
    "check_class_names",
    "dataset_templates",
    "prompt_encoder",
    "published_templates",
    "tokenize_prompts",
]
