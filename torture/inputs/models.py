"""Folders of models: configurations of open_clip and of Hugging Face, with weights beside them."""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path
from typing import Any

import torch

from otpt.backbones import load_backbone
from torture.inputs.checkpoints import any_checkpoint
from torture.inputs.kinds import Input, Kind
from torture.inputs.mutations import DECOY, as_json, mutated

_OPEN_CLIP: dict[str, Any] = {
    "model_cfg": {
        "embed_dim": 16,
        "vision_cfg": {"image_size": 16, "layers": 1, "width": 32, "patch_size": 8, "head_width": 16},
        "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 16, "heads": 1, "layers": 1},
    },
    "preprocess_cfg": {
        "mean": [0.5, 0.5, 0.5],
        "std": [0.5, 0.5, 0.5],
        "interpolation": "bicubic",
        "resize_mode": "squash",
    },
}
_HUGGING_FACE: dict[str, Any] = {
    "model_type": "clip",
    "projection_dim": 16,
    "text_config": {
        "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 1,
        "max_position_embeddings": 77, "vocab_size": 512, "hidden_act": "gelu", "eos_token_id": 511,
    },
    "vision_config": {
        "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 1, "image_size": 16,
        "patch_size": 8, "hidden_act": "gelu",
    },
}  # fmt: skip
_PREPROCESSOR = {
    "image_mean": [0.5] * 3,
    "image_std": [0.5] * 3,
    "resample": 3,
    "size": {"height": 16},
    "do_center_crop": False,
}
_TOKENIZER = {"model": {"merges": ["a b", ["c", "d"]]}}
_INDEX = {"weight_map": {"logit_scale": "model.safetensors", "visual.proj": "part.safetensors"}}


@cache
def _weights() -> bytes:
    from safetensors.torch import save

    return bytes(save({"logit_scale": torch.ones(()), "visual.proj": torch.ones(32, 16)}))


def _model(rng: random.Random, given: Path) -> Input:
    folder = given / "model"
    folder.mkdir()
    weights = _weights()
    if rng.random() < 0.2:
        weights = any_checkpoint(rng, ("logit_scale",))[0]
    if rng.random() < 0.5:
        config = mutated(rng, _OPEN_CLIP)
        (folder / "open_clip_config.json").write_bytes(as_json(rng, config))
        (folder / "open_clip_model.safetensors").write_bytes(weights)
        return Input(f"open_clip {json.dumps(config)[:80]}", lambda: load_backbone(str(folder)))
    (folder / "config.json").write_bytes(as_json(rng, mutated(rng, _HUGGING_FACE)))
    (folder / "preprocessor_config.json").write_bytes(as_json(rng, mutated(rng, _PREPROCESSOR)))
    if rng.random() < 0.3:
        (folder / "tokenizer.json").write_bytes(as_json(rng, mutated(rng, _TOKENIZER)))
    (folder / "model.safetensors").write_bytes(weights)
    if rng.random() < 0.5:
        index: Any = mutated(rng, _INDEX)
        if rng.random() < 0.5:
            index = {"weight_map": {"x": f"../{DECOY}secret.pt", "y": "/etc/passwd"}}
        (folder / "model.safetensors.index.json").write_bytes(as_json(rng, index))
    return Input("Hugging Face", lambda: load_backbone(str(folder)))


def _prepare() -> None:
    import open_clip.model  # noqa: F401  imported once, not in every process
    from huggingface_hub import constants

    constants.HF_HUB_OFFLINE = True  # nothing may be asked of the network; trying to is still heard
    _weights()


KINDS = [Kind("model folders", _model, _prepare)]
