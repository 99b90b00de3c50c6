"""Folders of models: configurations of open_clip and of Hugging Face, with weights beside them."""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path
from typing import Any

import torch

from otpt.backbones import load_backbone
from otpt.backbones.sources.architectures import build_model
from torture.inputs.checkpoints import any_checkpoint
from torture.inputs.kinds import Input, Kind
from torture.inputs.mutations import DECOY, as_json, mutated

OPEN_CLIP: dict[str, Any] = {
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
def _few_weights() -> bytes:
    from safetensors.torch import save

    return bytes(save({"logit_scale": torch.ones(()), "visual.proj": torch.ones(32, 16)}))


@cache
def open_clip_weights() -> bytes:
    """The weights of :data:`OPEN_CLIP`."""
    from safetensors.torch import save

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = build_model(OPEN_CLIP["model_cfg"], quick_gelu=False)
    return bytes(save(model.state_dict()))


@cache
def _hugging_face_weights() -> bytes:
    from safetensors.torch import save
    from transformers import CLIPConfig, CLIPModel

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        state = CLIPModel(CLIPConfig(**_HUGGING_FACE)).state_dict()
    return bytes(save({name: tensor.contiguous() for name, tensor in state.items()}))


_PLACES = ("../outside", "local-dir:../outside", "/etc", "hf-hub:a/b", "a/b", "..", "~", "https://example.invalid")
_CODE = "open('../outside/ran', 'w').close()\n"


def _elsewhere(rng: random.Random, folder: Path) -> dict[str, Any]:
    """A configuration whose towers or tokenizer are in other places, or are code of the folder."""
    whole: dict[str, Any] = json.loads(json.dumps(OPEN_CLIP))
    text, place = whole["model_cfg"]["text_cfg"], rng.choice(_PLACES)
    what = rng.choice(("hf_model_name", "hf_tokenizer_name", "timm_model_name", "bpe_path", "code"))
    if what == "timm_model_name":
        whole["model_cfg"]["vision_cfg"][what] = place
    elif what == "bpe_path":
        text["tokenizer_kwargs"] = {what: f"{place}/secret.txt"}
    elif what == "code":
        text |= {"hf_tokenizer_name": "bert-base-uncased", "tokenizer_kwargs": {"trust_remote_code": True}}
        own = {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": ["own.Own", None]}}
        (folder / "tokenizer_config.json").write_text(json.dumps(own), encoding="utf-8")
        (folder / "own.py").write_text(_CODE, encoding="utf-8")
    else:
        text[what] = place
    return whole


def _model(rng: random.Random, given: Path) -> Input:
    folder = given / "model"
    folder.mkdir()
    weights = _few_weights()
    if rng.random() < 0.2:
        weights = any_checkpoint(rng, ("logit_scale",))[0]
    if rng.random() < 0.5:
        config = mutated(rng, OPEN_CLIP)
        (folder / "open_clip_config.json").write_bytes(as_json(rng, config))
        (folder / "open_clip_model.safetensors").write_bytes(weights)
        if rng.random() < 0.5:  # so that what comes after the weights is reached too
            (folder / "open_clip_model.safetensors").write_bytes(open_clip_weights())
        if rng.random() < 0.1:
            config = _elsewhere(rng, folder)
            (folder / "open_clip_config.json").write_text(json.dumps(config), encoding="utf-8")
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
    if rng.random() < 0.5:
        (folder / "model.safetensors").write_bytes(_hugging_face_weights())
        (folder / "model.safetensors.index.json").unlink(missing_ok=True)
    return Input("Hugging Face", lambda: load_backbone(str(folder)))


def _prepare() -> None:
    import open_clip.model  # noqa: F401  imported once, not in every process
    from huggingface_hub import constants

    constants.HF_HUB_OFFLINE = True  # nothing may be asked of the network; trying to is still heard
    _few_weights(), open_clip_weights(), _hugging_face_weights()


KINDS = [Kind("model folders", _model, _prepare)]
