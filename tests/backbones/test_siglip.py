"""SigLIP and SigLIP 2 of transformers: texts as in training, and probabilities by the model's own formulas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import open_clip
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from oracles.models import tokenizers_of
from oracles.models.tiny import randomise
from PIL import Image

import otpt
from otpt.backbones import FeatureBackbone, load_backbone, open_clip_models
from otpt.backbones.hf_tokenizers import canonicalize, prepare_tokenizer
from otpt.backbones.text_tower import tokenize
from otpt.calibration import fixed_temperature
from otpt.errors import OtptError
from otpt.methods.preparation import temperature_family
from otpt.views import ViewRecipe, make_views

pytestmark = pytest.mark.slow

transformers = pytest.importorskip("transformers")

TEXTS = ["a photo of a Red_Panda.", "This is a photo of Golden Retriever!", "2012 Tesla Model S (sedan)", "x", ""]
NAMES = ["cat", "Red Panda", "dog"]
COMMON = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64, "intermediate_size": 96}


@given(st.text())
def test_texts_are_prepared_as_open_clip_prepares_them(text: str) -> None:
    assert canonicalize(text) == open_clip.tokenizer.canonicalize_text(text)
    assert canonicalize(canonicalize(text)) == canonicalize(text)


@pytest.mark.parametrize("kind", ["GemmaTokenizer", "Siglip2Tokenizer"])
def test_ids_of_siglip_2_are_those_of_open_clip(tmp_path: Path, kind: str) -> None:
    folder = tokenizers_of.gemma(tmp_path, kind)
    theirs = open_clip.tokenizer.HFTokenizer(folder, context_length=64, clean="canonicalize")
    theirs.tokenizer.padding_side = "right"  # as the published files say; the class itself pads on the left
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ours = prepare_tokenizer(tokenizer, "siglip")
    assert torch.equal(tokenize(ours, TEXTS, 64), theirs(TEXTS))
    assert torch.equal(tokenize(tokenizer, TEXTS, 64), theirs(TEXTS))  # recognised without its model
    verbatim = tokenizer(TEXTS, padding="max_length", padding_side="right", max_length=64, return_tensors="pt")
    assert not torch.equal(verbatim["input_ids"], theirs(TEXTS))
    with pytest.raises(OtptError, match="64 tokens"):
        tokenize(ours, ["x " * 70], 64)


def siglip_folder(folder: Path) -> Any:
    tokenizers_of.gemma(folder)
    text = {**COMMON, "vocab_size": 500, "max_position_embeddings": 64, "pad_token_id": 0, "eos_token_id": 1}
    vision = {**COMMON, "image_size": 32, "patch_size": 8}
    model = randomise(transformers.SiglipModel(transformers.SiglipConfig(text_config=text, vision_config=vision)))
    with torch.no_grad():
        model.logit_scale.fill_(2.0)
        model.logit_bias.fill_(-3.0)
    model.save_pretrained(folder)
    transformers.SiglipImageProcessor(size={"height": 32, "width": 32}).save_pretrained(folder)
    return model


def test_probabilities_are_the_originals_formulas_in_every_way_in(tmp_path: Path) -> None:
    """One label by the softmax, several labels by the sigmoid with its bias."""
    model = siglip_folder(tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    processor = transformers.AutoImageProcessor.from_pretrained(tmp_path)
    picture = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    ids = open_clip.tokenizer.HFTokenizer(str(tmp_path), context_length=64, clean="canonicalize")
    ids.tokenizer.padding_side = "right"
    backbone = load_backbone(str(tmp_path), device="cpu")
    clean = make_views(Image.fromarray(picture), ViewRecipe(n_views=1), backbone.preprocessing, seed=0, image_id="x")
    with torch.no_grad():
        texts = ids([f"a photo of a {name}." for name in NAMES])
        logits = model(input_ids=texts, pixel_values=torch.from_numpy(clean)).logits_per_image[0]
    for spec, options in (
        (str(tmp_path), {}),
        (model, {"tokenizer": tokenizer, "preprocess": processor}),
    ):
        one = otpt.load(spec, "zero-shot", device="cpu", **options).set_classes(NAMES)
        assert one.predict(picture).probabilities == pytest.approx(logits.softmax(-1).numpy(), abs=1e-6)
        several = otpt.load(spec, device="cpu", multi_label=True, **options).set_classes(NAMES)
        assert several.predict(picture).probabilities == pytest.approx(logits.sigmoid().numpy(), abs=1e-6)
    classify = otpt.pipeline(model=str(tmp_path), method="zero-shot", device=-1)
    scores = {each["label"]: each["score"] for each in classify(picture, NAMES, hypothesis_template="a photo of a {}.")}
    assert [scores[name] for name in NAMES] == pytest.approx(logits.softmax(-1).tolist(), abs=1e-6)


def test_padding_on_the_left_is_mended_for_siglip_and_refused_for_others(tmp_path: Path) -> None:
    words = tokenizers_of.bert(32)
    words.padding_side = "left"
    with pytest.raises(OtptError, match="left"):
        prepare_tokenizer(words, "chinese_clip")

    def hidden(texts: list[str]) -> Any:  # a function, whose padding is seen in its ids
        return words(texts, padding="max_length", max_length=32)["input_ids"]

    with pytest.raises(OtptError, match="left"):
        tokenize(hidden, ["a photo of a cat."], 32)
    words.padding_side = "right"
    assert tokenize(hidden, ["a photo of a cat."], 32)[0, -1] == words.pad_token_id


def test_tokenizers_of_open_clip_architectures_pad_on_the_right(tmp_path: Path) -> None:
    folder = tokenizers_of.gemma(tmp_path)
    config = {
        "text_cfg": {"hf_tokenizer_name": folder, "context_length": 64, "tokenizer_kwargs": {"clean": "canonicalize"}}
    }
    tokenizer = open_clip_models._tokenizer(config, offline=True)
    reference = prepare_tokenizer(transformers.AutoTokenizer.from_pretrained(folder), None)
    assert torch.equal(tokenize(tokenizer, TEXTS, 64), tokenize(reference, TEXTS, 64))


def test_a_model_of_open_clip_with_the_tokenizer_of_transformers(tmp_path: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(tokenizers_of.gemma(tmp_path))
    text = {"context_length": 64, "vocab_size": 500, "width": 64, "heads": 4, "layers": 2, "no_causal_mask": True,
            "proj_bias": True, "pool_type": "last"}  # fmt: skip
    vision = {"image_size": 32, "patch_size": 8, "width": 64, "layers": 2, "head_width": 32}
    model = randomise(open_clip.CustomTextCLIP(embed_dim=32, vision_cfg=vision, text_cfg=text, init_logit_bias=-10))
    preprocess = otpt.backbones.Preprocessing(size=32)
    backbone = load_backbone(model, tokenizer=tokenizer, preprocess=preprocess)
    reference = open_clip.tokenizer.HFTokenizer(str(tmp_path), context_length=64, clean="canonicalize")
    reference.tokenizer.padding_side = "right"
    with torch.no_grad():
        expected = F.normalize(model.encode_text(reference(TEXTS[:3])), dim=-1)
    ids = backbone.text.tokenize(TEXTS[:3])
    found = F.normalize(backbone.text.encode_embeddings(ids, backbone.text.embed(ids)), dim=-1)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    assert not backbone.text.ignores_padding  # SigLIP reads its padding


@pytest.mark.parametrize(
    ("name", "architecture", "bias", "family"),
    [
        ("ViT-B-16/openai", "ViT-B-16", 0.0, "vit"),
        ("model.pt", "ViT-B-16", 0.0, "vit"),
        ("ViT-B-16/laion2b_s34b_b88k", "ViT-B-16", 0.0, None),
        ("hf:google/siglip2-base-patch16-224", "siglip2-base-patch16-224", -16.5, None),
        ("PE-Core-B-16/meta", "PE-Core-B-16", 0.0, None),
        ("random:PE-Core-B-16", "PE-Core-B-16", 0.0, None),
    ],
)
def test_temperatures_of_openais_clip_are_for_openais_clip(
    name: str, architecture: str, bias: float, family: str | None
) -> None:
    backbone = FeatureBackbone(8)
    backbone.name, backbone.architecture, backbone.family, backbone.logit_bias = name, architecture, "vit", bias
    if family is None:
        with pytest.raises(OtptError, match="--set temperature"):
            fixed_temperature(temperature_family(backbone))
    else:
        assert temperature_family(backbone) == family
