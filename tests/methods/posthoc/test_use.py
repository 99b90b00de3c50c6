"""USE against the literal way, and what it is made of."""

from __future__ import annotations

import pytest
from oracles.methods import posthoc
from oracles.methods.posthoc_bench import SOME_DISAGREE, answers, literal

pytestmark = pytest.mark.slow


def test_use_is_the_literal_one() -> None:
    adapted = []
    for seed in SOME_DISAGREE:
        _, tuned, zero_shot = literal(seed, "use")
        chosen, alpha = posthoc.strong(zero_shot), posthoc.se_weight(zero_shot)
        agree = all(posthoc.label(zero_shot[i]) == posthoc.label(zero_shot[0]) for i in chosen)
        found = answers(seed, ("use", "zero-shot"))
        p = posthoc.mixture(zero_shot if agree else tuned, chosen, alpha)
        assert found["use"].probabilities.tolist() == pytest.approx(p, abs=1e-10)
        assert found["use"].extras["adapted"] == (not agree)
        assert found["use"].extras["alpha"] == pytest.approx(alpha, abs=1e-12)
        if agree:
            assert found["use"].index == found["zero-shot"].index
        adapted.append(not agree)
    assert 0 < sum(adapted) < len(adapted), "or the test shows nothing"
