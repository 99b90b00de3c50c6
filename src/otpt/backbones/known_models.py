"""What is known about models without loading them: context length, tokenizer, how texts are computed, precision."""

from __future__ import annotations

from typing import NamedTuple

from otpt.backbones import pocket, pocket_photo
from otpt.backbones.open_clip_models import ModelConfig, named_config, open_clip_tags
from otpt.errors import OtptError, unknown

SHARED_PREFIX, WITHOUT_PADDING, ALL_TOKENS = "shared prefix", "without padding", "all tokens"
"""How the texts of a prompt are computed: with a prefix that all classes share (causal towers), up to the longest text
(towers that mask padding), or over the whole context (towers that read their padding)."""


class ModelEntry(NamedTuple):
    """Model or form of a model spec, a row of ``otpt models``.

    Attributes:
        name: value of ``--backbone``, or its form.
        description: one-line description.
        context_length: number of tokens of a padded text; 0 if it depends on the model.
        tokenizer: kind of the tokenizer.
        texts: how texts are computed: "shared prefix", "without padding" or "all tokens".
        images: kind of the image tower.
        precision: default precision.
    """

    name: str
    description: str
    context_length: int = 0
    tokenizer: str = ""
    texts: str = ""
    images: str = ""
    precision: str = "float32"


_SIGLIP_WORDS = "SentencePiece, lower case without punctuation"
TRANSFORMERS = (
    ModelEntry("clip", "CLIP, PLIP, Long-CLIP (248 tokens)", 77, "byte pairs", SHARED_PREFIX, "ViT"),
    ModelEntry("siglip", "SigLIP, SigLIP 2 of fixed size, MedSigLIP", 64, _SIGLIP_WORDS, ALL_TOKENS, "ViT"),
    ModelEntry("siglip2", "SigLIP 2 NaFlex, with square images", 64, _SIGLIP_WORDS, ALL_TOKENS, "ViT of patches"),
    ModelEntry("metaclip_2", "MetaCLIP 2", 77, "SentencePiece (XLM-V)", WITHOUT_PADDING, "ViT"),
    ModelEntry("chinese_clip", "Chinese-CLIP", 512, "WordPiece", WITHOUT_PADDING, "ViT"),
    ModelEntry("altclip", "AltCLIP", 512, "SentencePiece (XLM-R)", WITHOUT_PADDING, "ViT"),
    ModelEntry("align", "ALIGN", 512, "WordPiece", WITHOUT_PADDING, "EfficientNet"),
    ModelEntry("aimv2", "AIMv2-LiT", 77, "byte pairs", WITHOUT_PADDING, "ViT"),
    ModelEntry("blip", "BLIP", 512, "WordPiece", WITHOUT_PADDING, "ViT"),
    ModelEntry("clipseg", "CLIPSeg, as a classifier", 77, "byte pairs", WITHOUT_PADDING, "ViT"),
    ModelEntry("groupvit", "GroupViT", 77, "byte pairs", WITHOUT_PADDING, "ViT"),
    ModelEntry("owlvit", "OWL-ViT, as a classifier", 16, "byte pairs", WITHOUT_PADDING, "ViT"),
    ModelEntry("tipsv2", "TIPSv2", 64, "SentencePiece", WITHOUT_PADDING, "ViT"),
    ModelEntry("vision-text-dual-encoder", "LiT and others", 512, "of the text tower", WITHOUT_PADDING, "any"),
)
"""Types of models of transformers that are known to load, by ``config.model_type``."""


def open_clip_entry(name: str) -> ModelEntry:
    """Return what is known about an architecture of open_clip."""
    config = named_config(name)
    tags = open_clip_tags().get(name, ())
    return _entry(name, "tags: " + ", ".join(tags) if tags else f"no weights; random:{name}", config)


def _entry(name: str, description: str, config: ModelConfig) -> ModelEntry:
    text, vision = config["text_cfg"], config["vision_cfg"]
    tokenizer = str(text.get("hf_tokenizer_name") or "byte pairs")
    if text.get("hf_tokenizer_name") and (text.get("tokenizer_kwargs") or {}).get("clean") == "canonicalize":
        tokenizer += ", lower case without punctuation"
    images = str(vision.get("timm_model_name") or ("ResNet" if isinstance(vision.get("layers"), list) else "ViT"))
    return ModelEntry(name, description, text.get("context_length", 77), tokenizer, texts_of(config), images)


def texts_of(config: ModelConfig) -> str:
    """Return how the texts of an architecture of open_clip are computed.

    >>> texts_of(named_config("ViT-B-16")), texts_of(named_config("ViT-B-16-SigLIP2"))
    ('shared prefix', 'all tokens')
    """
    text = config["text_cfg"]
    if "hf_model_name" in text:
        return WITHOUT_PADDING
    reads_padding = ("no_causal_mask", "embed_cls", "ls_init_value")
    return ALL_TOKENS if any(text.get(key) for key in reads_padding) else SHARED_PREFIX


def find_model(name: str) -> ModelEntry:
    """Return what is known about a model by the name of its architecture, with or without a tag, or by its type.

    >>> find_model("ViT-B-16/openai").context_length
    77
    """
    wanted = name.removeprefix("hf:").removeprefix("random:")
    if wanted == "pocket":
        return _entry(wanted, "a small CLIP for emoji that ships with the package", pocket.CONFIG["model_cfg"])
    if wanted == "pocket-photo":
        description = "a small model for photographs that ships with the package"
        return _entry(wanted, description, pocket_photo.CONFIG["model_cfg"])
    kinds = {entry.name: entry for entry in TRANSFORMERS}
    key = wanted.lower().removesuffix("model").replace("-", "").replace("_", "")
    for kind, entry in kinds.items():
        if kind.replace("-", "").replace("_", "") == key:
            return entry
    architecture = wanted.rpartition("/")[0] or wanted
    names = open_clip_tags()
    try:
        return open_clip_entry(architecture)
    except OtptError:
        raise unknown("model", name, [*names, *kinds, "pocket", "pocket-photo"]) from None
