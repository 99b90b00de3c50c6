"""``frozen-below``: unlikely classes keep their initial text features; against the formula, class by class."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from oracles.methods.householder import literal_householder
from oracles.methods.literal import LiteralTuner
from oracles.models.tiny import tiny_backbone, tiny_clip, tokenizer
from torch import Tensor
from torch.nn import functional as F

from otpt import Method, OtptError, functional
from otpt.methods import get_method
from otpt.methods.names.facts import method_numbers
from otpt.methods.prompt_tuning import AttributeTextSide, TextSide, TuningConfig, tune
from otpt.methods.prompt_tuning.frozen_classes import tuned_classes

NAMES = [f"{colour} {animal}" for colour in ("red", "blue", "old") for animal in ("cat", "dog", "panda", "sea lion")]
BELOW = 0.02


@cache
def _case() -> tuple[LiteralTuner, TextSide, Tensor]:
    """(oracle, text side, views (2, 20, D) near two classes each) in float64."""
    backbone = tiny_backbone("vit", "float64")
    text = TextSide(backbone, NAMES)
    noise = torch.randn(2, 20, backbone.embed_dim, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    centres = text.text_features[[0, 5]] + text.text_features[[7, 2]]
    views = F.normalize(F.normalize(centres, dim=-1)[:, None] + 0.04 * noise, dim=-1)
    return LiteralTuner(tiny_clip("vit", dtype=torch.float64), tokenizer(), NAMES), text, views


def _config(name: str, below: float) -> TuningConfig:
    config = get_method(name).override({"frozen-below": below}).tuning("fine-grained")
    assert config is not None
    return config


def _literal(oracle: LiteralTuner, views: Tensor, below: float, penalty: float) -> tuple[Tensor, int]:
    """Logits of the clean view by autograd: frozen rows are detached in the entropy, and not replaced in the end."""
    scale = oracle.model.logit_scale.exp()
    context = oracle.start.clone().requires_grad_()
    features = oracle.text_features(context)
    start = features.detach().clone()
    shares = (scale * views @ start.t()).softmax(1)
    chosen = torch.argsort(-(shares * shares.log()).sum(1))[: int(len(views) * 0.1)]
    likely = {c for v in chosen.tolist() for c in range(len(NAMES)) if shares[v, c] >= below}
    likely |= {int(shares[v].argmax()) for v in chosen.tolist()}
    rows = [features[c] if c in likely else start[c] for c in range(len(NAMES))]
    mean = (scale * views[chosen] @ torch.stack(rows).t()).softmax(1).mean(0)
    loss = -(mean * mean.log()).sum() + penalty * literal_householder(features)
    optimiser = torch.optim.AdamW([context], lr=5e-3, weight_decay=0.01)
    loss.backward()
    optimiser.step()
    with torch.no_grad():
        tuned = oracle.text_features(context)
        final = torch.stack([tuned[c] if c in likely else start[c] for c in range(len(NAMES))])
        return scale * views[0] @ final.t(), len(likely)


@pytest.mark.parametrize(("name", "penalty"), [("tpt", 0.0), ("o-tpt", 18.0)])
def test_equals_the_formula(name: str, penalty: float) -> None:
    oracle, text, views = _case()
    config = _config(name, BELOW)
    found = tune(text, views, [config], keep_texts=True)[config]
    exact = tune(text, views, [_config(name, 0)])[_config(name, 0)]
    for i, image in enumerate(views):
        expected, count = _literal(oracle, image, BELOW, penalty)
        assert count == len(tuned_classes(text, image, config)) <= len(NAMES) // 2, "or nothing is frozen"
        torch.testing.assert_close(found.logits[i], expected, rtol=0, atol=1e-9)
        kept = (found.text_features[i] == text.text_features).all(dim=1)
        assert int(kept.sum()) == len(NAMES) - count
    assert not torch.allclose(found.logits, exact.logits, rtol=0, atol=1e-6), "it is an approximation"


def test_where_few_classes_would_be_frozen_the_answer_is_exact() -> None:
    _, text, views = _case()
    found, exact = (tune(text, views, [each])[each] for each in (_config("o-tpt", 1e-300), _config("o-tpt", 0)))
    assert torch.equal(found.logits, exact.logits)


@pytest.mark.equality
def test_an_image_does_not_see_its_neighbours() -> None:
    _, text, views = _case()
    configs = [_config("tpt", BELOW), _config("o-tpt", BELOW), _config("tpt", 0)]
    together, alone = tune(text, views, configs), tune(text, views[1:], configs[1:2])
    assert torch.equal(together[configs[1]].logits[1:], alone[configs[1]].logits)
    assert len(together) == 3


def test_all_texts_of_a_class_are_frozen_together() -> None:
    side = AttributeTextSide(tiny_backbone("vit", "float64"), NAMES, dict.fromkeys(NAMES, ("big", "small")))
    _, _, views = _case()
    config = _config("tpt", 0.1)
    found = tune(side, views, [config], keep_texts=True)[config]
    for i, image in enumerate(views):
        classes = tuned_classes(side, image, config)
        assert len(classes) <= len(NAMES) // 2
        changed = (found.text_features[i] != side.text_features).any(dim=1).nonzero()[:, 0]
        assert changed.tolist() == side.texts_of(classes).tolist()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: get_method("tpt").override({"frozen-below": 1}), "expected 0 or more, below 1"),
        (lambda: get_method("tpt").override({"frozen-below": 0.1, "steps": 2}), "it is for one step"),
        (lambda: get_method("zero-shot").override({"frozen-below": 0.1}), "tunes nothing"),
        (lambda: get_method("cocoop+tpt").override({"frozen-below": 0.1}), "init = 'cocoop'"),
        (lambda: Method("mine", {"dispersion": 1.0}, frozen_below=0.1), "an objective of the views"),
    ],
)
def test_where_it_cannot_be(make, message: str) -> None:
    with pytest.raises(OtptError, match=message):
        make()


def test_a_function_of_the_callers_cannot_leave_classes_out() -> None:
    oracle, _, views = _case()
    method = get_method("tpt").override({"frozen-below": BELOW})
    with pytest.raises(OtptError, match="encodes all of them cannot"):
        functional.tune(views, oracle.text_features, oracle.start, method=method)


def test_it_is_among_a_methods_numbers_only_where_it_is_set() -> None:
    assert "frozen_below" not in method_numbers(get_method("tpt"))
    assert method_numbers(get_method("tpt").override({"frozen-below": 0.1}))["frozen_below"] == 0.1
