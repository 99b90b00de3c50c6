"""Loading of dual encoders of Hugging Face transformers.

A ``CLIPModel`` (also PLIP and others) is converted to open_clip's ``CLIP``, the same network with other names (q, k, v
stacked, projections transposed), which shares the tuned towers, the prefix encoder and the fingerprint. A
``SiglipModel`` is wrapped, all others by :mod:`otpt.backbones.dual_encoders`.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, TypeVar, cast

import torch
from torch import Tensor, nn

from otpt.backbones.checkpoints import read_checkpoint
from otpt.backbones.dual_encoders import dual_encoder_parts, is_dual_encoder
from otpt.backbones.hf_tokenizers import prepare_tokenizer
from otpt.backbones.modules import Tokenizer
from otpt.backbones.open_clip_models import ModelConfig, clip_tokenizer
from otpt.backbones.sources import AssumedPartsWarning, Parts, choose_gelu, download, hub, quiet_transformers
from otpt.errors import OtptError

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel, SiglipModel

_Loaded = TypeVar("_Loaded")

_ACTIVATIONS: dict[str, dict[str, str] | None] = {
    "quick_gelu": None,
    "gelu": None,
    "gelu_new": {"approximate": "tanh"},
    "gelu_pytorch_tanh": {"approximate": "tanh"},
}
_WEIGHTS_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
"""Names of weights, in the order in which transformers prefers them; an index names the files of several parts."""


class TowerConfig(TypedDict):
    """Configuration of a tower of a ``CLIPModel``; other keys are possible."""

    hidden_act: str
    hidden_size: int
    intermediate_size: int
    layer_norm_eps: float
    num_attention_heads: int
    num_hidden_layers: int


class TextTowerConfig(TowerConfig):
    """Configuration of the text tower of a ``CLIPModel``."""

    eos_token_id: int
    max_position_embeddings: int
    vocab_size: int


class VisionTowerConfig(TowerConfig):
    """Configuration of the image tower of a ``CLIPModel``."""

    image_size: int
    patch_size: int


class ClipConfig(TypedDict):
    """Configuration of a ``CLIPModel``; other keys are possible."""

    projection_dim: int
    text_config: TextTowerConfig
    vision_config: VisionTowerConfig


def load_transformers(source: str, quick_gelu: bool | None = None) -> Parts:
    """Load a model from a repository on the hub or a folder of ``save_pretrained``."""
    source = os.path.expanduser(source)
    try:
        import transformers
    except ImportError:
        raise OtptError(f"The model {source!r} needs transformers: pip install 'otpt[hf]'.") from None
    name = source.rstrip("/").rsplit("/", 1)[-1]
    with hub(f"hf:{source}", local=os.path.isdir(source)) as offline, quiet_transformers():
        _check_code(source, offline)
        config = transformers.AutoConfig.from_pretrained(source, trust_remote_code=False, local_files_only=offline)
        kind = _model_class(config, source)
        state: dict[str, Tensor] = {}
        if config.model_type in ("clip", "siglip"):
            state = _read_weights(source, offline)
            _check_complete(config, state, source)
        tokenizer = _optional(transformers.AutoTokenizer.from_pretrained, source, offline)
        processor = _optional(transformers.AutoImageProcessor.from_pretrained, source, offline)
        missing = []
        if tokenizer is None or len(tokenizer) <= len(tokenizer.all_special_tokens):  # no vocabulary file
            tokenizer = clip_tokenizer()
            missing.append("tokenizer")
        if processor is None:
            missing.append("processor")
        if missing:
            warnings.warn(
                f"{source} has no {' and no '.join(missing)}; CLIP's {'is' if len(missing) == 1 else 'are'} used. If "
                "the model was trained with another, save it into the same folder.",
                AssumedPartsWarning,
                stacklevel=5,
            )
        preprocess = {} if processor is None else processor
        if config.model_type == "clip":
            return _clip_parts(config.to_dict(), state, tokenizer, preprocess, name, quick_gelu)
        if config.model_type == "siglip":
            model = transformers.SiglipModel(config)
            model.load_state_dict(state, strict=False)
            return Parts(SiglipClip(model), _prepared(tokenizer, config.model_type), preprocess, name)
        if quick_gelu is not None:
            raise OtptError(f"quick_gelu={quick_gelu} applies only to CLIP, not to {config.model_type!r}; omit it.")
        if processor is None:
            raise OtptError(f"The model {source} has no image processor; expected preprocessor_config.json.")
        model = _whole_model(kind, source, offline)
        return dual_encoder_parts(model, _prepared(tokenizer, config.model_type), processor, name)


def _prepared(tokenizer: object, model_type: str) -> Tokenizer:
    return cast(Tokenizer, prepare_tokenizer(tokenizer, model_type))


def _check_code(source: str, offline: bool) -> None:
    """Raise ``OtptError`` for a model that consists of code in its repository, or for an adapter without its model."""
    import transformers

    folder = Path(source)
    if (folder / "adapter_config.json").is_file() and not (folder / "config.json").is_file():
        raise OtptError(
            f"The folder {source} is an adapter of PEFT; load its model, merge it (merge_and_unload) and save the "
            "result, or pass the model in memory."
        )
    config, _ = transformers.PretrainedConfig.get_config_dict(source, local_files_only=offline)
    if "auto_map" in config and config.get("model_type") not in transformers.CONFIG_MAPPING:
        raise OtptError(
            f"The model {source} needs code from its repository, which is not run; load it yourself "
            "(AutoModel.from_pretrained(…, trust_remote_code=True)) and pass the object: otpt.load(model, tokenizer=…, "
            "preprocess=…)."
        )


def _model_class(config: PretrainedConfig, source: str) -> type[PreTrainedModel]:
    """Return the class of a dual encoder; raise ``OtptError`` for other kinds of models."""
    import transformers

    kind: type[PreTrainedModel] | None = transformers.MODEL_MAPPING.get(type(config), None)
    if kind is None or not is_dual_encoder(kind):
        raise OtptError(
            f"The model {source} is of type {config.model_type!r}; expected a dual encoder of images and texts, such "
            "as 'clip', 'siglip', 'siglip2', 'metaclip_2' or 'chinese_clip'."
        )
    return kind


def _whole_model(kind: type[PreTrainedModel], source: str, offline: bool) -> nn.Module:
    """Load a model of transformers by its own code, without code of a repository; raise if weights are missing."""
    import transformers

    messages = transformers.utils.logging
    shows_progress = messages.is_progress_bar_enabled()
    messages.disable_progress_bar()
    try:
        model, info = kind.from_pretrained(
            source, trust_remote_code=False, local_files_only=offline, output_loading_info=True
        )
    finally:
        if shows_progress:
            messages.enable_progress_bar()
    missing = sorted(info["missing_keys"])
    if missing:
        raise OtptError(f"The weights in {source} lack {len(missing)} tensors: {', '.join(missing[:3])}, ….")
    module: nn.Module = model
    return module


def _read_weights(source: str, offline: bool) -> dict[str, Tensor]:
    """Return the weights of a repository or folder by name, in float32."""
    file = _find(source, _WEIGHTS_FILES, offline)
    parts = [file]
    if file.suffix == ".json":
        names: dict[str, str] = json.loads(file.read_text(encoding="utf-8"))["weight_map"]
        parts = [_find(source, (name,), offline) for name in sorted(set(names.values()))]
    state: dict[str, Tensor] = {}
    for part in parts:
        state |= read_checkpoint(part).state
    return {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in state.items()}


def _find(source: str, names: tuple[str, ...], offline: bool) -> Path:
    """Return the first of these files in a folder or a repository."""
    if not os.path.isdir(source):
        return download(source, *names, offline=offline)
    paths = [Path(source) / name for name in names]
    return next((path for path in paths if path.is_file()), paths[0])


def _check_complete(config: PretrainedConfig, state: Mapping[str, Tensor], source: str) -> None:
    """Raise ``OtptError`` if weights are missing."""
    import transformers

    with torch.device("meta"):
        expected = transformers.AutoModel.from_config(config).state_dict().keys()
    missing = sorted(expected - state.keys())
    if missing:
        raise OtptError(f"The weights in {source} lack {len(missing)} tensors: {', '.join(missing[:3])}, ….")


def _optional(from_pretrained: Callable[..., _Loaded], source: str, offline: bool) -> _Loaded | None:
    """Load the tokenizer or processor of a repository, or return None if it has none."""
    try:
        return from_pretrained(source, trust_remote_code=False, local_files_only=offline)
    except (OSError, ValueError, TypeError, KeyError):
        return None


def transformers_parts(model: PreTrainedModel, tokenizer: Tokenizer, processor: object, name: str) -> Parts:
    """Return the parts of a backbone, with a copy of a dual encoder in memory."""
    kind = getattr(model.config, "model_type", "")
    names = {parameter.rsplit(".", 1)[-1] for parameter, _ in model.named_modules()}
    if kind == "clip" and "base_layer" not in names:
        return _clip_parts(model.config.to_dict(), model.state_dict(), tokenizer, processor, name, None)
    prepared = _prepared(tokenizer, kind)
    if kind == "siglip":
        return Parts(SiglipClip(deepcopy(model)), prepared, processor, name)
    return dual_encoder_parts(model, prepared, processor, name)


def _clip_parts(
    config: ClipConfig,
    state: Mapping[str, Tensor],
    tokenizer: Tokenizer,
    processor: object,
    name: str,
    quick_gelu: bool | None,
) -> Parts:
    """Convert a ``CLIPModel`` to the parts of a backbone."""
    import open_clip

    options = clip_config(config, name)
    options["quick_gelu"] = choose_gelu(quick_gelu, bool(options["quick_gelu"]), None, name)
    model = open_clip.CLIP(**options).eval().requires_grad_(False)
    model.load_state_dict(convert_clip(state))
    if _merges(tokenizer) == _merges(clip_tokenizer()):  # open_clip's tokenizer is several times faster
        tokenizer = clip_tokenizer()
    return Parts(model, _prepared(tokenizer, "clip"), processor, name)


def clip_config(whole: ClipConfig, source: str) -> ModelConfig:
    """Convert the configuration of a ``CLIPModel`` to open_clip's ``model_cfg``."""
    text, vision = whole["text_config"], whole["vision_config"]
    activations = {text["hidden_act"], vision["hidden_act"]}
    if not activations <= set(_ACTIVATIONS) or len({name == "quick_gelu" for name in activations}) != 1:
        raise OtptError(
            f"{source} has the activations {', '.join(sorted(activations))}; expected QuickGELU in both towers, or "
            "GELU in both."
        )
    # in configurations before transformers 4.31, 2 means the largest id, which CLIP uses
    largest = text["eos_token_id"] in (2, text["vocab_size"] - 1)
    return {
        "embed_dim": whole["projection_dim"],
        "quick_gelu": activations == {"quick_gelu"},
        "text_cfg": {
            "context_length": text["max_position_embeddings"],
            "vocab_size": text["vocab_size"],
            "heads": text["num_attention_heads"],
            "pool_type": "argmax" if largest else "eos",
            "eos_id": text["eos_token_id"],
            **_common(text),  # type: ignore[typeddict-item]
        },
        "vision_cfg": {
            "image_size": vision["image_size"],
            "patch_size": vision["patch_size"],
            "head_width": vision["hidden_size"] // vision["num_attention_heads"],
            **_common(vision),  # type: ignore[typeddict-item]
        },
    }


def _common(part: TowerConfig) -> dict[str, object]:
    return {
        "width": part["hidden_size"],
        "layers": part["num_hidden_layers"],
        "mlp_ratio": part["intermediate_size"] / part["hidden_size"],
        "act_kwargs": _ACTIVATIONS[part["hidden_act"]],
        "norm_kwargs": {"eps": part["layer_norm_eps"]},
    }


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


def convert_clip(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Convert the state dict of a ``CLIPModel`` to open_clip's names and layout."""
    converted = {ours: state[theirs].T for theirs, ours in _TRANSPOSED.items()}
    for name, tensor in state.items():
        if name.endswith("position_ids") or name in _TRANSPOSED or "k_proj." in name or "v_proj." in name:
            continue
        ours = name.replace("q_proj.", "in_proj_")
        for old, new in _RENAMED:
            ours = ours.replace(old, new)
        if "q_proj." in name:
            stacked = [state[name.replace("q_proj", letter)] for letter in ("q_proj", "k_proj", "v_proj")]
            converted[ours] = torch.cat(stacked)
        else:
            converted[ours] = tensor
    return converted


def _merges(tokenizer: Tokenizer) -> set[tuple[str, ...]] | None:
    """Return the BPE merges of a tokenizer, or None."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return set(getattr(tokenizer, "bpe_ranks", ())) or None
    pairs = json.loads(backend.to_str())["model"].get("merges") or []
    return {tuple(pair.split()) if isinstance(pair, str) else tuple(pair) for pair in pairs}


class SiglipClip(nn.Module):
    """Wrapper of a ``SiglipModel`` with open_clip's interface and shared weights."""

    def __init__(self, model: SiglipModel) -> None:
        super().__init__()
        config = model.config
        self.visual = _SiglipTower(model.vision_model, image_size=int(config.vision_config.image_size))
        self.text = _SiglipTower(model.text_model, context_length=int(config.text_config.max_position_embeddings))
        self.logit_scale, self.logit_bias = model.logit_scale, model.logit_bias

    def encode_text(self, ids: Tensor) -> Tensor:
        """Return text features (N, D) of token ids (N, L)."""
        features: Tensor = self.text(ids)
        return features


class _SiglipTower(nn.Module):
    """Encoder of pixels (N, 3, S, S) or token ids (N, L) to unnormalised features (N, D); padding is not masked."""

    family = "vit"

    def __init__(self, model: nn.Module, **sizes: int) -> None:
        super().__init__()
        self.model = model
        self.__dict__.update(sizes)

    @property
    def token_embedding(self) -> nn.Module:
        """Embedding module of the text tower."""
        return self.model.get_submodule("embeddings.token_embedding")

    def forward(self, inputs: Tensor) -> Tensor:
        output: Tensor = self.model(inputs).pooler_output
        return output
