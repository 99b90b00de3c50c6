"""FPP: reference values, the literal pre-training, the same bits under any threads, and the cache."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from open_clip import SimpleTokenizer
from oracles.methods.field import second_texts, texts
from oracles.methods.fpp import literal_fpp
from oracles.methods.literal import LiteralTuner
from oracles.models.tiny import by_threads, tiny_backbone, tiny_clip

import otpt
from otpt.backbones import Backbone
from otpt.errors import OtptError
from otpt.features import FeatureCache
from otpt.methods import Protocol, Setup, Task
from otpt.methods.fpp import Fpp, FppWords, alignment, draw, draw_noise, flatness, fpp_prompt, pretrain

pytestmark = pytest.mark.slow

NAMES = ["cat", "red panda", "2012 BMW M3 coupe", "white-tailed eagle (adult)", "東京タワー"]
FEW = Fpp(fpp_steps=4)


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    return tiny_backbone("vit", "float64")


def test_reference_values() -> None:
    e, e2 = texts(), second_texts()
    assert alignment(e2, e).item() == pytest.approx(0.025273469255, abs=5e-13)
    assert flatness(e2, e[None]).item() == pytest.approx(0.987363265372, abs=5e-13)
    assert flatness(e2, torch.stack([e, e2])).item() == pytest.approx((0.987363265372 + 1) / 2, abs=5e-13)


def test_released_weights_and_that_of_the_papers_text() -> None:
    released, paper = Fpp(), Fpp(fpp_weight_per_class=0.15)
    found = [released.flatness_weight(10, "fine-grained"), released.flatness_weight(397, "fine-grained")]
    found += [released.flatness_weight(1000, "shift"), paper.flatness_weight(10, "fine-grained")]
    assert found == pytest.approx([2.5, 1 + 15 / 397, 1.25, 1.015], abs=1e-15)


def test_learning_rates_fall_by_half_a_cosine() -> None:
    rates = [Fpp().rate(step) for step in range(1000)]
    assert rates[0] == 1e-2
    assert rates[500] == pytest.approx((1e-2 + 1e-4) / 2)
    assert all(a > b > 1e-4 for a, b in pairwise(rates))


@pytest.mark.parametrize(
    ("from_words", "family", "weight", "budget", "plain"),
    [
        (True, "fine-grained", 1 + 15 / 5, 2**31, False),
        (False, "fine-grained", 1 + 15 / 5, 10, False),
        (True, "shift", 1.25, 10, True),
    ],
)
def test_pretraining_is_the_literal_one(
    from_words: bool, family: str, weight: float, budget: int, plain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    backbone = tiny_backbone("vit", "float64")
    if plain:  # the encoder of towers that are not causal, in which noise on padding would count
        monkeypatch.setattr(backbone.text, "causal", None)
    width = backbone.text.width
    kind = FppWords if from_words else Fpp
    start = None if from_words else math.sqrt(0.02) * draw(7, "start", 4, width)
    noises = [draw_noise(7, step, noises=4, tokens=4, length=77, width=width) for step in range(4)]
    model = tiny_clip("vit", dtype=torch.float64)
    expected = literal_fpp(model, SimpleTokenizer(), NAMES, start, noises, weight=weight, steps=4, total=4)
    found = pretrain(backbone, NAMES, kind(fpp_steps=4, fpp_seed=7), family=family, memory_budget=budget).vectors
    assert found is not None
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


def test_noise_has_the_published_variances_and_depends_on_seed_and_step_alone() -> None:
    sizes = {"noises": 4, "tokens": 4, "length": 77, "width": 512}
    on_context, on_tokens = draw_noise(0, 3, **sizes)
    assert (on_context.shape, on_tokens.shape) == ((4, 4, 512), (4, 77, 512))
    assert on_tokens.var().item() == pytest.approx(1, abs=0.02)
    assert on_context.var().item() == pytest.approx(1, abs=0.05)
    torch.manual_seed(5)
    assert torch.equal(on_tokens, draw_noise(0, 3, **sizes)[1])
    for seed, step in ((0, 4), (1, 3)):
        assert not torch.equal(on_tokens, draw_noise(seed, step, **sizes)[1])


@pytest.mark.equality
def test_any_number_of_threads_gives_the_same_bits() -> None:
    backbone = tiny_backbone("vit")
    found = by_threads(lambda: pretrain(backbone, NAMES, FEW).vectors)
    assert all(torch.equal(found[0], each) for each in found)
    assert found[0].dtype == torch.float32


def test_tpt_from_the_context_is_the_literal_one(backbone: Backbone) -> None:
    """``fpp+tpt`` and ``fpp+o-tpt`` tune from FPP's context; ``fpp`` alone predicts under it."""
    inputs = FEW.replace(fpp_seed=3).model_dump(exclude_unset=True)
    methods = [otpt.get_method(name).override(inputs) for name in ("fpp", "fpp+tpt", "fpp+o-tpt")]
    clf = otpt.Classifier(backbone, methods[0], views=otpt.ViewRecipe(n_views=20)).set_classes(NAMES)
    pixels = torch.randn(20, 3, 32, 32, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    (answer,) = clf.classify_features(backbone.encode_pixels(pixels)[None], methods)
    literal = LiteralTuner(tiny_clip("vit", dtype=torch.float64), SimpleTokenizer(), NAMES)
    noises = [draw_noise(3, step, noises=4, tokens=4, length=77, width=backbone.text.width) for step in range(4)]
    literal.start = literal_fpp(
        literal.model,
        SimpleTokenizer(),
        NAMES,
        math.sqrt(0.02) * draw(3, "start", 4, backbone.text.width),
        noises,
        weight=1 + 15 / 5,
        steps=4,
        total=4,
    )
    for name, weights in {
        "fpp": {},
        "fpp+tpt": {"entropy": 1.0},
        "fpp+o-tpt": {"entropy": 1.0, "orthogonality": 18.0},
    }.items():
        expected = literal.predict(pixels, weights=weights)["probabilities"]
        np.testing.assert_allclose(answer[name].probabilities, expected.numpy(), rtol=0, atol=1e-10)


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often a context is computed from now on."""
    from otpt.methods import fpp

    calls = []

    def counting(*given: Any, **more: Any) -> Any:
        calls.append(1)
        return pretrain(*given, **more)

    monkeypatch.setattr(fpp, "pretrain", counting)
    return calls


def test_a_context_is_computed_once_and_read_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, cache = counted(monkeypatch), FeatureCache(tmp_path)
    first_backbone, second_backbone = tiny_backbone("vit"), tiny_backbone("vit")
    task, protocol = Task(classes=NAMES), Protocol()
    start = Setup(first_backbone, task, protocol, (), cache)
    setup = Setup(second_backbone, task, protocol, (), cache)
    first = fpp_prompt(start, FEW)
    assert fpp_prompt(replace(start, cache=None), FEW) is first, "kept in memory too"
    found = fpp_prompt(setup, FEW)
    assert torch.equal(found.vectors, first.vectors)
    assert (found.words, len(calls), cache.info().contexts, cache.info().entries) == (first.words, 1, 1, 0)
    for other, fpp in (
        (setup, FEW.replace(fpp_seed=1)),
        (setup, FEW.replace(fpp_steps=3)),
        (replace(setup, protocol=Protocol(family="shift")), FEW),
        (replace(setup, task=Task(classes=NAMES[:4])), FEW),
        (setup, FppWords(**FEW.model_dump(exclude_unset=True))),
    ):
        assert not torch.equal(fpp_prompt(other, fpp).vectors, first.vectors)
    assert (len(calls), cache.info().contexts) == (6, 6)
    assert cache.clear().contexts == 6
    assert cache.info().bytes == 0


@pytest.mark.parametrize(
    "given",
    [
        {"fpp_steps": 0},
        {"fpp_tokens": 0},
        {"fpp_token_variance": -0.1},
        {"fpp_rate": math.inf},
        {"fpp_weight": math.nan},
    ],
)
def test_bad_input(given: dict[str, Any]) -> None:
    with pytest.raises(OtptError, match=next(iter(given))):
        Fpp(**given)


def test_a_context_that_leaves_all_bounds_is_told(backbone: Backbone) -> None:
    with pytest.raises(OtptError, match="not finite after step 1"):
        pretrain(backbone, NAMES, Fpp(fpp_steps=2, fpp_rate=1e308, fpp_final_rate=1e308, fpp_weight_decay=1e10))
