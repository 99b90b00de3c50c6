"""Operating points: against a search over all thresholds, and the guaranteed threshold."""

from __future__ import annotations

import numpy as np
import pytest

from otpt import OtptError
from otpt.calibration import operating_points, risk_threshold
from otpt.metrics import coverage_at_risk


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("ties", [False, True])
def test_thresholds_are_those_of_a_search(seed: int, ties: bool) -> None:
    random = np.random.default_rng(seed)
    confidence = random.random(300)
    confidence = confidence.round(1) if ties else confidence
    correct = random.random(300) < confidence
    for point in operating_points(confidence, correct, risks=[0.05, 0.2, 0.4]):
        candidates = [
            t for t in (-1.0, *confidence) if (~correct[confidence > t]).sum() <= point.risk * (confidence > t).sum()
        ]
        most = max((int((confidence > t).sum()) for t in candidates), default=0)
        found = point.empirical
        assert (0 if found is None else found.answered) == most
        assert most / 300 == coverage_at_risk(confidence, correct, risk=point.risk)
        if point.guaranteed is not None:
            assert point.guaranteed.threshold == risk_threshold(confidence, correct, risk=point.risk).threshold
            assert point.guaranteed.answered <= most, "a guarantee is stricter than the labels themselves"
        for one in filter(None, (point.guaranteed, point.empirical)):
            chosen = confidence > float(one.shown)
            assert (chosen.sum(), (chosen & ~correct).sum()) == (one.answered, one.wrong)
            assert one.interval()[0] <= one.error <= one.interval()[1]


def test_too_few_labels_have_no_guarantee_but_an_empirical_threshold() -> None:
    (point,) = operating_points([0.9, 0.8, 0.7, 0.6], [1, 1, 0, 0], risks=[0.05])
    assert point.guaranteed is None
    assert point.empirical is not None
    assert point.empirical.share == 0.5


@pytest.mark.parametrize(
    "arguments", [{"risks": []}, {"risks": [0.0]}, {"risks": [5]}, {"risks": [0.1], "guarantee": 1.0}]
)
def test_bad_input(arguments: dict) -> None:
    with pytest.raises(OtptError):
        operating_points([0.9, 0.8], [1, 0], **arguments)
