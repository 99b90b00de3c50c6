"""Gates: bit for bit the method that they open or close."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from oracles.methods.own_functions import classifier, image, learned, oracle
from torch import Tensor

import otpt

pytestmark = pytest.mark.slow


@pytest.mark.equality
@pytest.mark.parametrize("method", ["tpt", "o-tpt+sals", "cocoop+tpt", "maple+o-tpt", "moved", "tpt+own-mean"])
def test_a_gate_that_is_always_open_or_closed(method: str, tmp_path: Path) -> None:
    """Bit for bit the method without gate, or the same with nothing adapted."""

    @otpt.gate
    def always(zero_shot: Tensor) -> bool:
        assert zero_shot.shape == (20, 4)
        return True

    @otpt.gate
    def never(features: Tensor, text_features: Tensor) -> Tensor:
        return torch.tensor(False)

    @otpt.adaptation
    def moved(zero_shot: Tensor, features: Tensor) -> Tensor:
        return zero_shot + features[:, :4]

    @otpt.aggregation
    def own_mean(probabilities: Tensor) -> Tensor:
        return probabilities.mean(dim=0)

    contexts = learned(method.split("+")[0], tmp_path)
    kept = "+".join(part for part in method.split("+") if part not in ("tpt", "o-tpt", "moved")) or "zero-shot"
    kept = f"zero-shot+{kept}" if kept in ("sals", "own-mean") else kept
    names = [method, kept, f"{method}+always", f"{method}+never"]
    found = classifier(*contexts).compare(image(1), names, image_id="p")
    assert np.array_equal(found[f"{method}+always"].probabilities, found[method].probabilities)
    assert np.array_equal(found[f"{method}+never"].probabilities, found[kept].probabilities)
    assert not np.array_equal(found[method].probabilities, found[kept].probabilities)
    assert (found[f"{method}+always"].extras["adapted"], found[f"{method}+never"].extras["adapted"]) == (1.0, 0.0)
    assert found[f"{method}+never"].mean_cosine == found[kept].mean_cosine


def test_a_gate_decides_image_by_image() -> None:
    @otpt.gate
    def views_disagree(zero_shot: Tensor) -> bool:
        return bool(zero_shot[0].argmax() != zero_shot.mean(dim=0).argmax())

    @otpt.adaptation
    def moved(zero_shot: Tensor) -> Tensor:
        called.append(zero_shot)
        return zero_shot + torch.arange(4)

    called: list[Tensor] = []
    clf = classifier()
    answers = [clf.compare(image(seed), ["zero-shot", "tpt", "moved+views-disagree"]) for seed in range(8)]
    disagree = []
    for seed, answer in enumerate(answers):
        literal = oracle()
        logits = literal.logits(clf.encode_views(image(seed)), literal.start)
        disagree.append(int(logits[0].argmax()) != int(logits.sum(dim=0).argmax()))
        expected = answer["moved+views-disagree"].extras["adapted"]
        assert expected == float(disagree[-1])
        same = np.array_equal(answer["moved+views-disagree"].probabilities, answer["zero-shot"].probabilities)
        assert same == (not disagree[-1])
    assert 0 < sum(disagree) < 8, "or the test shows nothing"
    assert len(called) == sum(disagree), "a closed gate spares the work"
