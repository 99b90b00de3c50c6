"""Heat maps from crops."""

from __future__ import annotations

import numpy as np
import pytest
from oracles.models.pocket import pocket
from PIL import Image

import otpt
from otpt.errors import OtptError
from otpt.explain import SHRINKAGE, heat_map
from otpt.views.draws import CropBox


def test_the_map_is_the_formula() -> None:
    boxes = [CropBox(0, 0, 4, 4), CropBox(2, 2, 6, 6), CropBox(5, 0, 3, 8)]
    scores = np.array([1.0, -2.0, 0.5])
    weights = np.array([1 / 16, 1 / 36, 1 / 24])
    weights /= weights.mean()
    centred = scores - np.average(scores, weights=weights)
    inside = np.zeros((3, 8, 8))
    for own, box in zip(inside, boxes, strict=True):
        own[box.top : box.top + box.height, box.left : box.left + box.width] = 1
    coverage = np.einsum("n,nyx->yx", weights, inside)
    expected = np.einsum("n,nyx->yx", weights * centred, inside) / (coverage + SHRINKAGE * coverage.mean())
    np.testing.assert_allclose(heat_map(scores, boxes, 8, 8), expected, atol=1e-12)


def test_the_peak_is_in_the_object() -> None:
    """An apple in a corner of a large plain image."""
    data = otpt.data.emoji.load_emoji("emoji/food")
    apple = data.class_names.index("red apple")
    image = Image.new("RGB", (384, 384), (235, 240, 245))
    image.paste(data.image(apple), (240, 16))
    found = (
        otpt.Classifier(pocket(), "zero-shot").set_classes(["red apple", "pizza", "hammer"]).explain(image, "red apple")
    )
    x, y = found.peak
    assert 240 <= x < 368
    assert 16 <= y < 144
    assert found.overlay().size == image.size
    assert found.values.shape == (256, 256)
    assert found.label == "red apple"
    assert found._repr_png_().startswith(b"\x89PNG")


@pytest.mark.parametrize(("label", "crops", "value"), [("pear", 64, "pear"), (None, 1, "1")])
def test_bad_input(label: str | None, crops: int, value: str) -> None:
    clf = otpt.Classifier(pocket(), "zero-shot").set_classes(["red apple", "pizza"])
    with pytest.raises(OtptError, match=value):
        clf.explain(Image.new("RGB", (32, 32)), label, crops=crops)
