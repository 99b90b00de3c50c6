"""Reference values of the episodic accuracy peers, on the field's fixture of five classes and 64 views."""

from __future__ import annotations

import pytest
import torch
from oracles.methods import field

from otpt.methods.aggregations import bandwidths, mode, mta, reliability, reliability_weights, zero
from otpt.methods.prompt_tuning import mean_cosine
from otpt.methods.text_shift import leading_count, leading_directions, tps
from otpt.objectives import (
    clip_reward,
    entropy_of_mean,
    mean_of_entropies,
    select_confident,
    view_entropies,
    weighted_entropies,
)

RELIABLE_LOGITS = [17.372594997378, 18.247866508684, 18.278545626295, 15.948275390805, 16.570660344601]
MODE_LOGITS = [14.495003598, 18.559270440, 14.673902228, 8.439521106, 11.626637556]


def softmax(logits: list[float]) -> list[float]:
    return torch.tensor(logits, dtype=torch.float64).softmax(0).tolist()


def test_zero_counts_the_votes_of_nineteen_views() -> None:
    found = zero(field.logits(), field.SCALE)
    assert (19 * found).tolist() == pytest.approx([3, 4, 4, 5, 3], abs=1e-12)
    assert int(found.argmax()) == 3


def test_mta() -> None:
    features, probabilities = field.views(), field.logits().softmax(1)
    width = bandwidths(features, 0.3)
    assert width[:3].tolist() == pytest.approx([0.154647450507, 0.142618976751, 0.170695721537], abs=1e-12)
    centre, weights = mode(features, probabilities, width, 4.0, 0.2)
    assert (field.SCALE * field.texts() @ centre).tolist() == pytest.approx(MODE_LOGITS, abs=1e-9)
    assert weights.max().item() == pytest.approx(0.691473136, abs=1e-9)
    assert int(weights.argmax()) == 21
    found = mta(features, probabilities, field.texts(), field.SCALE)
    assert found.tolist() == pytest.approx(softmax(MODE_LOGITS), abs=1e-9)


@pytest.mark.parametrize(
    ("rate", "expected"),
    [
        (5e-3, [17.233757774103, 19.060970474217, 13.355546172416, 10.275610599162, 13.113341006538]),
        (1e-3, [17.210887555637, 19.047513860054, 13.491142767852, 10.382055196532, 13.096853716078]),
    ],
)
def test_tps(rate: float, expected: list[float]) -> None:
    shifted = tps(field.logits(), field.views(), field.texts(), field.SCALE, shift_rate=rate)
    assert (field.SCALE * shifted @ field.views()[0]).tolist() == pytest.approx(expected, abs=1e-11)


def test_r_tpt() -> None:
    logits = field.logits()
    chosen = select_confident(logits, 6)
    assert chosen.tolist() == [33, 29, 21, 5, 61, 56]
    assert mean_of_entropies(logits[chosen]).item() == pytest.approx(0.211340933118, abs=1e-12)
    assert entropy_of_mean(logits[chosen]).item() == pytest.approx(1.385735098263, abs=1e-12)
    weights = reliability_weights(field.views(), 20, 0.01)
    assert weights[0].item() == pytest.approx(0.000291797013, abs=1e-12)
    assert weights.max().item() == pytest.approx(0.241572994080, abs=1e-12)
    assert int(weights.argmax()) == 6
    assert reliability(field.views(), logits).tolist() == pytest.approx(softmax(RELIABLE_LOGITS), abs=1e-12)


def test_sts_counts_the_singular_values_above_the_threshold() -> None:
    sizes = torch.linalg.svdvals(field.texts())
    expected = [2.068049328933, 0.545251551308, 0.474468090663, 0.432303821924, 0.117754640621]
    assert sizes.tolist() == pytest.approx(expected, abs=1e-12)
    threshold = 1.106993364029  # ω(5/8) = 2.333125 times the median
    assert threshold == pytest.approx(2.333125 * expected[2], abs=1e-11)
    middle = torch.tensor([9.0, threshold, 0.474468090663, 0.1, 0.1], dtype=torch.float64)
    nudge = torch.tensor([0, 1e-9, 0, 0, 0], dtype=torch.float64)
    assert (leading_count(middle + nudge, 5, 8), leading_count(middle - nudge, 5, 8)) == (2, 1)
    assert leading_directions(field.texts()).shape == (8, 1)


def test_sts_keeps_at_least_one_direction() -> None:
    assert leading_directions(torch.eye(4, 6, dtype=torch.float64)).shape == (6, 1)


def test_rlcf() -> None:
    row = field.logits()[33]
    classes = row.argsort(descending=True)[:3]
    assert classes.tolist() == [3, 2, 4]
    cosines = row / field.SCALE
    rewards = 2.5 * cosines[classes] - 2.5 * cosines[classes].mean()
    assert rewards.tolist() == pytest.approx([0.403478163406, -0.121488754337, -0.281989409069], abs=1e-12)
    assert clip_reward(row[None], cosines[None]).item() == pytest.approx(-0.685525793607, abs=1e-12)


def test_the_fixture_is_the_one_of_the_field() -> None:
    assert mean_cosine(field.texts()).item() == pytest.approx(0.818944724618, abs=1e-12)
    expected = [17.204830152655, 19.043796010575, 13.524790793772, 10.408633232181, 13.092475586091]
    assert field.logits()[0].tolist() == pytest.approx(expected, abs=1e-12)
    assert view_entropies(field.logits())[0].item() == pytest.approx(0.437757060863, abs=1e-12)
    confidence, label = field.logits()[0].softmax(dim=0).max(dim=0)
    assert (confidence.item(), label.item()) == (pytest.approx(0.857800864686, abs=1e-12), 1)


def test_the_loss_of_ttl_over_all_views() -> None:
    assert weighted_entropies(field.logits()).item() == pytest.approx(0.485532041474, abs=1e-12)
