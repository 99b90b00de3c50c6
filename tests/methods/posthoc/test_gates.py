"""The gates: reference values, the literal way, what a closed gate spares and keeps."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from oracles.methods import field, posthoc
from oracles.methods.posthoc_bench import SOME_DISAGREE, answers

from otpt.methods.gates import agreement, cas, strong_agreement

pytestmark = pytest.mark.slow


def test_the_reference_values_of_the_gates() -> None:
    logits = field.logits()
    assert posthoc.confident(logits.tolist()) == [33, 29, 21, 5, 61, 56]
    closed, extras = cas(logits)
    assert not closed, "0.98 is above the threshold"
    assert extras["cas"] == pytest.approx(0.983064030508, abs=1e-12)
    assert extras["agreeing_views"] == 2
    assert cas(logits, cas_threshold=0.99)[0]
    assert agreement(logits) == strong_agreement(logits) == (True, {"agreeing_views": 2.0})


@pytest.mark.parametrize("seed", range(12))
def test_gates_are_the_literal_ones(seed: int) -> None:
    logits = 2 * torch.randn(41, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    logits[:, seed % 4] += seed / 3  # from views that disagree to views that agree
    rows = logits.tolist()
    score, agreeing = posthoc.cas(rows)
    found, extras = cas(logits)
    assert extras == {"cas": pytest.approx(score, abs=1e-12), "agreeing_views": agreeing}
    assert found == (score < 0.5)
    assert agreement(logits) == (agreeing < 4, {"agreeing_views": agreeing})
    assert cas(logits, cas_threshold=1.0)[0] == (agreeing < 4), "1 exactly where all agree"
    same = sum(posthoc.label(rows[i]) == posthoc.label(rows[0]) for i in posthoc.strong(rows))
    assert strong_agreement(logits) == (same < 4, {"agreeing_views": same})


def test_the_fraction_of_views_that_a_gate_asks() -> None:
    logits = torch.tensor([[3.0, 0.0], [9.0, 0.0], [8.0, 0.0], [0.0, 7.0]])
    assert not agreement(logits, gate_ratio=0.5)[0]
    assert agreement(logits, gate_ratio=0.75)[0]
    assert not strong_agreement(logits, strong_ratio=0.7)[0]
    assert strong_agreement(logits, strong_ratio=1.0)[0]


def test_views_that_share_nothing_with_the_clean_one_have_no_score() -> None:
    logits = torch.tensor([[1000.0, 0.0, 900.0], [0.0, 2000.0, 0.0], [0.0, 2000.0, 0.0]])
    assert cas(logits, gate_ratio=0.7) == (True, {"cas": 0.0, "agreeing_views": 0.0})


def test_a_gated_image_keeps_the_zero_shot_confidence_under_cots() -> None:
    """Where nothing was adapted the temperature is 1 exactly."""
    kept = 0
    for seed in SOME_DISAGREE:
        found = answers(seed, ("tpt+agreement+e-cots", "tpt+agreement+cots", "zero-shot", "zero-shot+weak-strong"))
        closed = found["tpt+agreement+cots"].extras["adapted"] == 0
        kept += closed
        assert (found["tpt+agreement+cots"].extras["temperature"] == 1.0) == closed
        for gated, plain in (("cots", "zero-shot"), ("e-cots", "zero-shot+weak-strong")):
            same = np.allclose(
                found[f"tpt+agreement+{gated}"].probabilities, found[plain].probabilities, rtol=0, atol=1e-12
            )
            assert same == closed
    assert 0 < kept < len(SOME_DISAGREE)
