"""The risk threshold: a literal procedure, scipy's binomial, and the promise over many calibration sets."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from oracles.data.labelled import facts, labelled
from scipy.stats import binom, binomtest

from otpt.calibration import Calibrated, fit_calibration, risk_threshold
from otpt.calibration.conformal import find_threshold
from otpt.errors import OtptError
from otpt.metrics import clopper_pearson

pytestmark = pytest.mark.slow


def simulated(n: int, seed: int) -> tuple[Any, Any]:
    """Confidences of (0, 1) without ties, and correct flags with P(right) = 0.5 + 0.5·s."""
    draw = np.random.default_rng(seed)
    s = draw.uniform(size=n)
    return s, draw.uniform(size=n) < 0.5 + 0.5 * s


def true_risk(threshold: float) -> float:
    """The mean of 0.5 − 0.5·s over s from t to 1."""
    return 0.25 * (1 - max(threshold, 0.0))


def literal(s: Any, right: Any, risk: float, guarantee: float) -> float | None:
    n, order = len(s), np.argsort(-s)
    levels = [math.ceil(n * j / 20) for j in range(1, 21)]
    levels = [m for m in levels if (1 - risk) ** m <= 1 - guarantee]
    found, before = None, 0.0
    for m in levels:
        wrong = int((~right[order][:m]).sum())
        level = (1 - guarantee) / len(levels) + before
        if binom.cdf(wrong, m, risk) <= level:
            found, before = (s[order][m] if m < n else -math.inf), level
        else:
            before = 0.0
    return found


@pytest.mark.parametrize("risk", [0.05, 0.1, 0.2, 0.3])
def test_the_threshold_is_that_of_the_procedure(risk: float) -> None:
    for seed in range(20):
        s, right = simulated(400, seed)
        expected = literal(s, right, risk, 0.9)
        if expected is None:
            with pytest.raises(OtptError, match="No confidence threshold holds a risk"):
                risk_threshold(s, right, risk=risk, guarantee=0.9)
            continue
        found = risk_threshold(s, right, risk=risk, guarantee=0.9)
        assert found.threshold == expected
        assert found.answered == (s > expected).sum()
        assert found.wrong == (~right[s > expected]).sum()
        assert found.answers(1.0)
        assert not found.answers(expected)


@pytest.mark.slow
@pytest.mark.parametrize(("risk", "guarantee"), [(0.1, 0.9), (0.2, 0.8), (0.15, 0.95)])
def test_the_risk_is_held_as_often_as_promised(risk: float, guarantee: float) -> None:
    """1000 calibration sets: the true error rate above the threshold may exceed the risk in 1 − guarantee of them."""
    broken = used = 0
    for seed in range(1000):
        s, right = simulated(400, 10_000 + seed)
        found = find_threshold(s, right, risk=risk, guarantee=guarantee)
        used += found is not None
        broken += found is not None and true_risk(found.threshold) > risk
    assert used > 100
    assert broken <= binom.ppf(0.999, 1000, 1 - guarantee)
    assert broken > 0, "the bound is not vacuous"


def test_equal_confidences_are_answered_together_or_not_at_all() -> None:
    s = np.repeat([0.9, 0.5], 200)
    right = np.concatenate([np.ones(200, bool), np.arange(200) % 2 == 0])
    found = risk_threshold(s, right, risk=0.05, guarantee=0.95)
    assert (found.threshold, found.answered, found.wrong) == (0.5, 200, 0)


def test_binomial_functions_are_scipys() -> None:
    for k, n in ((0, 10), (3, 10), (10, 10), (41, 300)):
        ci = binomtest(k, n).proportion_ci(0.95)
        assert clopper_pearson(k, n) == pytest.approx((ci.low, ci.high), abs=1e-9)


def test_a_calibrated_answer_abstains_below_the_threshold() -> None:
    p, y = labelled(600, seed=31)
    use = Calibrated(fit_calibration(p, y, facts()), risk=0.3, guarantee=0.9)
    threshold = use.threshold
    assert threshold is not None
    assert 0 < threshold.answered < 600
    new, _ = labelled(100, seed=32)
    answers = [use.answer(row).abstained for row in new]
    assert answers == [bool(row.astype(np.float32).max() <= threshold.threshold) for row in new]
    assert set(answers) == {True, False}


@pytest.mark.parametrize("risk", [0.0, 1.0, -0.1, float("nan")])
def test_bad_risks_are_refused(risk: float) -> None:
    p, y = labelled(60)
    with pytest.raises(OtptError, match=r"risk between 0 and 1, both excluded, but got .*; such as 0\.05"):
        Calibrated(fit_calibration(p, y, facts()), risk=risk)
    with pytest.raises(OtptError, match="guarantee between 0 and 1"):
        Calibrated(fit_calibration(p, y, facts()), risk=0.1, guarantee=1.0)


def test_what_cannot_be_held_says_what_can() -> None:
    p, y = labelled(200, seed=33)
    calibration = fit_calibration(p, y, facts())
    with pytest.raises(OtptError, match=r"on the 200 labels .* or allow 0\.\d+, which they can hold") as error:
        Calibrated(calibration, risk=0.01)
    possible = float(str(error.value).split("allow ")[1].split(",")[0])
    assert Calibrated(calibration, risk=possible).threshold is not None


def test_a_map_that_changes_labels_has_no_risk() -> None:
    p, y = labelled(300, seed=34)
    p = p[:, [1, 0, *range(2, 8)]]  # two classes exchanged, which biases and slopes can only mend in part
    calibration = fit_calibration(p, y, facts(), maps=["bias"])
    assert calibration.map.kind == "bias"
    with pytest.raises(OtptError, match="the map 'bias' may change labels"):
        Calibrated(calibration, risk=0.3)
