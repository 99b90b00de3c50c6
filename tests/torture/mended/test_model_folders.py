"""Faults that the campaign found in folders of models: configurations by somebody who means harm."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from otpt.backbones import load_backbone
from otpt.backbones.preprocessing import preprocessing_from_config
from otpt.backbones.sources.huggingface import huggingface_config, huggingface_weights
from otpt.errors import OtptError
from torture.inputs.models import OPEN_CLIP, open_clip_weights

pytestmark = pytest.mark.slow


def folder(place: Path, change: dict[str, Any]) -> Path:
    """A model with a change of its configuration: {"text_cfg.width": 7}, or {"preprocess_cfg": …} beside model_cfg."""
    whole: dict[str, Any] = copy.deepcopy(OPEN_CLIP)
    for where, value in change.items():
        part, _, key = where.rpartition(".")
        ((whole["model_cfg"][part] if part != "model_cfg" else whole[part]) if part else whole)[key] = value
    place.mkdir()
    (place / "open_clip_config.json").write_text(json.dumps(whole), encoding="utf-8")
    (place / "open_clip_model.safetensors").write_bytes(open_clip_weights())
    return place


def test_the_folder_is_a_model_before_it_is_changed(tmp_path: Path) -> None:
    assert load_backbone(folder(tmp_path / "model", {})).embed_dim == 16


def test_a_configuration_cannot_have_the_tokenizer_run_code_of_the_folder(tmp_path: Path) -> None:
    """tokenizer_kwargs went on to transformers: with trust_remote_code, a Python file of the folder was run."""
    pytest.importorskip("transformers")
    code = {"hf_tokenizer_name": "bert-base-uncased", "tokenizer_kwargs": {"trust_remote_code": True}}
    model = folder(tmp_path / "model", {f"text_cfg.{key}": value for key, value in code.items()})
    own = {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": ["own.Own", None]}}
    (model / "tokenizer_config.json").write_text(json.dumps(own), encoding="utf-8")
    (model / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\n", encoding="utf-8")
    with pytest.raises(OtptError, match=r"'trust_remote_code' in tokenizer_kwargs; expected an object with some of"):
        load_backbone(model)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "change",
    [
        {"text_cfg.hf_model_name": "../elsewhere"},
        {"text_cfg.hf_tokenizer_name": "/etc"},
        {"vision_cfg.timm_model_name": "local-dir:../elsewhere"},
        {"vision_cfg.timm_model_name": "hf-hub:a/b"},
        {"text_cfg.tokenizer_kwargs": {"bpe_path": "/etc/passwd"}},
        {"text_cfg.tokenizer_kwargs": 7},
    ],
)
def test_a_configuration_names_no_place_elsewhere(change: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(OtptError, match=r"expected a name, not a path|in tokenizer_kwargs; expected"):
        load_backbone(folder(tmp_path / "model", change))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"vision_cfg.image_size": "$(id)"}, r"image_size = '\$\(id\)'; expected a whole number from 1 to"),
        ({"text_cfg.context_length": -1}, "context_length = -1; expected a whole number"),
        ({"text_cfg.layers": 2**31}, "layers = 2147483648; expected a whole number from 1 to 1000"),
        ({"model_cfg.embed_dim": True}, "embed_dim = True"),
        ({"vision_cfg.mlp_ratio": float("inf")}, "mlp_ratio = inf; expected a number up to"),
        ({"text_cfg.width": 2**15}, r"needs more than [\d,]+ parameters, but the weights have [\d,]+; take both"),
        ({"vision_cfg.layers": [9, 9, 9, 9], "vision_cfg.width": 2**12}, "needs more than"),
        ({"text_cfg.vocab_size": 300}, "do not fit the architecture"),
        ({"text_cfg.heads": 7}, "cannot be built by open_clip"),
        ({"vision_cfg.pool_type": "??"}, "cannot be built by open_clip"),
        ({"vision_cfg.image_size": 1}, "position embeddings .* cannot be resized"),
        ({"preprocess_cfg": [1]}, "does not describe a model"),
        ({"text_cfg.tokenizer_kwargs": {"clean": "??"}}, "The tokenizer of model does not take"),
    ],
)
def test_values_of_a_configuration_that_make_no_model(change: dict[str, Any], told: str, tmp_path: Path) -> None:
    with pytest.raises(OtptError, match=told):
        load_backbone(folder(tmp_path / "model", change))


@pytest.mark.parametrize(
    "config",
    [
        {"mean": ["tree frog", 1, 1]},
        {"mean": 7},
        {"mean": [[1], 1, 1]},
        {"std": [0.5, 0, 0.5]},
        {"std": [float("nan")] * 3},
        {"interpolation": ["bicubic"]},
    ],
)
def test_preprocessing_with_other_types(config: dict[str, Any]) -> None:
    with pytest.raises(OtptError, match="preprocessing"):
        preprocessing_from_config(config, 224)


def test_a_tokenizer_of_another_vocabulary_is_told(tmp_path: Path) -> None:
    """A CLIP of transformers with 512 tokens and no tokenizer of its own raised an IndexError."""
    from safetensors.torch import save
    from transformers import CLIPConfig, CLIPModel

    tower = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 1}
    text = {**tower, "vocab_size": 512, "bos_token_id": 0, "eos_token_id": 511, "hidden_act": "gelu"}
    vision = {**tower, "image_size": 16, "patch_size": 8, "hidden_act": "gelu"}
    given = {"model_type": "clip", "projection_dim": 16, "text_config": text, "vision_config": vision}
    state = CLIPModel(CLIPConfig(**given)).state_dict()
    (tmp_path / "config.json").write_text(json.dumps(given), encoding="utf-8")
    (tmp_path / "model.safetensors").write_bytes(save({name: each.contiguous() for name, each in state.items()}))
    with pytest.raises(OtptError, match="embeddings of 512 tokens, but its tokenizer gave the token 49407"):
        load_backbone(tmp_path)


@pytest.mark.parametrize("name", ["../secret.safetensors", "/etc/passwd", "..", 7])
def test_an_index_of_weights_names_files_of_its_own_folder(name: Any, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    index = {"weight_map": {"x": name}}
    (tmp_path / "model" / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    with pytest.raises(OtptError, match="files of the same folder"):
        huggingface_weights(tmp_path / "model")


@pytest.mark.parametrize(
    "config", [{"text_config": [1]}, {"text_config": {"hidden_act": []}}, {"vision_config": {"hidden_size": 0}}]
)
def test_a_damaged_config_of_transformers(config: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "clip", **config}), encoding="utf-8")
    with pytest.raises(OtptError, match=r"config\.json"):
        huggingface_config(tmp_path)
