"""A backbone of another kind: own image tower, own text tower, own tokenizer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import otpt
from otpt.backbones import Backbone, Preprocessing, TextTower, load_backbone

NAMES = ["cat", "red panda", "dog"]


class BagOfWords(TextTower):
    """A token per word; a text is the sum of what its words say."""

    width, context_length = 16, 40

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.table, self.mix = torch.randn(128, 16), torch.randn(16, 24)

    def tokenize(self, texts: Sequence[str]) -> Tensor:
        ids = torch.zeros(len(texts), self.context_length, dtype=torch.long)
        for row, words in zip(ids, word_ids(texts), strict=True):
            row[: len(words)] = torch.tensor(words, dtype=torch.long)
        return ids

    def embed(self, ids: Tensor) -> Tensor:
        return self.table[ids]

    def encode_embeddings(self, ids: Tensor, embeddings: Tensor) -> Tensor:
        return torch.tanh(embeddings * (ids > 0)[..., None]).sum(dim=1) @ self.mix


def word_ids(texts: Sequence[str]) -> list[list[int]]:
    return [[1 + sum(map(ord, word)) % 127 for word in text.replace(".", " .").split()] for text in texts]


class Foreign(Backbone):
    """An image is its mean colours in a grid of 3 × 3."""

    name, fingerprint, embed_dim = "foreign", "f0" * 12, 24
    preprocessing = Preprocessing(size=30)

    def __init__(self) -> None:
        self.text = BagOfWords()
        self.project = torch.randn(27, 24, generator=torch.Generator().manual_seed(1))

    def encode_pixels(self, pixels: Tensor, *, chunk: int | None = None, unit: bool = True) -> Tensor:
        features = F.adaptive_avg_pool2d(pixels, 3).flatten(1) @ self.project
        return F.normalize(features, dim=-1) if unit else features


@pytest.mark.parametrize("method", ["zero-shot", "tpt", "confident-half"])
def test_methods_run_on_a_foreign_backbone(method: str) -> None:
    backbone = Foreign()
    clf = otpt.Classifier(backbone, method, views=otpt.ViewRecipe(n_views=8)).set_classes(NAMES)
    picture = np.random.default_rng(0).integers(0, 256, (40, 50, 3), dtype=np.uint8)
    found = clf.predict(picture)
    assert found.label in NAMES
    assert found.probabilities.sum() == pytest.approx(1, abs=1e-6)
    if method == "zero-shot":
        ids = backbone.text.tokenize([f"a photo of a {name}." for name in NAMES])
        texts = F.normalize(backbone.text.encode_embeddings(ids, backbone.text.embed(ids)), dim=-1)
        expected = (100 * clf.encode_views(picture)[0] @ texts.T).softmax(dim=-1)
        assert found.probabilities == pytest.approx(expected.numpy(), abs=1e-5)


class Clip(nn.Module):
    """A module with open_clip's interface and nothing else of it."""

    def __init__(self) -> None:
        super().__init__()
        self.visual = nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(12, 6))
        self.token_embedding, self.mix = nn.Embedding(128, 8), nn.Linear(8, 6)
        self.context_length = 32
        self.logit_scale = nn.Parameter(torch.tensor(2.0))

    def encode_text(self, ids: Tensor) -> Tensor:
        mixed: Tensor = self.mix(self.token_embedding(ids).mean(dim=1))
        return mixed


def test_a_module_with_an_own_tower_and_tokenizer() -> None:
    torch.manual_seed(0)
    model = Clip()
    backbone = load_backbone(model, tokenizer=word_ids, preprocess=Preprocessing(size=20))
    assert (backbone.embed_dim, backbone.text.width, backbone.family, backbone.text.causal) == (6, 8, "other", None)
    pixels = torch.randn(3, 3, 20, 20)
    expected = F.normalize(model.visual(pixels), dim=-1)
    torch.testing.assert_close(backbone.encode_pixels(pixels), expected.detach())
    found = otpt.Classifier(backbone, "zero-shot").set_classes(NAMES).predict(np.zeros((20, 20, 3), np.uint8))
    assert found.label in NAMES
