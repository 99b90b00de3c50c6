"""The calibration file: what comes back, what is refused, and that damage is found."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from oracles.data.labelled import facts, labelled

from otpt.calibration import Calibrated, Calibration, fit_calibration, read_calibration
from otpt.calibration.conformal import conformal_scores
from otpt.calibration.maps import as_stored
from otpt.errors import OtptError


@pytest.fixture(scope="module")
def calibration() -> Calibration:
    p, y = labelled(150, seed=41)
    return fit_calibration(p, y, facts(), origin={"dataset": "pets", "seed": 0})


def test_what_is_read_is_what_was_written(calibration: Calibration, tmp_path: Path) -> None:
    path = tmp_path / "cal.json"
    calibration.write(path)
    found = read_calibration(path)
    assert found.as_dict() == calibration.as_dict()
    assert found.digest == calibration.digest
    again = tmp_path / "again.json"
    found.write(again)
    assert again.read_bytes() == path.read_bytes()
    new, _ = labelled(50, seed=42)
    first, second = (Calibrated(each, coverage=0.8, risk=0.5) for each in (calibration, found))
    for row in new:
        one, two = first.answer(row), second.answer(row)
        assert np.array_equal(one.probabilities, two.probabilities)
        assert (one.index, one.classes, one.abstained) == (two.index, two.classes, two.abstained)


def test_the_file_holds_all_scores_of_the_labels(calibration: Calibration) -> None:
    p, y = labelled(150, seed=41)
    for kind in ("lac", "aps", "raps"):
        own = conformal_scores(kind, as_stored(p))[np.arange(150), y]
        for label in range(8):
            assert calibration.scores[kind].get(label, []) == sorted(own[y == label])
    stored = as_stored(p)
    assert sorted(calibration.confidences) == sorted(stored.max(axis=1))
    assert calibration.correct.count("1") == (stored.argmax(axis=1) == y).sum()


@pytest.mark.parametrize("at", [0.1, 0.5, 0.9])
def test_any_changed_digit_is_found(calibration: Calibration, tmp_path: Path, at: float) -> None:
    path = tmp_path / "cal.json"
    calibration.write(path)
    text = path.read_text(encoding="utf-8")
    place = text.index("0.", int(at * len(text))) + 2  # the last digit of a float may not change its value
    path.write_text(text[:place] + str((int(text[place]) + 1) % 10) + text[place + 1 :], encoding="utf-8")
    with pytest.raises(OtptError, match=r"is damaged: (its checksum is wrong|it is not JSON)"):
        read_calibration(path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"format": 1', "damaged: it is not JSON"),
        (b"\x80\x04\x95", "damaged: it is not JSON"),
        (b"[]", "is not a calibration file"),
        (b'{"temperature": 1.5}', "is not a calibration file"),
        (b'{"format": 99, "checksum": ""}', "has format 99, but this version of otpt reads 2"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "cal.json"
    path.write_bytes(content)
    with pytest.raises(OtptError, match=words):
        read_calibration(path)
    with pytest.raises(OtptError, match="There is no calibration file"):
        read_calibration(tmp_path / "missing.json")


def _change(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    *parts, last = path.split(".")

    def change(found: dict[str, Any]) -> None:
        for part in parts:
            found = found[part]
        found[last] = value

    return change


NAMES = [f"class {i}" for i in range(8)]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            _change("model", {"name": "RN50", "fingerprint": "f" * 16}),
            r"the model 'tiny' \(01234567\), not for 'RN50' \(f",
        ),
        (_change("method", {"name": "o-tpt", "numbers": {}}), "the method 'tpt', not for 'o-tpt'"),
        (_change("method.numbers.steps", 2), "the method 'tpt' with steps = 1, not with 2"),
        (_change("classes", NAMES[:-1]), "8 classes, not for these 7"),
        (_change("classes", [*NAMES[:-1], "dog"]), r"8 classes, not for these 8 \(class 7 is 'class 7', not 'dog'"),
        (_change("classes", NAMES[::-1]), r"8 classes, not for these 8 \(class 0 is 'class 0', not 'class 7'"),
        (_change("prompt.name", "an emoji of a"), "prompt .*an emoji of a"),
        (_change("prompt.tokens", 3), "prompt .*3"),
        (_change("views", "views-1 n=32 augmix=on"), "views 'views-1 n=64 augmix=on', not for 'views-1 n=32"),
        (_change("official_precision", True), "official precision False, not for True"),
    ],
)
def test_another_purpose_is_refused_by_name(
    calibration: Calibration, change: Callable[[dict[str, Any]], None], words: str
) -> None:
    other = copy.deepcopy(dict(calibration.facts))
    calibration.check(other)
    change(other)
    with pytest.raises(OtptError, match=f"The calibration was made for {words}"):
        calibration.check(other)


def test_the_same_weights_under_another_name_are_the_same_model(calibration: Calibration) -> None:
    calibration.check({**calibration.facts, "model": {"name": "copy.pt", "fingerprint": "0123456789abcdef"}})


def test_bad_labels_are_refused() -> None:
    p, y = labelled(150, seed=41)
    with pytest.raises(OtptError, match="6 labelled images"):
        fit_calibration(p[:6], y[:6], facts())
    with pytest.raises(OtptError, match="All 150 labels are of the class 'class 3'"):
        fit_calibration(p, np.full(150, 3), facts())
    with pytest.raises(OtptError, match="labels from 0 to 7, but got 8"):
        fit_calibration(p, np.where(y == 7, 8, y), facts())
    with pytest.raises(OtptError, match="probabilities of 9 classes, but got 8"):
        fit_calibration(p, y, facts(9))
    with pytest.raises(OtptError, match="got -1"):
        fit_calibration(p, y, facts(), penalty=-1.0)


def test_reliability_is_of_images_that_the_map_has_not_seen(calibration: Calibration) -> None:
    """The NLL after is the cross-validated one, and the estimate of each metric is that of its function."""
    from otpt.metrics import evaluate

    p, y = labelled(150, seed=41)
    assert calibration.reliability["after"]["nll"][0] == pytest.approx(
        calibration.cross_validation[calibration.map.kind], abs=1e-12
    )
    before = evaluate(as_stored(p), y)
    for name in ("accuracy", "nll", "ece", "debiased_ece"):
        value, low, high = calibration.reliability["before"][name]
        assert value == pytest.approx(getattr(before, name), abs=1e-6)
        assert low < high
    diagram = calibration.diagram["before"]
    assert diagram.counts.sum() == 150
    filled = diagram.counts > 0
    assert float((diagram.counts[filled] * np.abs(diagram.gaps[filled])).sum() / 150) == pytest.approx(
        before.ece, abs=1e-6
    )
    assert json.loads(json.dumps(calibration.as_dict())) == calibration.as_dict()


def test_every_class_is_in_the_sets_without_scores(calibration: Calibration) -> None:
    bare = calibration.model_copy(update={"scores": {kind: {} for kind in calibration.scores}})
    answer = Calibrated(bare, coverage=0.9).answer(labelled(1)[0][0])
    assert sorted(answer.classes or ()) == list(range(8))
