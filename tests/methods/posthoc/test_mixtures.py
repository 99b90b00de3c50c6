"""The weak-strong and the SE mixture: reference values."""

from __future__ import annotations

import pytest
from oracles.methods import field, posthoc

from otpt.methods.aggregations import se, weak_strong

pytestmark = pytest.mark.slow


def test_the_reference_values_of_the_mixtures() -> None:
    logits = field.logits()
    found, extras = weak_strong(logits.softmax(-1), logits, posthoc.mean_cosine(field.texts()))
    expected = [0.113805835126, 0.760112652910, 0.034065603117, 0.059620590873, 0.032395317974]
    assert found.tolist() == pytest.approx(expected, abs=1e-12)
    assert extras["alpha"] == pytest.approx(0.818944724618, abs=1e-12)
    found, extras = se(logits.softmax(-1), logits)
    expected = [0.091064778996, 0.661679047179, 0.064925252825, 0.119542474055, 0.062788446945]
    assert found.tolist() == pytest.approx(expected, abs=1e-12)
    assert extras["alpha"] == pytest.approx(0.636507936508, abs=1e-12)
    assert se(logits.softmax(-1), logits, se_power=2.0)[1]["alpha"] == pytest.approx(0.546586041824, abs=1e-12)


def test_the_reference_value_of_e_cots_has_the_strong_views_before_calibration() -> None:
    adapted = field.adapted_logits()
    scaled = adapted / 1.460610765
    assert posthoc.strong(scaled.tolist()) != posthoc.strong(adapted.tolist()), "the temperature changes their order"
    found, extras = weak_strong(scaled.softmax(-1), adapted, posthoc.mean_cosine(field.second_texts()))
    expected = [0.069045497186, 0.790017896496, 0.037846488912, 0.061664817328, 0.041425300078]
    assert found.tolist() == pytest.approx(expected, abs=1e-11)
    assert extras["alpha"] == pytest.approx(0.806550806948, abs=1e-12)
