"""Objects that inherit from nothing as backbones, and backbones without a text encoder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

import otpt
from otpt.backbones import (
    Backbone,
    ClipBackbone,
    FeatureBackbone,
    ImageEncoder,
    TextEncoder,
    as_backbone,
    has_text_encoder,
    is_backbone,
    load_backbone,
    text_encoder,
)
from otpt.errors import OtptError

NAMES = ["cat", "red panda", "dog"]


class Text:
    """Core of a text encoder."""

    def __init__(self, wrapped: TextEncoder) -> None:
        self._wrapped = wrapped
        self.width, self.context_length = wrapped.width, wrapped.context_length

    def tokenize(self, texts: Sequence[str]) -> Tensor:
        return self._wrapped.tokenize(texts)

    def embed(self, ids: Tensor) -> Tensor:
        return self._wrapped.embed(ids)

    def encode_embeddings(self, ids: Tensor, embeddings: Tensor) -> Tensor:
        return self._wrapped.encode_embeddings(ids, embeddings)


class Core:
    """Core of a backbone."""

    def __init__(self, wrapped: ClipBackbone) -> None:
        self._wrapped = wrapped
        self.name, self.fingerprint = "mine", wrapped.fingerprint
        self.preprocessing, self.embed_dim = wrapped.preprocessing, wrapped.embed_dim
        self.text = Text(wrapped.text)

    def encode_pixels(self, pixels: Tensor, *, chunk: int | None = None, unit: bool = True) -> Tensor:
        return self._wrapped.encode_pixels(pixels, chunk=chunk, unit=unit)


class Fuller(Core):
    """Also the optional members that have other values than the defaults."""

    def __init__(self, wrapped: ClipBackbone) -> None:
        super().__init__(wrapped)
        self.logit_scale, self.logit_bias = wrapped.logit_scale, wrapped.logit_bias
        self.family, self.chunk = wrapped.family, wrapped.chunk
        self.text.causal = wrapped.text.causal  # type: ignore[attr-defined]


def pocket_with_defaults() -> ClipBackbone:
    """Return ``pocket`` with the defaults of the protocols instead of its own values."""
    backbone = load_backbone("pocket", device="cpu")
    backbone.logit_scale, backbone.family, backbone.chunk = 100.0, "other", 8
    backbone.text.causal = None
    return backbone


def picture(seed: int = 0) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (80, 90, 3), dtype=np.uint8))


def probabilities(backbone: object, method: str) -> np.ndarray:
    clf = otpt.Classifier(backbone, method, views=16).set_classes(NAMES)  # type: ignore[arg-type]
    return np.stack([found.probabilities for found in clf.predict([picture(0), picture(1)])])


@pytest.mark.parametrize("method", ["zero-shot", "o-tpt", "confident-half"])
def test_an_object_with_the_core_predicts_as_the_model_in_it(method: str) -> None:
    wrapped = pocket_with_defaults()
    assert np.array_equal(probabilities(Core(wrapped), method), probabilities(wrapped, method))


@pytest.mark.parametrize("method", ["zero-shot", "o-tpt"])
def test_optional_members_are_used(method: str) -> None:
    wrapped = load_backbone("pocket", device="cpu")
    assert np.array_equal(probabilities(Fuller(wrapped), method), probabilities(wrapped, method))
    assert not np.array_equal(probabilities(Core(wrapped), method), probabilities(wrapped, method))


def test_an_object_is_evaluated(tmp_path: Path) -> None:
    class Pictures(list[tuple[Image.Image, int]]):
        classes = NAMES

    wrapped = pocket_with_defaults()
    data = Pictures([(picture(seed), seed % 3) for seed in range(4)])
    frames = []
    for name, backbone in (("object", Core(wrapped)), ("model", wrapped)):
        result = otpt.evaluation.evaluate(data, backbone, methods=["zero-shot", "tpt"], views=4, out=tmp_path / name)
        frames.append(result.frame.drop(columns=["model", "run"], errors="ignore"))
    assert frames[0].equals(frames[1])


def test_defaults() -> None:
    core = Core(load_backbone("pocket", device="cpu"))
    backbone = as_backbone(core)
    assert isinstance(backbone, Backbone)
    assert as_backbone(backbone) is backbone
    assert (backbone.name, backbone.logit_scale, backbone.logit_bias, backbone.visual) == ("mine", 100.0, 0.0, None)
    assert (backbone.device, backbone.dtype, backbone.precision) == (torch.device("cpu"), torch.float32, "float32")
    assert backbone.views_at_once >= 64
    assert backbone.to("cpu") is backbone
    assert "mine" in repr(backbone)
    text = text_encoder(backbone)
    assert isinstance(text, TextEncoder)
    assert (text.width, text.causal, text.start_length) == (core.text.width, None, 1)
    assert text.lengths(text.tokenize(["cat", "red panda"])).tolist() == [3, 4]
    core.logit_scale = 50.0  # type: ignore[attr-defined]
    assert backbone.logit_scale == 50.0


def test_a_class_may_inherit_the_defaults() -> None:
    class Mine(Core, Backbone):
        pass

    backbone = Mine(load_backbone("pocket", device="cpu"))
    assert (backbone.family, backbone.chunk) == ("other", 8)
    completed = as_backbone(backbone)  # its text encoder inherits nothing
    assert text_encoder(completed).start_length == 1


def test_a_complete_object_is_not_wrapped() -> None:
    backbone = load_backbone("pocket", device="cpu")
    assert as_backbone(backbone) is backbone
    assert isinstance(backbone, ImageEncoder)
    assert isinstance(backbone.text, TextEncoder)
    assert text_encoder(backbone) is backbone.text


def test_an_incomplete_object_is_refused() -> None:
    core = Core(load_backbone("pocket", device="cpu"))
    del core.embed_dim
    assert not is_backbone(core)
    with pytest.raises(OtptError, match="Core without embed_dim"):
        otpt.Classifier(core, "zero-shot")  # type: ignore[arg-type]
    core.embed_dim, core.text = 192, object()  # type: ignore[assignment]
    with pytest.raises(OtptError, match="width, context_length, tokenize"):
        as_backbone(core)
    with pytest.raises(OtptError, match=r"otpt\.Classifier"):
        load_backbone(as_backbone(Core(load_backbone("pocket", device="cpu"))))


def test_a_backbone_of_features_has_no_text_encoder() -> None:
    backbone = FeatureBackbone(8, name="ViT-B-16")
    assert is_backbone(backbone)
    assert isinstance(backbone, Backbone)
    assert backbone.text is None
    assert not has_text_encoder(backbone)
    assert has_text_encoder(load_backbone("pocket", device="cpu"))
    assert not has_text_encoder(object())
    with pytest.raises(OtptError, match="text tower"):
        text_encoder(backbone)
    with pytest.raises(OtptError, match="only features"):
        backbone.encode_pixels(torch.zeros(1, 3, 224, 224))
