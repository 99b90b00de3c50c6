"""Prompts and their encoding to text features."""

from otpt.prompts.encoders import (
    MEMORY_BUDGET,
    FixedEncoder,
    Linearisation,
    PlainEncoder,
    PrefixEncoder,
    PromptEncoder,
    description_features,
    prompt_encoder,
    template_features,
)
from otpt.prompts.prompt import (
    DEFAULT_PROMPT,
    Descriptions,
    FixedTexts,
    Prompt,
    Templates,
    TextFeatures,
    dataset_templates,
    published_templates,
    template_datasets,
)
from otpt.prompts.tokens import PromptTokens, check_class_names, tokenize_prompts

__all__ = [
    "DEFAULT_PROMPT",
    "MEMORY_BUDGET",
    "Descriptions",
    "FixedEncoder",
    "FixedTexts",
    "Linearisation",
    "PlainEncoder",
    "PrefixEncoder",
    "Prompt",
    "PromptEncoder",
    "PromptTokens",
    "Templates",
    "TextFeatures",
    "check_class_names",
    "dataset_templates",
    "description_features",
    "prompt_encoder",
    "published_templates",
    "template_datasets",
    "template_features",
    "tokenize_prompts",
]
