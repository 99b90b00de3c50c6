"""Models in memory: of open_clip with tokenizer and transform, of transformers with their processor.

The caller's model stays as it is, down to its device, precision, mode and hooks: what is used is a copy.
"""

from __future__ import annotations

import inspect
import json
from copy import deepcopy
from typing import Any, NamedTuple

from torch import nn

from otpt.backbones.sources.architectures import build_model
from otpt.backbones.sources.clip_tokenizer import clip_tokenizer
from otpt.backbones.sources.huggingface import config_of, convert_huggingface
from otpt.backbones.sources.siglip import SiglipClip, TransformersTokenizer
from otpt.backbones.sources.transforms import processor_config, transform_config
from otpt.backbones.sources.weights import load_weights
from otpt.errors import OtptError


class Parts(NamedTuple):
    """What a backbone is made of."""

    model: Any  # with open_clip's interface
    tokenizer: Any
    preprocess: dict[str, Any]  # in the words of ``preprocess_cfg``
    architecture: str


def object_parts(model: Any, tokenizer: Any, preprocess: Any) -> Parts:
    """What a backbone is made of, from a model in memory; ``OtptError`` for one that is not supported."""
    tokenizer, preprocess = _unpacked(tokenizer, preprocess)
    kind = type(model).__name__
    if kind in ("CLIPModel", "SiglipModel") and hasattr(model, "get_text_features"):
        missing = "tokenizer" if tokenizer is None else "image processor" if preprocess is None else ""
        if missing or not hasattr(preprocess, "to_dict"):
            raise OtptError(
                f"The {kind} came without {missing or 'an image processor'}; give "
                "preprocess=AutoProcessor.from_pretrained(…), or tokenizer= and preprocess= with its two parts."
            )
        return _clip(model, tokenizer, preprocess) if kind == "CLIPModel" else _siglip(model, tokenizer, preprocess)
    if not isinstance(model, nn.Module) or not _is_open_clip(model):
        raise OtptError(
            f"The model is a {type(model).__module__}.{kind}; expected a name or file, a model of open_clip, or a "
            f"CLIPModel or SiglipModel of transformers.{_hint(model)}"
        )
    if tokenizer is None or preprocess is None:
        what = (
            "tokenizer=open_clip.get_tokenizer(…)" if tokenizer is None else "preprocess=, its transform for evaluation"
        )
        raise OtptError(f"A model of open_clip came without its {what.split('=')[0]}; give {what}.")
    config = transform_config(preprocess, _side(model.visual.image_size))  # type: ignore[union-attr]
    return Parts(deepcopy(model), tokenizer, config, kind)


def _unpacked(tokenizer: Any, preprocess: Any) -> tuple[Any, Any]:
    """A processor of transformers holds both; it may be given as either."""
    for given in (tokenizer, preprocess):
        if hasattr(given, "image_processor") and hasattr(given, "tokenizer"):
            tokenizer = given.tokenizer if tokenizer in (None, given) else tokenizer
            preprocess = given.image_processor if preprocess in (None, given) else preprocess
    return tokenizer, preprocess


def _is_open_clip(model: Any) -> bool:
    parts = all(hasattr(model, name) for name in ("encode_image", "encode_text", "visual", "logit_scale"))
    if not parts or not hasattr(model.visual, "image_size"):
        return False
    return "normalize" in inspect.signature(model.encode_text).parameters


def _hint(model: Any) -> str:
    if hasattr(model, "_orig_mod") or hasattr(model, "module"):
        return f" Give what it wraps, model.{'_orig_mod' if hasattr(model, '_orig_mod') else 'module'}."
    if hasattr(getattr(model, "visual", None), "input_resolution"):
        return " For a model of OpenAI's package give the path of its file."
    return ""


def _side(size: Any) -> int:
    return int(size[0] if isinstance(size, (tuple, list)) else size)


def _clip(model: Any, tokenizer: Any, processor: Any) -> Parts:
    name = model.config.name_or_path or "CLIPModel"
    config = config_of(model.config.to_dict(), name)
    built = build_model(config, config["quick_gelu"])
    load_weights(built, convert_huggingface(model.state_dict()), source=name, architecture="of its own config")
    length = config["text_cfg"]["context_length"]
    own = clip_tokenizer(length)
    chosen = own if _merges(tokenizer) == set(own.bpe_ranks) else TransformersTokenizer(tokenizer)
    return Parts(built, chosen, processor_config(processor, config["vision_cfg"]["image_size"]), name)


def _siglip(model: Any, tokenizer: Any, processor: Any) -> Parts:
    copy = SiglipClip(deepcopy(model))
    config = processor_config(processor, copy.visual.image_size)
    return Parts(copy, TransformersTokenizer(tokenizer), config, model.config.name_or_path or "SiglipModel")


def _merges(tokenizer: Any) -> set[tuple[str, ...]] | None:
    """Byte pairs of a tokenizer of transformers; None if they are not to be had."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return set(getattr(tokenizer, "bpe_ranks", ())) or None
    pairs = json.loads(backend.to_str())["model"].get("merges") or []
    return {tuple(pair.split()) if isinstance(pair, str) else tuple(pair) for pair in pairs}
