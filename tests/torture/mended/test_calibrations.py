"""Faults that the campaign found in calibration files, each with the smallest change that showed it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from oracles.data.labelled import facts, labelled

from otpt.calibration import Calibrated, fit_calibration, read_calibration
from otpt.calibration.file import _checksum
from otpt.errors import OtptError

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("key", "value"),
    [("map", {"kind": "temperature", "parameters": {"temperature": 0.0}}), ("map", {"kind": "beta", "parameters": {}}),
     ("conformal", {}), ("for", {"classes": "ab"}), ("labels", -1), ("bins", {"before": {"counts": [1]}}),
     ("correct", "maybe"), ("confidences", [float("nan")]), ("origin", {"x": "\ud800"}), ("confidences", [0.5])],
)  # fmt: skip
def test_a_calibration_that_was_changed_and_sealed_again(key: str, value: Any, tmp_path: Path) -> None:
    p, y = labelled(150, seed=41)
    content = fit_calibration(p, y, facts()).as_dict() | {key: value}
    try:
        checksum = _checksum(content)
    except ValueError:
        checksum = "sha256:" + 64 * "0"
    path = tmp_path / "cal.json"
    path.write_text(json.dumps({**content, "checksum": checksum}), encoding="utf-8")
    with pytest.raises(OtptError, match="is damaged"):
        read_calibration(path)


def test_a_calibration_without_scores_has_every_class_in_its_sets(tmp_path: Path) -> None:
    """It raised a ValueError of numpy's."""
    p, y = labelled(150, seed=41)
    content = fit_calibration(p, y, facts()).as_dict()
    content["conformal"]["scores"] = {kind: {} for kind in content["conformal"]["scores"]}
    path = tmp_path / "cal.json"
    path.write_text(json.dumps({**content, "checksum": _checksum(content)}), encoding="utf-8")
    answer = Calibrated(read_calibration(path), coverage=0.9).answer(p[0])
    assert answer.classes is not None
    assert sorted(answer.classes) == list(range(p.shape[1]))
