"""Hugging Face ``CLIPModel`` folders (PLIP and many others), brought into open_clip's form.

The two libraries hold the same network under other names: q, k, v apart instead of stacked, projections
transposed. So the weights are renamed and everything else, tuning and fingerprint included, is shared with
open_clip's models. ``transformers`` itself is needed only when the folder brings a vocabulary other than
CLIP's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from otpt.backbones.checkpoints import read_checkpoint
from otpt.backbones.sources.clip_tokenizer import clip_tokenizer
from otpt.backbones.sources.hub import hub_file, hub_tokenizer
from otpt.errors import OtptError
from otpt.files import parse_json

_ACTIVATIONS: dict[str, dict[str, Any] | None] = {
    "quick_gelu": None,
    "gelu": None,
    "gelu_new": {"approximate": "tanh"},
    "gelu_pytorch_tanh": {"approximate": "tanh"},
}
_TEXT_DEFAULTS = {
    "hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 12, "num_attention_heads": 8,
    "max_position_embeddings": 77, "vocab_size": 49408, "hidden_act": "quick_gelu", "layer_norm_eps": 1e-5,
    "eos_token_id": 49407,
}  # fmt: skip
_VISION_DEFAULTS = {
    "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
    "image_size": 224, "patch_size": 32, "hidden_act": "quick_gelu", "layer_norm_eps": 1e-5,
}  # fmt: skip


def is_huggingface_clip(folder: Path) -> bool:
    """Whether ``config.json`` in the folder says ``"model_type": "clip"``."""
    config = folder / "config.json"
    return config.is_file() and _read_json(config).get("model_type") == "clip"


def download_huggingface_clip(repository: str) -> Path:
    """The folder, in the hub's cache, of a ``CLIPModel`` repository with what is needed of it."""
    what = f"hf:{repository}"
    folder = hub_file(repository, "config.json", what=what).parent
    hub_file(repository, "model.safetensors", "pytorch_model.bin", what=what)
    for name in ("preprocessor_config.json", "tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt"):
        try:
            hub_file(repository, name, what=what)
        except OtptError:
            continue  # not every repository has every one of them
    return folder


def huggingface_config(folder: Path) -> dict[str, Any]:
    """open_clip's ``model_cfg`` for the folder's ``config.json``."""
    path = folder / "config.json"
    try:
        return config_of(_read_json(path), str(folder))
    except (KeyError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
        if isinstance(error, OtptError):
            raise
        raise OtptError(
            f"The file {path} does not describe a CLIP of transformers ({type(error).__name__}: {error}); expected the "
            "config.json that save_pretrained writes."
        ) from None


def config_of(whole: dict[str, Any], source: str) -> dict[str, Any]:
    """open_clip's ``model_cfg`` for the configuration of a ``CLIPModel``."""
    if whole.get("model_type") != "clip":
        raise OtptError(f"The model in {source} is of type {whole.get('model_type')!r}; expected 'clip'.")
    text = {**_TEXT_DEFAULTS, **(whole.get("text_config") or {}), **(whole.get("text_config_dict") or {})}
    vision = {**_VISION_DEFAULTS, **(whole.get("vision_config") or {}), **(whole.get("vision_config_dict") or {})}
    for part in (text, vision):
        if part["hidden_act"] not in _ACTIVATIONS:
            raise OtptError(
                f"The activation {part['hidden_act']!r} of {source} is not supported; expected one of "
                f"{', '.join(_ACTIVATIONS)}."
            )
    quick = [part["hidden_act"] == "quick_gelu" for part in (text, vision)]
    if quick[0] != quick[1]:
        raise OtptError(f"The text and image towers of {source} mix QuickGELU and GELU, which is not supported.")
    # before transformers 4.31 configurations said 2 and meant the largest id, as CLIP itself does
    largest = text["eos_token_id"] in (2, text["vocab_size"] - 1)
    return {
        "embed_dim": whole.get("projection_dim", 512),
        "quick_gelu": quick[0],
        "text_cfg": {
            "context_length": text["max_position_embeddings"],
            "vocab_size": text["vocab_size"],
            "heads": text["num_attention_heads"],
            "pool_type": "argmax" if largest else "eos",
            "eos_id": text["eos_token_id"],
            **_common(text),
        },
        "vision_cfg": {
            "image_size": vision["image_size"],
            "patch_size": vision["patch_size"],
            "head_width": vision["hidden_size"] // vision["num_attention_heads"],
            **_common(vision),
        },
    }


def _common(part: dict[str, Any]) -> dict[str, Any]:
    return {
        "width": part["hidden_size"],
        "layers": part["num_hidden_layers"],
        "mlp_ratio": part["intermediate_size"] / part["hidden_size"],
        "act_kwargs": _ACTIVATIONS[part["hidden_act"]],
        "norm_kwargs": {"eps": part["layer_norm_eps"]},
    }


def huggingface_weights(folder: Path) -> dict[str, Tensor]:
    """The folder's weights under open_clip's names."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        names = _parts(index)
    else:
        names = [name for name in ("model.safetensors", "pytorch_model.bin") if (folder / name).is_file()][:1]
    if not names:
        raise OtptError(f"The folder {folder} has no weights; expected model.safetensors or pytorch_model.bin.")
    state: dict[str, Tensor] = {}
    for name in names:
        state.update(read_checkpoint(folder / name).state)
    return convert_huggingface(state)


def _parts(index: Path) -> list[str]:
    """The files that an index names; all of them beside it."""
    named = _read_json(index).get("weight_map")
    if not isinstance(named, dict) or not all(isinstance(name, str) and _is_beside(name) for name in named.values()):
        raise OtptError(
            f"The file {index} is not an index of weights; expected a weight_map from tensors to files of the same "
            "folder."
        )
    return sorted(set(named.values()))


def _is_beside(name: str) -> bool:
    return name not in ("", ".", "..") and not {"/", "\\", "\0"} & set(name)


def convert_huggingface(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Rename ``CLIPModel``'s tensors to open_clip's; names it does not know stay, to be reported as unexpected."""
    converted: dict[str, Tensor] = {}
    for name, tensor in state.items():
        if name.endswith("position_ids"):
            continue
        if name in _TRANSPOSED:
            converted[_TRANSPOSED[name]] = tensor.T
        elif ".self_attn.q_proj." in name:
            q, k, v = (state.get(name.replace("q_proj", letter)) for letter in ("q_proj", "k_proj", "v_proj"))
            if q is None or k is None or v is None:
                continue  # reported as missing
            converted[_rename(name.replace("q_proj.", "in_proj_"))] = torch.cat([q, k, v])
        elif ".self_attn.k_proj." not in name and ".self_attn.v_proj." not in name:
            converted[_rename(name)] = tensor
    return converted


_TRANSPOSED = {"visual_projection.weight": "visual.proj", "text_projection.weight": "text_projection"}
_RENAMED = (
    ("text_model.embeddings.token_embedding.weight", "token_embedding.weight"),
    ("text_model.embeddings.position_embedding.weight", "positional_embedding"),
    ("text_model.final_layer_norm.", "ln_final."),
    ("text_model.encoder.layers.", "transformer.resblocks."),
    ("vision_model.embeddings.class_embedding", "visual.class_embedding"),
    ("vision_model.embeddings.patch_embedding.", "visual.conv1."),
    ("vision_model.embeddings.position_embedding.weight", "visual.positional_embedding"),
    ("vision_model.pre_layrnorm.", "visual.ln_pre."),
    ("vision_model.post_layernorm.", "visual.ln_post."),
    ("vision_model.encoder.layers.", "visual.transformer.resblocks."),
    (".self_attn.", ".attn."),
    (".layer_norm1.", ".ln_1."),
    (".layer_norm2.", ".ln_2."),
    (".mlp.fc1.", ".mlp.c_fc."),
    (".mlp.fc2.", ".mlp.c_proj."),
)


def _rename(name: str) -> str:
    for theirs, ours in _RENAMED:
        name = name.replace(theirs, ours)
    return name


def huggingface_preprocessing(folder: Path) -> dict[str, Any]:
    """``preprocessor_config.json`` in the words of open_clip's ``preprocess_cfg``; empty if there is none."""
    path = folder / "preprocessor_config.json"
    if not path.is_file():
        return {}
    theirs = _read_json(path)
    size = theirs.get("size")
    squash = isinstance(size, dict) and "height" in size and not theirs.get("do_center_crop", False)
    return {
        "mean": theirs.get("image_mean"),
        "std": theirs.get("image_std"),
        "interpolation": {"2": "bilinear", "3": "bicubic"}.get(str(theirs.get("resample", 3)), "unknown"),
        "resize_mode": "squash" if squash else "shortest",
    }


def huggingface_tokenizer(folder: Path, context_length: int) -> Any:
    """CLIP's own tokenizer if the folder's merges are CLIP's (or it brings none), else the folder's own."""
    own = clip_tokenizer(context_length)
    merges = _merges(folder)
    if merges is None or merges == set(own.bpe_ranks):
        return own
    return hub_tokenizer(str(folder), context_length, what=f"the tokenizer in {folder}")


def _merges(folder: Path) -> set[tuple[str, ...]] | None:
    if (folder / "tokenizer.json").is_file():
        model = _read_json(folder / "tokenizer.json").get("model")
        pairs = model.get("merges", []) if isinstance(model, dict) else None
        if not isinstance(pairs, list) or not all(isinstance(pair, (str, list)) for pair in pairs):
            raise OtptError(f"The file {folder / 'tokenizer.json'} has no list of merges; expected one of tokenizers.")
        return {tuple(pair.split()) if isinstance(pair, str) else tuple(map(str, pair)) for pair in pairs}
    if (folder / "merges.txt").is_file():
        lines = (folder / "merges.txt").read_text(encoding="utf-8").splitlines()
        return {tuple(line.split()) for line in lines if line.strip() and not line.startswith("#version")}
    return None


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise OtptError(f"The file {path} cannot be read as JSON: {error}.") from error
    if not isinstance(content, dict):
        raise OtptError(f"The file {path} is not a configuration: expected a JSON object.")
    return content
