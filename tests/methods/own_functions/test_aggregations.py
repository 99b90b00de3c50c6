"""Aggregations of one's own against the literal mean and the clean view."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from oracles.methods.own_functions import (
    EXACT,
    backbone,
    confidences,
    oracle,
    pixels,
    plugin,
    predicted,
    views,
)
from torch import Tensor

import otpt
from otpt import OtptError
from otpt.methods import compose

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("method", ["zero-shot", "tpt", "o-tpt", "tpt+ts"])
def test_a_mean_over_the_views_is_the_literal_one(method: str) -> None:
    @otpt.aggregation
    def own_mean(probabilities: Tensor) -> Tensor:
        return probabilities.mean(dim=0)

    literal = oracle()
    weights = {name: 18.0 if name == "orthogonality" else 1.0 for name in compose(method).objectives}
    context = literal.predict(pixels(), weights=weights)["context"] if weights else literal.start
    logits = literal.logits(views(), context) / (1.16 if "ts" in method else 1.0)
    torch.testing.assert_close(predicted(f"{method}+own-mean"), logits.softmax(-1).mean(0), **EXACT)


def test_what_an_aggregation_may_ask_for() -> None:
    seen: dict[str, Tensor] = {}

    @otpt.aggregation
    def curious(
        logits: Tensor, zero_shot: Tensor, features: Tensor, text_features: Tensor, logit_scale: float, power: float = 2
    ) -> Tensor:
        seen.update(logits=logits, zero_shot=zero_shot, features=features, text_features=text_features)
        assert (logit_scale, power) == (backbone().logit_scale, 2)
        return logits.softmax(-1).mean(0)

    predicted("tpt+curious")
    literal = oracle()
    texts = literal.text_features(literal.start)
    torch.testing.assert_close(seen["features"], views(), **EXACT)
    torch.testing.assert_close(seen["text_features"], texts, **EXACT)
    torch.testing.assert_close(seen["zero_shot"], literal.logits(views(), literal.start), rtol=0, atol=1e-8)
    assert (seen["logits"] - seen["zero_shot"]).abs().max() > 1e-3, "these are the adapted ones"


def test_a_run_remembers_the_code_it_was_made_with(tmp_path: Path) -> None:
    from otpt.registry import snapshot

    restore = snapshot()
    otpt.load_plugin(
        plugin(tmp_path, "ROW = 0\n\n@otpt.aggregation\ndef one(probabilities):\n    return probabilities[ROW]\n")
    )
    confidences(tmp_path / "run", "tpt+one")
    assert confidences(tmp_path / "run", "tpt+one")
    restore()
    otpt.load_plugin(
        plugin(tmp_path, "ROW = 1\n\n@otpt.aggregation\ndef one(probabilities):\n    return probabilities[ROW]\n")
    )
    with pytest.raises(OtptError, match=r"another configuration: .*own_functions\.one is"):
        confidences(tmp_path / "run", "tpt+one")
