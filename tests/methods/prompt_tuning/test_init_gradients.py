"""Gradients at the start context: what a store is told is the literal gradient, and what it says is believed."""

from __future__ import annotations

import pytest
import torch
from oracles.methods.literal import LiteralTuner
from oracles.models.tiny import tiny_backbone, tiny_clip, tokenizer
from otpt.methods.prompt_tuning.gradients import ViewObjective
from torch import Tensor
from torch.nn.functional import normalize

from otpt.methods import get_method
from otpt.methods.prompt_tuning import PromptState, TuningConfig, prompt_state, tune
from otpt.prompts import Linearisation

NAMES = ["cat", "dog", "red panda", "2012 BMW M3 coupe", "sea"]


class Store(dict[ViewObjective, Tensor]):
    """In memory; counts the questions."""

    on_host = False

    asked = 0

    def get(self, objective: ViewObjective, default: Tensor | None = None) -> Tensor | None:
        self.asked += 1
        return super().get(objective, default)

    def put(self, objective: ViewObjective, gradient: Tensor) -> None:
        assert objective not in self
        self[objective] = gradient


@pytest.fixture(scope="module")
def text() -> PromptState:
    return prompt_state(tiny_backbone("vit", "float64"), NAMES)


@pytest.fixture(scope="module")
def views() -> Tensor:
    """(2, 30, 32)"""
    generator = torch.Generator().manual_seed(3)
    return normalize(torch.randn(2, 30, 32, generator=generator, dtype=torch.float64), dim=-1)


def config(name: str) -> TuningConfig:
    found = get_method(name).tuning("fine-grained")
    assert found is not None
    return found


@pytest.mark.parametrize("name", ["tpt", "tpt+zs"])
def test_a_store_is_told_the_literal_gradient(name: str, text: PromptState, views: Tensor) -> None:
    stores = [Store(), Store()]
    tune(text, views, [config(name)], known=stores)
    oracle = LiteralTuner(tiny_clip("vit", dtype=torch.float64), tokenizer(), NAMES)
    for image, store in zip(views, stores, strict=True):
        context = oracle.start.clone().requires_grad_()
        logits = oracle.logits(image, context)
        entropies = -(logits.softmax(1) * logits.log_softmax(1)).sum(1)
        selected = logits[entropies.argsort()[:3]]
        ((objective, _),) = config(name).weights
        bounds = selected[0].min(), selected[0].max()
        loss = oracle._objective(objective, selected, oracle.text_features(context), bounds, {})
        (expected,) = torch.autograd.grad(loss, context)
        assert list(store) == [ViewObjective(objective, "" if objective == "entropy" else "confident", 3)]
        torch.testing.assert_close(store[next(iter(store))], expected, rtol=1e-9, atol=1e-12)


def test_what_a_store_says_is_believed_and_nothing_is_computed(
    text: PromptState, views: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    gradients = torch.randn(2, 4, 64, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    stores = [Store({ViewObjective("entropy", "", 3): gradient}) for gradient in gradients]

    def refuse(self: Linearisation, cotangents: Tensor) -> Tensor:
        raise AssertionError("a backward pass")

    monkeypatch.setattr(Linearisation, "vjp", refuse)
    found = tune(text, views, [config("tpt")], known=stores)[config("tpt")]
    for gradient, context in zip(gradients, found.contexts, strict=True):
        leaf = text.init.clone().requires_grad_()
        leaf.grad = gradient
        torch.optim.AdamW([leaf], lr=5e-3, weight_decay=0.01).step()
        torch.testing.assert_close(context, leaf.detach(), rtol=0, atol=1e-12)


def test_plans_share_one_question_and_several_steps_ask_none(text: PromptState, views: Tensor) -> None:
    one = [Store()]
    tune(text, views[:1], [config("tpt"), config("c-tpt"), config("o-tpt")], known=one)
    assert (one[0].asked, len(one[0])) == (1, 1)
    two_steps = get_method("tpt").override({"steps": "2"}).tuning("fine-grained")
    none = [Store()]
    assert two_steps is not None
    tune(text, views[:1], [two_steps], known=none)
    assert (none[0].asked, len(none[0])) == (0, 0)


def test_a_gradient_that_is_not_finite_stays_so(text: PromptState, views: Tensor) -> None:
    """An image that kept the start context keeps it when its gradient comes from a store."""
    bad = torch.full_like(text.init, torch.nan)
    found = tune(text, views, [config("tpt")], known=[Store({ViewObjective("entropy", "", 3): bad}), Store()])[
        config("tpt")
    ]
    assert found.skipped.tolist() == [True, False]
    assert torch.equal(found.contexts[0], text.init)
