"""Gates of a batch: exactly the images whose gate is open go through the text tower; answers stay the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from oracles.models.tiny import tiny_backbone
from torch import Tensor
from torch.nn import functional as F

from otpt import Classifier, ViewRecipe
from otpt.backbones import Backbone
from otpt.features.pipeline import EncodedImage, ImageTask
from otpt.methods import Batch, Output, get_methods
from otpt.methods.path import PromptGroup
from otpt.prompts import Linearisation, PromptEncoder

NAMES = ("cat", "dog", "red panda", "sea", "2012 BMW M3 coupe", "house")
RECIPE = ViewRecipe(n_views=20)
OPEN = (1, 4)
"""Images of the batch whose confident views contradict the clean one."""


@contextmanager
def counting() -> Iterator[dict[str, int]]:
    """Passes through the text tower, in contexts and cotangents."""
    passes = {"forward": 0, "backward": 0}

    def counted(patch: pytest.MonkeyPatch, kind: type, name: str, key: str) -> None:
        original = getattr(kind, name)

        def call(self: Any, given: Tensor) -> Tensor:
            passes[key] += len(given)
            found: Tensor = original(self, given)
            return found

        patch.setattr(kind, name, call)

    with pytest.MonkeyPatch.context() as patch:
        counted(patch, PromptEncoder, "encode", "forward")
        counted(patch, Linearisation, "vjp", "backward")
        yield passes


@cache
def backbone() -> Backbone:
    return tiny_backbone("vit", "float64")


def _group(*names: str) -> PromptGroup:
    """A predictor of its own each time: nothing is known from before."""
    classifier = Classifier(backbone(), views=RECIPE).set_classes(NAMES)
    (group,) = classifier._predictor(classifier.task, get_methods(names)).groups
    assert isinstance(group, PromptGroup)
    return group


def _views(text_features: Tensor) -> Tensor:
    """(6, V, D): views near one class's text; in images of :data:`OPEN` the augmented ones are at another's."""
    noise = torch.randn(6, RECIPE.n_views, text_features.shape[1], generator=torch.Generator().manual_seed(3))
    views = text_features[torch.arange(6), None] + 0.05 * noise.double()
    for i in OPEN:
        views[i, 1:] = text_features[(i + 1) % 6]
    return F.normalize(views, dim=-1)


def _predict(group: PromptGroup, views: Tensor) -> list[list[Output]]:
    (kind,) = {recipe.kind for recipe in group.recipes}
    images = [EncodedImage(ImageTask("features", lambda: None, (), 0), {kind: own}) for own in views]
    return group.outputs(Batch(images, 0))


@pytest.mark.parametrize("gate", ["agreement", "cas"])
def test_only_images_with_an_open_gate_are_tuned(gate: str) -> None:
    group, plain = _group(f"tpt+{gate}"), _group("tpt", "zero-shot")
    views = _views(group.state.text_features)
    with counting() as passes:
        (found,) = _predict(group, views)
    assert passes == {"forward": len(OPEN), "backward": len(OPEN)}
    tuned, zero_shot = _predict(plain, views)
    for i, output in enumerate(found):
        assert output.extras["adapted"] == (i in OPEN)
        expected = tuned[i] if i in OPEN else zero_shot[i]
        assert np.array_equal(output.probabilities, expected.probabilities)
        assert output.extras["mean_cosine"] == expected.extras["mean_cosine"]
