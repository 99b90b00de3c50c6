"""Groups of classes: sums, back-off, and its risk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from otpt.errors import OtptError
from otpt.groups import Answer, Groups, back_off_threshold

NAMES = ("beagle", "pug", "tabby", "oak")
NESTED = {"animal": {"dog": ["beagle", "pug"], "cat": ["tabby"]}, "plant": ["oak"]}


def test_probabilities_add_up_over_members() -> None:
    found = Groups.read(NESTED, NAMES).probabilities(np.array([0.5, 0.25, 0.15, 0.1]))
    assert found == pytest.approx({"animal": 0.9, "dog": 0.75, "cat": 0.15, "plant": 0.1})


@pytest.mark.parametrize(
    ("threshold", "expected"),
    [
        (0.5, Answer("beagle", 0.5, 1)),
        (0.7, Answer("dog", 0.75, 2)),
        (0.8, Answer("animal", 0.9, 3)),
        (0.95, None),
    ],
)
def test_back_off_to_the_most_specific_answer(threshold: float, expected: Answer | None) -> None:
    groups = Groups.read(NESTED, NAMES)
    found = groups.back_off(np.array([0.5, 0.25, 0.15, 0.1]), NAMES, threshold)
    assert (found is None) == (expected is None)
    if found is not None and expected is not None:
        assert (found.name, found.classes) == (expected.name, expected.classes)
        assert found.confidence == pytest.approx(expected.confidence)


def test_a_csv_file_gives_the_same_groups(tmp_path: Path) -> None:
    path = tmp_path / "groups.csv"
    path.write_text("class,kind,kingdom\nbeagle,dog,animal\npug,dog,animal\ntabby,cat,animal\noak,,plant\n")
    found = Groups.read(path, NAMES).members
    assert dict(found) == dict(Groups.read(NESTED, NAMES).members)


@pytest.mark.parametrize(
    ("given", "value"),
    [
        ({"dog": ["beagle", "poodle"]}, "poodle"),
        ({"dog": ["beagle", "pug"], "pet": ["pug", "tabby"]}, "pug"),
        ({"dog": "beagle"}, "beagle"),
        ({"dog": []}, "dog"),
        ({"pug": ["beagle"]}, "pug"),
        ({}, "{}"),
        ("nowhere.csv", "nowhere.csv"),
    ],
)
def test_bad_input(given: object, value: str) -> None:
    with pytest.raises(OtptError, match=value):
        Groups.read(given, NAMES)


@pytest.mark.slow
def test_the_risk_of_backed_off_answers_is_held() -> None:
    """Calibrated synthetic probabilities: of 15 draws of labels few exceed the risk on fresh images."""
    rng = np.random.default_rng(0)
    groups, broken = Groups.read(NESTED, NAMES), 0
    fresh = rng.dirichlet(np.full(4, 0.5), 1000)
    truth = np.array([rng.choice(4, p=p) for p in fresh])
    for _ in range(15):
        p = rng.dirichlet(np.full(4, 0.5), 300)
        labels = [int(rng.choice(4, p=each)) for each in p]
        threshold = back_off_threshold(p, labels, groups, NAMES, risk=0.15, guarantee=0.9)
        answers = [(groups.back_off(q, NAMES, threshold), y) for q, y in zip(fresh, truth, strict=True)]
        wrong = [not groups.contains(answer, NAMES, y) for answer, y in answers if answer is not None]
        broken += float(np.mean(wrong)) > 0.15
    assert broken <= 4  # 1.5 are expected at most


def test_a_risk_that_cannot_be_held() -> None:
    p = np.tile([0.97, 0.01, 0.01, 0.01], (50, 1))
    with pytest.raises(OtptError, match=r"0\.05"):
        back_off_threshold(p, [1, 2] * 25, Groups.read({"rest": ["oak"]}, NAMES), NAMES, risk=0.05)
