"""Prediction sets and the risk threshold against literal procedures, MAPIE and scipy; their promises in simulations."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from mapie.classification import SplitConformalClassifier
from mapie.conformity_scores import APSConformityScore
from oracles.data.labelled import Floats, facts, labelled
from scipy.stats import binom, binomtest
from sklearn.base import BaseEstimator, ClassifierMixin

from otpt.calibration import Calibrated, fit_calibration, risk_threshold
from otpt.calibration.conformal import SETS, conformal_quantile, conformal_scores, draws, find_threshold, labels_for
from otpt.calibration.maps import as_stored
from otpt.errors import OtptError
from otpt.metrics import clopper_pearson

pytestmark = pytest.mark.slow


def literal_aps(p: Floats, u: float, c: int) -> float:
    before = [j for j in range(len(p)) if p[j] > p[c] or (p[j] == p[c] and j < c)]
    return float(sum(p[j] for j in before) + u * p[c])


def literal_rank(p: Floats, c: int) -> int:
    return 1 + sum(1 for j in range(len(p)) if p[j] > p[c] or (p[j] == p[c] and j < c))


def test_scores_are_the_formulas() -> None:
    p, _ = labelled(30)
    p[3] = 1 / 8  # ties
    u = np.random.default_rng(0).uniform(size=len(p))
    lac, aps, raps = (conformal_scores(kind, p, u=u, penalty=0.1, free_ranks=2) for kind in SETS)
    for n in range(len(p)):
        for c in range(8):
            assert lac[n, c] == 1 - p[n, c]
            expected = literal_aps(p[n], u[n], c)
            assert aps[n, c] == pytest.approx(expected, abs=1e-12)
            assert raps[n, c] == pytest.approx(expected + 0.1 * max(0, literal_rank(p[n], c) - 2), abs=1e-12)


@pytest.mark.parametrize("coverage", [0.5, 0.7, 0.8, 0.9, 0.95, 0.99, 1 / 3])
def test_the_quantile_has_the_exact_rank(coverage: float) -> None:
    exact = Fraction(repr(coverage))
    for n in (1, 2, 9, 10, 19, 20, 99, 100, 101, 999):
        scores = np.random.default_rng(n).permutation(n) + 1.0  # the k-th smallest is k
        rank = next(k for k in range(n + 2) if k >= exact * (n + 1))
        assert conformal_quantile(scores, coverage) == (rank if rank <= n else math.inf)
    least = labels_for(coverage)
    assert math.isfinite(conformal_quantile(np.arange(float(least)), coverage))
    assert least == 1 or math.isinf(conformal_quantile(np.arange(float(least - 1)), coverage))


class Fixed(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A model whose features are its probabilities."""

    def __init__(self, classes: int = 8) -> None:
        self.classes = classes

    def fit(self, x: Any, y: Any) -> Fixed:
        self.classes_ = np.arange(self.classes)
        return self

    def predict_proba(self, x: Any) -> Any:
        return np.asarray(x)

    def predict(self, x: Any) -> Any:
        return np.asarray(x).argmax(axis=1)


@pytest.mark.parametrize("coverage", [0.8, 0.9, 0.95])
def test_lac_sets_are_mapies(coverage: float) -> None:
    p, y = labelled(300, seed=1)
    new, _ = labelled(500, seed=2)
    p, new = (as_stored(each) / as_stored(each).sum(axis=1, keepdims=True) for each in (p, new))
    theirs = SplitConformalClassifier(
        Fixed().fit(None, None), confidence_level=coverage, conformity_score="lac", prefit=True
    )
    theirs.conformalize(p, y)
    _, sets = theirs.predict_set(new)
    ours = 1 - new <= conformal_quantile(conformal_scores("lac", p)[np.arange(len(y)), y], coverage)
    assert np.array_equal(ours, sets[:, :, 0])
    assert 1 < ours.sum(axis=1).mean() < 8


def test_aps_and_raps_scores_are_mapies() -> None:
    """MAPIE subtracts u·p of the true class where we add (1 − u)·p; its RAPS adds λ·max(0, rank − k) to that."""
    p, y = labelled(300, seed=1)
    theirs = APSConformityScore()
    theirs.set_external_attributes(classes=np.arange(8), random_state=0)
    expected = theirs.get_conformity_scores(y, p, y_enc=y)[:, 0]
    u = 1 - np.random.RandomState(0).uniform(size=len(p))  # MAPIE's own draws
    rows = np.arange(len(y))
    assert conformal_scores("aps", p, u=u)[rows, y] == pytest.approx(expected, abs=1e-12)
    penalised = expected + 0.1 * np.maximum(0, theirs.cutoff - 2)
    raps = conformal_scores("raps", p, u=u, penalty=0.1, free_ranks=2)
    assert raps[rows, y] == pytest.approx(penalised, abs=1e-12)
    assert (penalised > expected).sum() > 50


def test_draws_are_uniform_and_those_of_the_image() -> None:
    p, _ = labelled(2000, seed=3)
    u = draws(p)
    assert (u >= 0).all()
    assert (u < 1).all()
    assert np.abs(np.sort(u) - np.arange(2000) / 2000).max() < 1.63 / math.sqrt(2000)  # Kolmogorov–Smirnov, 1 %
    assert np.array_equal(draws(p[::-1]), u[::-1])
    moved = p * (1 + 1e-7 * np.random.default_rng(0).normal(size=p.shape))  # another processor's last digit
    assert (draws(moved) == u).mean() > 0.99


@pytest.mark.parametrize("mondrian", [False, True])
@pytest.mark.parametrize("kind", SETS)
def test_sets_cover_as_often_as_they_say(kind: str, mondrian: bool) -> None:
    """Mean coverage over 20 calibration sets: within 4 standard errors of [1 − α, 1 − α + 1/(n + 1)], or above."""
    coverage, hits, sizes = 0.8, [], []
    for seed in range(20):
        p, y = labelled(400, 4, seed=100 + seed, spread=1.0)
        new, truth = labelled(250, 4, seed=5000 + seed, spread=1.0)
        scores = conformal_scores(kind, as_stored(p))[np.arange(len(y)), y]
        tested = conformal_scores(kind, as_stored(new))
        groups = [y == c for c in range(4)] if mondrian else [np.ones(len(y), bool)] * 4
        q = np.array([conformal_quantile(scores[group], coverage) for group in groups])
        inside = tested <= q
        hits.append(inside[np.arange(len(truth)), truth].mean())
        sizes.append(inside.sum(axis=1).mean())
    error = np.std(hits) / math.sqrt(len(hits))
    most = coverage + (4 / 100 if mondrian else 1 / 401)
    assert coverage - 4 * error <= np.mean(hits) <= most + 4 * error
    assert np.mean(sizes) < 3.9


def calibrated(count: int = 300, classes: int = 8, **asked: Any) -> Calibrated:
    p, y = labelled(count, classes, seed=21)
    return Calibrated(fit_calibration(p, y, facts(classes)), **asked)


@pytest.mark.parametrize("kind", SETS)
def test_answers_hold_the_set_and_never_none(kind: str) -> None:
    use = calibrated(coverage=0.5, sets=kind)
    p, y = labelled(300, seed=21)
    own = conformal_scores(kind, as_stored(p))[np.arange(len(y)), y]
    q = sorted(own)[math.ceil(301 / 2) - 1]
    new, _ = labelled(200, seed=22)
    for row in new:
        answer = use.answer(row)
        raw = as_stored(row)
        scores = conformal_scores(kind, raw[None])[0]
        assert answer.classes is not None
        assert set(answer.classes) == {c for c in range(8) if scores[c] <= q} | {int(raw.argmax())}
        assert answer.classes[0] == answer.index == int(raw.argmax())
        assert answer.abstained is None


def test_the_predicted_class_is_in_the_set_whatever_decides_it() -> None:
    p, y = labelled(600, seed=5)
    moved = (y + (np.random.default_rng(0).uniform(size=600) < 0.6)) % 8  # a bias that the map corrects
    changing = fit_calibration(p, moved, facts(), maps=["bias"])
    assert changing.map.kind == "bias"
    for kind in SETS:
        answers = [Calibrated(changing, coverage=0.5, sets=kind).answer(row) for row in p]
        assert any(answer.index != row.argmax() for answer, row in zip(answers, p, strict=True))
        assert all(answer.index in (answer.classes or ()) for answer in answers)
    tied = np.array([0.4, 0.4, *[0.2 / 6] * 6])
    assert calibrated(coverage=0.3, sets="lac").answer(tied, index=1).classes == (0, 1)


def test_mondrian_has_a_quantile_per_class() -> None:
    use = calibrated(coverage=0.8, mondrian=True, sets="lac")
    p, y = labelled(300, seed=21)
    for c in range(8):
        own = 1 - as_stored(p)[y == c, c]
        assert use.quantiles[c] == conformal_quantile(own, 0.8)
    rare = calibrated(30, coverage=0.8, mondrian=True)
    few = [c for c in range(8) if (labelled(30, seed=21)[1] == c).sum() < 4]
    assert rare.always_in == len(few) > 0
    assert set(few) <= set(rare.answer(labelled(1)[0][0]).classes or ())


@pytest.mark.parametrize(
    ("make", "value"),
    [
        (lambda: calibrated(coverage=1.0), "1.0"),
        (lambda: calibrated(coverage=float("nan")), "nan"),
        (lambda: calibrated(coverage="0.9"), "'0.9'"),
        (lambda: calibrated(coverage=0.99, count=50), "99 labels"),
        (lambda: calibrated(coverage=0.9, sets="top-k"), "'top-k'"),
        (lambda: calibrated(mondrian=True), "coverage"),
        (lambda: calibrated(count=60, risk=0.0), "risk .*0.0"),
        (lambda: calibrated(count=60, risk=float("nan")), "risk .*nan"),
        (lambda: calibrated(count=60, risk=0.1, guarantee=1.0), "guarantee .*1.0"),
        (lambda: calibrated(count=60, classes=30, coverage=0.95, mondrian=True), "60 labels of 30 classes"),
    ],
)
def test_bad_input(make: Callable[[], Calibrated], value: str) -> None:
    with pytest.raises(OtptError, match=value):
        make()


def simulated(n: int, seed: int) -> tuple[Any, Any]:
    """Confidences of (0, 1) without ties, and correct flags with P(right) = 0.5 + 0.5·s."""
    draw = np.random.default_rng(seed)
    s = draw.uniform(size=n)
    return s, draw.uniform(size=n) < 0.5 + 0.5 * s


def true_risk(threshold: float) -> float:
    """The mean of 0.5 − 0.5·s over s from t to 1."""
    return 0.25 * (1 - max(threshold, 0.0))


def literal_threshold(s: Any, right: Any, risk: float, guarantee: float) -> float | None:
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
    for seed in range(8):
        s, right = simulated(400, seed)
        expected = literal_threshold(s, right, risk, 0.9)
        if expected is None:
            with pytest.raises(OtptError, match="No confidence threshold guarantees a risk"):
                risk_threshold(s, right, risk=risk, guarantee=0.9)
            continue
        found = risk_threshold(s, right, risk=risk, guarantee=0.9)
        assert found.threshold == expected
        assert found.answered == (s > expected).sum()
        assert found.wrong == (~right[s > expected]).sum()
        assert found.answers(1.0)
        assert not found.answers(expected)


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


def test_what_cannot_be_held_says_what_can() -> None:
    p, y = labelled(200, seed=33)
    calibration = fit_calibration(p, y, facts())
    with pytest.raises(OtptError, match=r"for 200 labels .* or request a risk of at least 0\.\d+") as error:
        Calibrated(calibration, risk=0.01)
    possible = float(str(error.value).split("at least ")[1].rstrip("."))
    assert Calibrated(calibration, risk=possible).threshold is not None


def test_a_map_that_changes_labels_has_no_risk() -> None:
    p, y = labelled(300, seed=34)
    p = p[:, [1, 0, *range(2, 8)]]  # two classes exchanged, which biases and slopes can only mend in part
    calibration = fit_calibration(p, y, facts(), maps=["bias"])
    assert calibration.map.kind == "bias"
    with pytest.raises(OtptError, match="the map 'bias' may change predictions"):
        Calibrated(calibration, risk=0.3)
