"""MedCLIP-ViT and PLIP as backbones, from files in their published formats."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from oracles.models.medical import TinyMedClip, write_medclip, write_plip
from oracles.models.tiny import tiny_clip
from torch import Tensor
from torch.nn import functional as F
from transformers import BertConfig, SwinConfig

import otpt
from otpt.errors import OtptError
from otpt_medical.medclip import BERT_REPOSITORY, CONTEXT_LENGTH, PREPROCESSING


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("medclip")
    write_medclip(place)
    return place


def literal_text(model: TinyMedClip, ids: Tensor) -> Tensor:
    """Position by position: mean over 25 positions of each of three layers, mean of the three, projection."""
    output = model.bert(input_ids=ids, attention_mask=(ids > 0).long(), output_hidden_states=True)
    layers = [output.hidden_states[k] for k in (1, 2, len(output.hidden_states) - 1)]
    rows = []
    for i in range(len(ids)):
        means = [sum(layer[i, p] for p in range(ids.shape[1])) / ids.shape[1] for layer in layers]
        rows.append(model.text_head(sum(means) / 3))  # type: ignore[arg-type]
    return torch.stack(rows)


def test_both_sides_are_the_published_model(folder: Path) -> None:
    model = TinyMedClip()
    backbone = otpt.load_backbone(f"medclip:{folder}", device="cpu")
    pixels = torch.randn(3, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    expected = F.normalize(model.image_head(model.swin(pixels).pooler_output), dim=-1)
    torch.testing.assert_close(backbone.encode_pixels(pixels), expected)
    ids = backbone.text.tokenize(["covid.", "a photo of a dog."])
    assert ids.shape == (2, CONTEXT_LENGTH) == (2, 25)
    found = backbone.text.encode_embeddings(ids, backbone.text.embed(ids))
    torch.testing.assert_close(found, literal_text(model, ids))
    assert backbone.logit_scale == pytest.approx(1 / 0.07, rel=1e-6)
    assert (backbone.embed_dim, backbone.text.width, backbone.text.causal) == (24, 64, None)


def test_published_constants() -> None:
    assert BERT_REPOSITORY == "emilyalsentzer/Bio_ClinicalBERT"
    assert [round(PREPROCESSING[key][0], 3) for key in ("mean", "std")] == [0.586, 0.28]  # type: ignore[arg-type]
    swin, bert = SwinConfig(), BertConfig()  # Swin-tiny and BERT-base are the defaults
    assert (swin.embed_dim, *swin.depths, *swin.num_heads, swin.window_size) == (96, 2, 2, 6, 2, 3, 6, 12, 24, 7)
    assert (bert.hidden_size, bert.num_hidden_layers, bert.num_attention_heads, bert.intermediate_size) == (
        768, 12, 12, 3072,
    )  # fmt: skip


def test_methods_of_the_core_run_on_it(folder: Path) -> None:
    classifier = otpt.load(f"medclip:{folder}", "o-tpt", device="cpu", views=otpt.ViewRecipe(n_views=4))
    classifier.set_classes(["covid", "normal"])
    from PIL import Image

    prediction = classifier.predict(Image.new("RGB", (60, 50), (90, 120, 30)))
    assert prediction.probabilities.sum() == pytest.approx(1)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s: s.pop("logit_scale"), "logit_scale"),
        (lambda s: [s.pop(k) for k in list(s) if k.startswith("text_model.model")], "embeddings"),
        (lambda s: s.pop("vision_model.model.layernorm.weight"), "SwinModel.*layernorm.weight"),
        (lambda s: s.update({"text_model.model.junk": torch.zeros(1)}), "BertModel.*junk"),
        (lambda s: s.update({"vision_model.model.layernorm.bias": torch.zeros(5)}), "SwinModel.*layernorm.bias"),
        (lambda s: s.pop("text_model.model.embeddings.word_embeddings.weight"), "word_embeddings"),
    ],
)
def test_wrong_weights_are_told(change: object, words: str, folder: Path, tmp_path: Path) -> None:
    state = torch.load(folder / "pytorch_model.bin", weights_only=True)
    change(state)  # type: ignore[operator]
    torch.save(state, tmp_path / "pytorch_model.bin")
    with pytest.raises(OtptError, match=words):
        otpt.load_backbone(f"medclip:{tmp_path}", device="cpu")


def test_bad_places(tmp_path: Path) -> None:
    with pytest.raises(OtptError, match=r"pytorch_model\.bin"):
        otpt.load_backbone(f"medclip:{tmp_path}")
    with pytest.raises(OtptError, match="A name is missing"):
        otpt.load_backbone("medclip:")


def test_plip_loads_by_the_hugging_face_path(tmp_path: Path) -> None:
    model = write_plip(tmp_path)
    backbone = otpt.load_backbone(str(tmp_path), device="cpu")
    pixels = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    expected = model.visual_projection(model.vision_model(pixels).pooler_output)
    torch.testing.assert_close(backbone.encode_pixels(pixels), F.normalize(expected, dim=-1), rtol=1e-4, atol=1e-5)
    assert backbone.text.causal is not None
    assert backbone.text.causal.activation == "quick_gelu"


def test_plip_converted_to_openai_names(tmp_path: Path) -> None:
    """BAPLe's ``plip_model_converted.pt``: a bare state dict without the marks of OpenAI's files."""
    model = tiny_clip("vit", head_width=64)
    torch.save(dict(model.state_dict()), tmp_path / "plip_model_converted.pt")
    backbone = otpt.load_backbone(str(tmp_path / "plip_model_converted.pt"), device="cpu", quick_gelu=True)
    pixels = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    expected = F.normalize(model.encode_image(pixels), dim=-1)
    torch.testing.assert_close(backbone.encode_pixels(pixels), expected, rtol=1e-4, atol=1e-5)
    assert backbone.text.causal is not None
    assert backbone.text.causal.activation == "quick_gelu"
