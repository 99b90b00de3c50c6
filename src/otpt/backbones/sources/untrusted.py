"""A model configuration by somebody else, checked before anything is built of it.

A few hundred bytes can ask for terabytes or for billions of layers, name folders elsewhere as towers, or tell the
tokenizer to run code. So sizes must be whole numbers of a plausible magnitude, for which the weights suffice; towers
and tokenizers must be names, not places; and the tokenizer takes only options that say how texts are cleaned.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from otpt.errors import OtptError

_LARGEST = {
    "embed_dim": 2**16, "layers": 1000, "width": 2**16, "heads": 2**12, "head_width": 2**16, "image_size": 2**14,
    "patch_size": 2**12, "context_length": 2**13, "vocab_size": 2**24, "mlp_ratio": 64,
}  # fmt: skip
"""Far beyond every published model."""
_LISTS = ("layers", "image_size", "patch_size")
"""May be a list too: the stages of a ResNet, height and width."""
_SPARE = 2**24
"""Parameters that may be missing from the weights; ``load_weights`` says which."""
_NAMES = {
    "timm_model_name": r"\w[\w.-]*",
    "hf_model_name": r"\w[\w.-]*(/\w[\w.-]*)?",
    "hf_tokenizer_name": r"\w[\w.-]*(/\w[\w.-]*)?",
}
"""timm's architectures, and repositories of the Hugging Face hub."""
_TOKENIZER_OPTIONS = ("clean", "strip_sep_token", "language", "reduction_mask", "additional_special_tokens")
"""Not ``bpe_path``, which opens a file, nor what is passed on to transformers, such as ``trust_remote_code``."""


def check_config(config: Mapping[str, Any], state: Mapping[str, Tensor], source: str) -> None:
    """``OtptError`` unless open_clip's ``model_cfg`` is harmless and its sizes fit the weights ``state``."""
    vision, text = config["vision_cfg"], config["text_cfg"]
    for part in (vision, text):
        _check_names(part, source)
    for part in (config, vision, text):
        _check_sizes(part, source)
    needed, held = _image_tower(vision) + _text_tower(text), sum(tensor.numel() for tensor in state.values())
    if needed > 2 * held + _SPARE:
        raise OtptError(
            f"The configuration of {source} needs more than {needed:,} parameters, but the weights have {held:,}; "
            "take both from the same model."
        )


def _check_names(part: Mapping[str, Any], source: str) -> None:
    for name, form in _NAMES.items():
        given = part.get(name)
        if given is not None and not (isinstance(given, str) and re.fullmatch(form, given)):
            raise OtptError(
                f"The configuration of {source} has {name} = {given!r}; expected a name, not a path or an address."
            )
    options = part.get("tokenizer_kwargs") or {}
    strange = [each for each in options if each not in _TOKENIZER_OPTIONS] if isinstance(options, dict) else [options]
    if strange:
        raise OtptError(
            f"The configuration of {source} has {strange[0]!r} in tokenizer_kwargs; expected an object with some of "
            f"{', '.join(_TOKENIZER_OPTIONS)}."
        )


def _check_sizes(part: Mapping[str, Any], source: str) -> None:
    for name in (name for name in _LARGEST if part.get(name) is not None):
        if not all(_fits(name, value) for value in _values(name, part[name])):
            number = "number up to" if name == "mlp_ratio" else "whole number from 1 to"
            raise OtptError(
                f"The configuration of {source} has {name} = {part[name]!r}; expected a {number} {_LARGEST[name]}."
            )


def _values(name: str, value: Any) -> list[Any]:
    return value if name in _LISTS and isinstance(value, list) and 0 < len(value) <= 8 else [value]


def _fits(name: str, value: Any) -> bool:
    kinds = (int, float) if name == "mlp_ratio" else (int,)
    return type(value) in kinds and 0 < value <= _LARGEST[name]


def _image_tower(part: Mapping[str, Any]) -> int:
    """Most of its parameters; 0 for a tower that timm builds, whose name says its sizes."""
    if part.get("timm_model_name"):
        return 0
    width, layers = part.get("width") or 768, part.get("layers") or 12
    if isinstance(layers, list):  # a ResNet: 3×3 convolutions, and attention over 32 times the width
        return int(sum(layers) * 9 * width**2 + 4 * (32 * width) ** 2)
    side = max(_values("image_size", part.get("image_size") or 224)) // min(
        _values("patch_size", part.get("patch_size") or 16)
    )
    return _transformer(part, width, layers) + width * side**2


def _text_tower(part: Mapping[str, Any]) -> int:
    """Most of its parameters; 0 for one of transformers, whose name says its sizes."""
    if part.get("hf_model_name"):
        return 0
    width = part.get("width") or 512
    rows = (part.get("vocab_size") or 49408) + (part.get("context_length") or 77)
    return _transformer(part, width, part.get("layers") or 12) + width * rows


def _transformer(part: Mapping[str, Any], width: int, layers: int) -> int:
    """Attention (4W²) and MLP (2·ratio·W²) of each layer."""
    return int(layers * (4 + 2 * (part.get("mlp_ratio") or 4)) * width**2)
