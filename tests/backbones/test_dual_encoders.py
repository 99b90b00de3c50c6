"""Dual encoders of transformers: logits of the original, gradients of the texts, refusals with numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from oracles.models import tokenizers_of
from oracles.models.architectures import ARCHITECTURES, RemoteCode, check
from oracles.models.tiny import randomise
from torch import Tensor, nn

from otpt.backbones import load_backbone
from otpt.errors import OtptError
from otpt.prompts import PlainEncoder, Prompt, tokenize_prompts

pytestmark = pytest.mark.slow

transformers = pytest.importorskip("transformers")

SMALL = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64, "intermediate_size": 96}
VISION = {**SMALL, "image_size": 32, "patch_size": 8}
WORDS = {**SMALL, "vocab_size": 500, "max_position_embeddings": 64, "pad_token_id": 0}
NAMES = ["cat", "red panda"]


def images() -> Any:
    return transformers.CLIPImageProcessor(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})


def bert_model() -> Any:
    text, vision = transformers.BertConfig(**WORDS), transformers.ViTConfig(**VISION)
    config = transformers.VisionTextDualEncoderConfig.from_vision_text_configs(vision, text, projection_dim=24)
    return randomise(transformers.VisionTextDualEncoderModel(config))


def chinese_clip() -> Any:
    config = transformers.ChineseCLIPConfig(text_config=WORDS, vision_config=VISION, projection_dim=24)
    return randomise(transformers.ChineseCLIPModel(config))


@pytest.mark.parametrize("build", [bert_model, chinese_clip])
def test_a_folder_gives_the_logits_of_the_model(tmp_path: Path, build: Any) -> None:
    model, words = build(), tokenizers_of.bert(64)
    model.save_pretrained(tmp_path)
    words.save_pretrained(tmp_path)
    images().save_pretrained(tmp_path)
    backbone = load_backbone(str(tmp_path), device="cpu")
    texts = ["a photo of a cat.", "a red panda"]
    encoded = words(texts, padding=True, return_tensors="pt")
    pixels = torch.randn(1, 3, 32, 32)
    with torch.no_grad():
        expected = model(pixel_values=pixels, **encoded).logits_per_image
        ids = backbone.text.tokenize(texts)
        features = backbone.text.encode_embeddings(ids, backbone.text.embed(ids))
    features = torch.nn.functional.normalize(features, dim=-1)
    logits = backbone.logit_scale * backbone.encode_pixels(pixels) @ features.T + backbone.logit_bias
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-4)


def test_padding_is_left_out_where_it_has_no_effect() -> None:
    """Features and gradients are those of padded texts."""
    backbone = load_backbone(bert_model(), tokenizer=tokenizers_of.bert(64), preprocess=images())
    tower = backbone.text
    assert tower.ignores_padding
    tokens = tokenize_prompts(tower, NAMES, Prompt("a photo of a"))
    encoder = PlainEncoder(tower, tokens)
    assert encoder._ids.shape[1] < 16
    found = encoder.encode(tokens.start[None])[0]
    ids = tower.tokenize([Prompt("a photo of a").sentence(name) for name in NAMES])
    expected = torch.nn.functional.normalize(tower.encode_embeddings(ids, tower.embed(ids)), dim=-1)
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-6)


def test_naflex_takes_the_patches_of_a_view() -> None:
    config = transformers.Siglip2Config(text_config=WORDS, vision_config={**SMALL, "patch_size": 8, "num_patches": 16})
    model = randomise(transformers.Siglip2Model(config))
    processor = transformers.Siglip2ImageProcessor(patch_size=8, max_num_patches=16)
    backbone = load_backbone(model, tokenizer=tokenizers_of.siglip(), preprocess=processor)
    assert backbone.preprocessing.size == 32
    draws = torch.randint(0, 256, (32, 32, 3), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    theirs = processor(draws.numpy(), return_tensors="pt")
    with torch.no_grad():
        expected = torch.nn.functional.normalize(model.get_image_features(**theirs).pooler_output, dim=-1)
    pixels = (draws.permute(2, 0, 1)[None] / 255 - 0.5) / 0.5
    torch.testing.assert_close(backbone.encode_pixels(pixels), expected, rtol=0, atol=1e-5)


class Different(RemoteCode):
    """A model whose logits are not the scaled cosine of its features."""

    def forward(self, *args: Any, **inputs: Any) -> Any:
        outputs = super().forward(*args, **inputs)
        return transformers.utils.ModelOutput(logits_per_image=outputs["logits_per_image"] + 1.5)


class Tokens(RemoteCode):
    """A model with a feature per token, as FLAVA."""

    def get_text_features(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        features: Tensor = self.text(input_ids, attention_mask=attention_mask).last_hidden_state
        return features


@pytest.mark.parametrize(("kind", "shown"), [(Different, "logits_per_image"), (Tokens, "768")])
def test_a_disagreement_is_refused_with_numbers(kind: type[nn.Module], shown: str) -> None:
    model = randomise(kind())
    with pytest.raises(OtptError, match=shown):
        load_backbone(
            model,
            tokenizer=tokenizers_of.bert(64),
            preprocess=transformers.ViTImageProcessor(size={"height": 224, "width": 224}),
        )


def test_what_cannot_be_loaded_from_a_folder(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "jina_clip", "auto_map": {"AutoModel": "code.Model"}}')
    with pytest.raises(OtptError, match=r"otpt\.load"):
        load_backbone(str(tmp_path), device="cpu")
    bert_model().save_pretrained(tmp_path)
    with pytest.raises(OtptError, match="image processor"):
        load_backbone(str(tmp_path), device="cpu")


@pytest.mark.long
@pytest.mark.parametrize("name", [each.name for each in ARCHITECTURES])
@pytest.mark.filterwarnings("ignore")
def test_every_architecture_of_the_table(name: str, tmp_path: Path) -> None:
    (architecture,) = [each for each in ARCHITECTURES if each.name == name]
    row = check(architecture, tmp_path)
    assert row.zero_shot == "yes" or name == "FlavaModel"
