"""The embedded model of photographs."""

from __future__ import annotations

import pytest
import torch
from open_clip import CLIP

from otpt import Classifier, load
from otpt.backbones import ClipBackbone, load_backbone
from otpt.backbones.pocket_photo import CONFIG, load_pocket_photo
from otpt.data import photograph
from otpt.data.photographs import PHOTOGRAPH_CLASSES

EVERYDAY = ["cat", "dog", "car", "cup of coffee", "tree", "rocket", "chair", "bird", "pizza", "house"]


@pytest.fixture(scope="module")
def backbone() -> ClipBackbone:
    return load_backbone("pocket-photo", device="cpu")


@pytest.fixture(scope="module")
def classifier(backbone: ClipBackbone) -> Classifier:
    return Classifier(backbone, "zero-shot")


def texts(backbone: ClipBackbone, names: list[str]) -> torch.Tensor:
    ids = backbone.text.tokenize([f"a photo of a {name}." for name in names])
    return torch.nn.functional.normalize(load_pocket_photo().model.encode_text(ids), dim=-1)


@pytest.mark.parametrize("name", list(PHOTOGRAPH_CLASSES))
def test_photographs_are_recognised(classifier: Classifier, name: str) -> None:
    answer = classifier.set_classes(PHOTOGRAPH_CLASSES[name]).predict(photograph(name))
    assert answer.label == PHOTOGRAPH_CLASSES[name][0]


def test_texts_lie_in_a_cone_as_those_of_clip(backbone: ClipBackbone) -> None:
    cosines = texts(backbone, EVERYDAY)
    cosines = cosines @ cosines.T
    mean = float(cosines[~torch.eye(len(EVERYDAY), dtype=torch.bool)].mean())
    assert 0.6 <= mean <= 0.8


def test_images_are_far_from_texts(backbone: ClipBackbone) -> None:
    clf = Classifier(backbone, "zero-shot")
    images = torch.as_tensor(clf.embed([photograph(name) for name in PHOTOGRAPH_CLASSES], workers=0))
    gap = images.mean(0) - texts(backbone, EVERYDAY).mean(0)
    assert float(gap.norm()) > 0.5


def test_words_of_the_context_can_be_tuned(backbone: ClipBackbone) -> None:
    clf = Classifier(backbone, "tpt").set_classes(EVERYDAY)
    answers = clf.compare(photograph("coffee"), ["zero-shot", "tpt"])
    assert answers["tpt"].probabilities.tolist() != answers["zero-shot"].probabilities.tolist()


def test_open_clip_gives_the_same_features(backbone: ClipBackbone) -> None:
    parts = load_pocket_photo()
    assert isinstance(parts.model, CLIP)
    pixels = torch.randn(2, 3, 224, 224, generator=torch.Generator().manual_seed(5))
    expected = parts.model.encode_image(pixels, normalize=True)
    torch.testing.assert_close(backbone.encode_pixels(pixels), expected, rtol=0, atol=1e-5)


def test_configuration_of_open_clip() -> None:
    assert CONFIG["model_cfg"]["vision_cfg"]["image_size"] == 224
    assert load("pocket-photo", device="cpu").backbone.preprocessing.size == 224
