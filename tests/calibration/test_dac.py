"""DAC against reference values and literal distances."""

from __future__ import annotations

import pytest
import torch
from oracles.methods import field, posthoc

from otpt import functional
from otpt.calibration import dac_factors, own_dac_factors
from otpt.calibration.logits import BaseTexts, dac, dac_base
from otpt.errors import OtptError

EXACT = {"rtol": 0, "atol": 1e-12}


def drawn(seed: int, classes: int = 9) -> torch.Tensor:
    return field.unit(torch.randn(classes, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64))


def test_the_reference_values_with_base_classes() -> None:
    before, after = field.texts(), field.second_texts()
    expected = torch.tensor([1, 1, 1, 1.027435439175, 1.008390276469], dtype=torch.float64)
    torch.testing.assert_close(dac_factors(before, after, before[:3], after[:3], neighbours=2), expected, **EXACT)


def test_the_reference_values_among_all_classes() -> None:
    expected = [1.005826138116, 0.928100131388, 0.963713212291, 1.027435439175, 0.995580163569]
    found = own_dac_factors(field.texts(), field.second_texts(), neighbours=2)
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), **EXACT)


@pytest.mark.parametrize("neighbours", [1, 3, 5, 20])
def test_factors_are_the_literal_ones(neighbours: int) -> None:
    before, after = drawn(0), drawn(1)
    others = [[b for b in range(9) if b != c] for c in range(9)]
    pair = before.tolist(), after.tolist()
    expected = [posthoc.dac_factor(*pair, c, others[c], neighbours) for c in range(9)]
    assert own_dac_factors(before, after, neighbours=neighbours).tolist() == pytest.approx(expected, abs=1e-10)
    found = own_dac_factors(before, after, torch.tensor([7, 2]), neighbours)
    assert found.tolist() == pytest.approx([expected[7], expected[2]], abs=1e-10)
    based = dac_factors(before, after, before[:4], after[:4], neighbours)
    expected = [posthoc.dac_factor(*pair, c, range(4), neighbours) for c in range(4, 9)]
    assert based.tolist() == pytest.approx([1, 1, 1, 1, *expected], abs=1e-10)


def test_logits_are_multiplied_by_the_factor_of_the_predicted_class() -> None:
    before, after = drawn(0), drawn(1)
    logits = torch.randn(12, 9, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    found, extras = dac(logits, before, after, dac_neighbours=3)
    for row, own in zip(logits.tolist(), found.tolist(), strict=True):
        c = posthoc.label(row)
        factor = posthoc.dac_factor(before.tolist(), after.tolist(), c, [b for b in range(9) if b != c], 3)
        assert own == pytest.approx([factor * each for each in row], abs=1e-10)
    assert extras["temperature"] == pytest.approx(float(logits[0, 0] / found[0, 0]), abs=1e-10)
    assert len(set(logits.argmax(dim=1).tolist())) > 2


def test_nothing_to_measure_gives_one() -> None:
    assert own_dac_factors(drawn(0, 1), drawn(1, 1)).tolist() == [1.0]
    assert own_dac_factors(drawn(0), drawn(0)).tolist() == 9 * [1.0]
    with pytest.raises(OtptError, match="number of neighbours is 0; expected 1 or more"):
        own_dac_factors(drawn(0), drawn(1), neighbours=0)


def test_views_under_a_learned_prompt_by_its_base_classes() -> None:
    before, after = drawn(3), drawn(4)
    texts = BaseTexts(before[4:], after[4:], before[:4], after[:4])
    logits = torch.tensor([[0.0, 1, 2, 9, 3], [7, 1, 2, 3, 4]], dtype=torch.float64)
    found, extras = dac_base(logits, texts, dac_neighbours=3)
    factors = [posthoc.dac_factor(before.tolist(), after.tolist(), 4 + c, range(4), 3) for c in (3, 0)]
    expected = torch.tensor(factors, dtype=torch.float64)[:, None] * logits
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
    assert extras == {"temperature": pytest.approx(1 / factors[0], abs=1e-10)}


def test_from_plain_tensors_it_asks_for_the_texts() -> None:
    before, after = drawn(3), drawn(4)
    logits = 10 * drawn(5)[:, :2].mT
    found = functional.calibrate(logits, logits, method="dac", text_features=before, adapted_text_features=after)
    torch.testing.assert_close(found, dac(logits, before, after)[0], rtol=0, atol=0)
    with pytest.raises(OtptError, match="adapted_text_features"):
        functional.calibrate(logits, logits, method="dac", text_features=before)
