"""Loading of ``CLIPModel`` (also PLIP and others) and ``SiglipModel`` of Hugging Face transformers.

A ``CLIPModel`` is converted to open_clip's ``CLIP``, the same network with other names (q, k, v stacked, projections
transposed), which shares the tuned towers, the prefix encoder and the fingerprint. A ``SiglipModel`` is wrapped.
"""

from __future__ import annotations

import json
import os
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from otpt.backbones.open_clip_models import clip_tokenizer
from otpt.backbones.sources import Parts, choose_gelu, hub, quiet_transformers
from otpt.errors import OtptError

_ACTIVATIONS: dict[str, dict[str, Any] | None] = {
    "quick_gelu": None,
    "gelu": None,
    "gelu_new": {"approximate": "tanh"},
    "gelu_pytorch_tanh": {"approximate": "tanh"},
}


def load_transformers(source: str, quick_gelu: bool | None = None) -> Parts:
    """Load a model from a repository on the hub or a folder of ``save_pretrained``."""
    source = os.path.expanduser(source)
    try:
        import transformers
    except ImportError:
        raise OtptError(f"The model {source!r} needs transformers: pip install 'otpt[hf]'.") from None
    options: dict[str, Any] = {"trust_remote_code": False}
    if os.path.isdir(source):
        options["local_files_only"] = True
    with hub(f"hf:{source}", local=os.path.isdir(source)), quiet_transformers():
        model, report = transformers.AutoModel.from_pretrained(source, output_loading_info=True, **options)
        if not is_transformers(model):
            raise OtptError(f"The model {source} is of type {model.config.model_type!r}; expected 'clip' or 'siglip'.")
        if report["missing_keys"]:
            missing = ", ".join(sorted(report["missing_keys"])[:3])
            raise OtptError(f"The weights in {source} lack {len(report['missing_keys'])} tensors: {missing}, ….")
        tokenizer = _optional(transformers.AutoTokenizer, source, options)
        processor = _optional(transformers.AutoImageProcessor, source, options)
    if tokenizer is None or len(tokenizer) <= len(tokenizer.all_special_tokens):  # no vocabulary file
        tokenizer = clip_tokenizer()
    name = source.rstrip("/").rsplit("/", 1)[-1]
    return transformers_parts(model.float(), tokenizer, {} if processor is None else processor, name, quick_gelu)


def _optional(kind: Any, source: str, options: dict[str, Any]) -> Any:
    """Load the tokenizer or processor of a repository, or return None if it has none."""
    try:
        return kind.from_pretrained(source, **options)
    except (OSError, ValueError, TypeError, KeyError):
        return None


def is_transformers(model: Any) -> bool:
    """Return whether a model is a CLIPModel or SiglipModel."""
    kind = getattr(getattr(model, "config", None), "model_type", None)
    return kind in ("clip", "siglip") and hasattr(model, "get_text_features") and hasattr(model, "get_image_features")


def transformers_parts(model: Any, tokenizer: Any, processor: Any, name: str, quick_gelu: bool | None = None) -> Parts:
    """Return the parts of a backbone, with a copy of a model in memory."""
    if model.config.model_type == "siglip":
        return Parts(SiglipClip(deepcopy(model)), tokenizer, processor, name)
    import open_clip

    config = clip_config(model.config.to_dict(), name)
    config["quick_gelu"] = choose_gelu(quick_gelu, config["quick_gelu"], None, name)
    built = open_clip.CLIP(**config).eval().requires_grad_(False)
    built.load_state_dict(convert_clip(model.state_dict()))
    if _merges(tokenizer) == _merges(clip_tokenizer()):  # open_clip's tokenizer is several times faster
        tokenizer = clip_tokenizer()
    return Parts(built, tokenizer, processor, name)


def clip_config(whole: dict[str, Any], source: str) -> dict[str, Any]:
    """Convert the configuration of a ``CLIPModel`` to open_clip's ``model_cfg``."""
    text, vision = whole["text_config"], whole["vision_config"]
    activations = {part["hidden_act"] for part in (text, vision)}
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


def convert_clip(state: dict[str, Tensor]) -> dict[str, Tensor]:
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


def _merges(tokenizer: Any) -> set[tuple[str, ...]] | None:
    """Return the BPE merges of a tokenizer, or None."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return set(getattr(tokenizer, "bpe_ranks", ())) or None
    pairs = json.loads(backend.to_str())["model"].get("merges") or []
    return {tuple(pair.split()) if isinstance(pair, str) else tuple(pair) for pair in pairs}


class SiglipClip(nn.Module):
    """Wrapper of a ``SiglipModel`` with open_clip's interface and shared weights."""

    def __init__(self, model: Any) -> None:
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

    def __init__(self, model: Any, **sizes: int) -> None:
        super().__init__()
        self.model = model
        self.__dict__.update(sizes)

    @property
    def token_embedding(self) -> nn.Module:
        """Embedding module of the text tower."""
        found: nn.Module = self.model.embeddings.token_embedding
        return found

    def forward(self, inputs: Tensor) -> Tensor:
        output: Tensor = self.model(inputs).pooler_output
        return output
