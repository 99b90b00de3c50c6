"""Objectives of one's own against the literal tuner."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from oracles.methods.own_functions import EXACT, confidences, learned, oracle, plugin, predicted, tuned_context, views
from torch import Tensor

import otpt
from otpt.features import FeatureCache
from otpt.methods import compose

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("steps", [1, 2])
def test_an_objective_on_texts_is_the_literal_one(steps: int) -> None:
    @otpt.objective(weight=3.0)
    def closeness(text_features: Tensor) -> Tensor:
        gram = text_features @ text_features.mT
        return (gram.sum(dim=(-2, -1)) - gram.diagonal(dim1=-2, dim2=-1).sum(dim=-1)) / 12

    def own(_: Tensor, texts: Tensor, __: Tensor) -> Tensor:
        gram = texts @ texts.t()
        return 3.0 * (gram.sum() - gram.trace()) / 12

    context = tuned_context({"entropy": 1.0}, own, steps)
    expected = oracle().logits(views()[:1], context)[0].softmax(-1)
    method = compose("tpt+closeness").override({"steps": steps})
    assert dict(method.objectives) == {"entropy": 1.0, "closeness": 3.0}
    torch.testing.assert_close(predicted(method), expected, **EXACT)
    assert (predicted("tpt") - expected).abs().max() > 1e-5


@pytest.mark.parametrize("steps", [1, 2])
def test_an_objective_on_views_is_the_literal_one(steps: int) -> None:
    @otpt.objective
    def my_entropy(logits: Tensor) -> Tensor:
        mean = logits.softmax(dim=-1).mean(dim=-2)
        return -(mean * mean.log()).sum(dim=-1)

    own, ours = (compose(name).override({"steps": steps}) for name in ("my-entropy", "tpt"))
    torch.testing.assert_close(predicted(own), predicted(ours), **EXACT)


def test_an_objective_may_ask_for_the_initial_texts() -> None:
    """At the init its gradient is zero, so the second step shows it."""

    @otpt.objective(weight=40.0)
    def staying(text_features: Tensor, initial_text_features: Tensor) -> Tensor:
        return (text_features - initial_text_features).square().sum(dim=(-2, -1))

    context = tuned_context({"entropy": 1.0}, lambda _, texts, initial: 40.0 * (texts - initial).square().sum(), 2)
    expected = oracle().logits(views()[:1], context)[0].softmax(-1)
    method = compose("tpt+staying").override({"steps": 2})
    torch.testing.assert_close(predicted(method), expected, **EXACT)


def test_an_objective_runs_on_maple(tmp_path: Path) -> None:
    @otpt.objective(weight=50.0, maximise=True)
    def my_dispersion(text_features: Tensor) -> Tensor:
        return (text_features - text_features.mean(dim=-2, keepdim=True)).norm(dim=-1).mean(dim=-1)

    contexts = learned("maple", tmp_path)
    own, ours = (predicted(name, 1, *contexts) for name in ("maple+tpt+my-dispersion", "maple+c-tpt"))
    torch.testing.assert_close(own, ours, **EXACT)


def test_kept_gradients_belong_to_the_code_of_an_objective(tmp_path: Path) -> None:
    """Another function of the same name must not get the gradients of the one before."""
    from otpt.registry import snapshot

    restore = snapshot()
    cache = FeatureCache(tmp_path / "cache")
    found = []
    for number, sign in enumerate(("", "-")):
        path = plugin(tmp_path, f"@otpt.objective\ndef own(logits):\n    return {sign}logits.std(dim=(-2, -1))\n")
        otpt.load_plugin(path)
        found.append(confidences(tmp_path / f"with-{number}", "own", cache))
        assert found[-1] == confidences(tmp_path / f"again-{number}", "own", cache)
        assert found[-1] == confidences(tmp_path / f"without-{number}", "own")
        restore()
    assert found[0] != found[1]
