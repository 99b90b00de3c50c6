"""``--precision``: what low precision reaches, computed on the CPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from oracles.models.tiny import tiny_backbone
from oracles.runs.evaluation_bench import NAMES, image

from otpt import Classifier
from otpt.methods.state import prompt_state


@pytest.mark.parametrize("kind", ["bf16", "fp16"])
def test_low_precision_of_both_towers_reaches_texts_and_gradients(kind: str) -> None:
    sides = {name: prompt_state(tiny_backbone("vit", name), NAMES[:3]) for name in ("float32", kind, f"{kind}-both")}
    cotangent = torch.ones_like(sides["float32"].text_features)[None]
    found = {name: (side.text_features, side.linearisation.vjp(cotangent)) for name, side in sides.items()}
    for plain, image_only, both in zip(*found.values(), strict=True):
        assert torch.equal(plain, image_only)
        assert both.dtype == torch.float32
        difference = (both - plain).norm() / plain.norm()
        assert 1e-5 < difference < 0.2


@pytest.mark.parametrize("precision", ["bf16-both", "fp16-both"])
def test_names_that_begin_alike_have_low_precision_too(precision: str) -> None:
    names = [f"{colour} {animal}" for colour in ("red", "blue", "old") for animal in ("cat", "dog", "sea lion")]
    plain, low = (prompt_state(tiny_backbone("vit", each), names).text_features for each in ("float32", precision))
    assert 0 < (plain - low).abs().max() < 0.05


@pytest.mark.parametrize("precision", ["bf16", "bf16-both", "fp16", "fp16-both"])
def test_methods_in_low_precision(precision: str) -> None:
    methods = ["zero-shot", "o-tpt", "tpt+sals", "tps", "zero"]
    answers = [
        Classifier(tiny_backbone("vit", each), "tpt", views=6).set_classes(NAMES).compare(image(1), methods)
        for each in ("float32", precision)
    ]
    for name in methods:
        assert answers[1][name].probabilities.sum() == pytest.approx(1, abs=1e-3)
        difference = np.abs(answers[0][name].probabilities - answers[1][name].probabilities).max()
        assert difference < 0.2, name
