"""Adaptations and streams of one's own against literal computations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from oracles.methods.own_functions import EXACT, NAMES, RECIPE, backbone, image, learned, oracle, predicted, views
from torch import Tensor

import otpt
from otpt import Classifier
from otpt.methods import compose

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("init", ["", "cocoop+", "maple+"])
def test_an_adaptation_is_the_literal_one(init: str, tmp_path: Path) -> None:
    """Image features centred over the views, as logits: a function of what it asks for, and of nothing else."""
    seen: list[tuple[Tensor, ...]] = []

    @otpt.adaptation
    def centred(features: Tensor, text_features: Tensor, logit_scale: float, zero_shot: Tensor) -> Tensor:
        moved = logit_scale * (features - features.mean(dim=0)) @ text_features.mT
        seen.append((zero_shot, moved))
        return zero_shot + moved

    contexts = learned(init.rstrip("+"), tmp_path)
    found = predicted(f"{init}centred", 1, *contexts)
    zero_shot, moved = seen[0]
    torch.testing.assert_close(found, (zero_shot + moved)[0].softmax(-1), **EXACT)
    assert compose(f"{init}centred").scope == "image"
    if not init:
        literal = oracle()
        texts, scale = literal.text_features(literal.start), backbone().logit_scale
        expected = scale * (2 * views() - views().mean(dim=0))[0] @ texts.t()
        torch.testing.assert_close(found, expected.softmax(-1), **EXACT)


def test_a_stream_carries_its_state_from_image_to_image() -> None:
    @otpt.adaptation
    def mean_so_far(zero_shot: Tensor, state: dict[str, Any]) -> Tensor:
        state["sum"] = state.get("sum", 0) + zero_shot
        state["count"] = state.get("count", 0) + 1
        return state["sum"] / state["count"]

    assert compose("mean-so-far").scope == "stream"
    clf = Classifier(backbone(), "mean-so-far", views=RECIPE).set_classes(NAMES)
    found = [torch.from_numpy(each.probabilities) for each in clf.predict([image(seed) for seed in (1, 2, 3)])]
    literal, total = oracle(), torch.zeros(4, dtype=torch.float64)
    for i, seed in enumerate((1, 2, 3)):
        total = total + literal.logits(clf.encode_views(image(seed))[:1], literal.start)[0]
        torch.testing.assert_close(found[i], (total / (i + 1)).softmax(-1), **EXACT)
