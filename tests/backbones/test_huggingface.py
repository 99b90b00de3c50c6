"""Hugging Face ``CLIPModel`` folders against transformers itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from oracles.models.tiny import randomise

from otpt.backbones import QuickGeluWarning, load_backbone
from otpt.backbones.sources import AssumedPartsWarning
from otpt.errors import OtptError
from otpt.prompts import PlainEncoder, PrefixEncoder, Prompt, PromptEncoder, tokenize_prompts

pytestmark = pytest.mark.slow

transformers = pytest.importorskip("transformers")

TEXTS = ["a photo of a cat.", "a photo of a red panda."]


def write_folder(folder: Path, *, eos: int = 49407, text: dict[str, Any] | None = None, **vision: Any) -> Any:
    common = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64, "intermediate_size": 96}
    config = transformers.CLIPConfig(
        text_config={**common, "eos_token_id": eos, "bos_token_id": 49406, "pad_token_id": 1, **(text or {})},
        vision_config={**common, "image_size": 32, "patch_size": 8, **vision},
        projection_dim=24,
    )
    model = randomise(transformers.CLIPModel(config))
    model.save_pretrained(folder)
    preprocessor = {
        "image_mean": [0.5] * 3,
        "image_std": [0.2] * 3,
        "resample": 2,
        "size": {"shortest_edge": 32},
        "crop_size": {"height": 32, "width": 32},
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(preprocessor))
    return model


@pytest.mark.parametrize(("eos", "act"), [(2, "quick_gelu"), (49407, "gelu"), (49407, "gelu_pytorch_tanh")])
def test_features_are_those_of_transformers(tmp_path: Path, eos: int, act: str) -> None:
    model = write_folder(
        tmp_path, eos=eos, text={"hidden_act": act, "layer_norm_eps": 1e-3}, hidden_act=act, layer_norm_eps=1e-4
    )
    backbone = load_backbone(str(tmp_path), device="cpu")
    pixels = torch.randn(3, 3, 32, 32)
    ids = backbone.text.tokenize(TEXTS)
    with torch.no_grad():
        image = model.get_image_features(pixels).pooler_output
        text = model.get_text_features(ids).pooler_output
    torch.testing.assert_close(backbone.encode_pixels(pixels), F.normalize(image, dim=-1), rtol=0, atol=5e-6)
    torch.testing.assert_close(backbone.text.encode_embeddings(ids, backbone.text.embed(ids)), text, rtol=0, atol=1e-5)
    assert backbone.text.causal is not None
    assert backbone.embed_dim == 24
    assert backbone.preprocessing.interpolation == "bilinear"
    assert backbone.preprocessing.mean == (0.5, 0.5, 0.5)
    assert backbone.logit_scale == pytest.approx(100, abs=1e-3)


@pytest.mark.parametrize("missing", [["tokenizer"], ["tokenizer", "processor"]])
def test_parts_of_clip_are_assumed_with_a_warning(tmp_path: Path, missing: list[str]) -> None:
    write_folder(tmp_path)
    if "processor" in missing:
        (tmp_path / "preprocessor_config.json").unlink()
    with pytest.warns(AssumedPartsWarning) as record:
        load_backbone(str(tmp_path), device="cpu")
    (message,) = [str(warning.message) for warning in record if warning.category is AssumedPartsWarning]
    assert str(tmp_path) in message
    assert [part for part in ("tokenizer", "processor") if part in message] == missing


def test_contradicting_its_configuration_is_warned_of(tmp_path: Path) -> None:
    write_folder(tmp_path)
    with pytest.warns(QuickGeluWarning, match="was trained with QuickGELU, but runs with GELU"):
        load_backbone(str(tmp_path), device="cpu", quick_gelu=False)


def test_what_cannot_be_used_is_said(tmp_path: Path) -> None:
    write_folder(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())

    def load_with(**changes: Any) -> None:
        (tmp_path / "config.json").write_text(json.dumps(config | changes))
        load_backbone(str(tmp_path), device="cpu")

    for act in ("relu", "gelu"):  # the image tower has QuickGELU
        with pytest.raises(OtptError, match=act):
            load_with(text_config=config["text_config"] | {"hidden_act": act})
    with pytest.raises(OtptError, match=str(tmp_path)):
        load_with(projection_dim=16)
    with pytest.raises(OtptError, match="bert"):
        load_with(model_type="bert")
    (tmp_path / "config.json").write_text("{not json")
    with pytest.raises(OtptError, match=str(tmp_path)):
        load_backbone(str(tmp_path), device="cpu")


def test_a_vocabulary_of_its_own_that_pads_with_the_end_token(tmp_path: Path) -> None:
    """As the tokenizers of transformers do: the first end token is read, not the padding after it or what is before."""
    letters = "abcdefghijklmnopqrstuvwxyz."
    tokens = [*letters, *(f"{letter}</w>" for letter in letters), "at</w>", "<|startoftext|>", "<|endoftext|>"]
    end = len(tokens) - 1
    text = {"vocab_size": len(tokens), "max_position_embeddings": 16, "bos_token_id": end - 1, "pad_token_id": end}
    model = write_folder(tmp_path, eos=end, text=text)
    (tmp_path / "vocab.json").write_text(json.dumps({token: index for index, token in enumerate(tokens)}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\na t</w>\n")
    backbone = load_backbone(str(tmp_path), device="cpu")
    names, prompt = ["cat", "dog fox"], Prompt("a b")
    ids = backbone.text.tokenize([prompt.sentence(name) for name in names])
    assert ids[0, -2:].tolist() == [end, end]
    with torch.no_grad():
        expected = F.normalize(model.get_text_features(ids).pooler_output, dim=-1)
    found = tokenize_prompts(backbone.text, names, prompt)
    encoders: list[PromptEncoder] = [kind(backbone.text, found) for kind in (PrefixEncoder, PlainEncoder)]
    for encoder in encoders:
        torch.testing.assert_close(encoder.encode(found.start[None])[0], expected, rtol=0, atol=1e-5)
