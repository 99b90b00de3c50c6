"""What metrics take and refuse, their table, and the examples of their docstrings."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import numpy as np
import pytest
import torch

import otpt.calibration
import otpt.metrics
from otpt import metrics
from otpt.errors import OtptError
from otpt.metrics import METRICS, get_metric

P = np.array([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1]])
Y = np.array([0, 1])
NAN = float("nan")

# (probabilities, labels) that no function takes
BAD_PROBABILITIES = [
    (P[None], Y, r"\(1, 2, 3\)"),
    (np.zeros((0, 3)), np.zeros(0, dtype=int), r"\(0, 3\)"),
    ([[0.5, 0.5], [1.0]], Y, "unequal length"),
    (np.eye(3, dtype=int)[:2], Y, "int"),
    (P, Y[:1], r"labels .*\(2\).* \(1,\)"),
    (P, Y[:, None], r"\(2, 1\)"),
    (P, Y.astype(float), "float64"),
    (P, [0, 3], "from 0 to 2, but got 3 at position 1"),
    (P, [-1, 1], "-1 at position 0"),
    (np.array([P[0], [np.nan, 0.5, 0.5]]), Y, "row 1 .*nan"),
    (np.array([P[0], [np.inf, 0.5, 0.5]]), Y, "row 1 .*inf"),
    (np.array([P[0], [-0.1, 0.6, 0.5]]), Y, "row 1 .*-0.1"),
    (100 * P, Y, "row 0 .*100"),
    (np.full((2500, 1000), 1 / 1000) + 0.5 * np.eye(2500, 1000)[::-1], np.zeros(2500, int), r"row 1500 .*1\.5"),
]
# (confidence, correct)
BAD_CONFIDENCES = [
    ([], [], r"\(0,\)"),
    (["high"], [1], "<U4"),
    ([0.5, 1.5], [1, 1], "1.5 at position 1"),
    ([-0.5], [1], "-0.5"),
    ([0.5, NAN], [1, 1], "nan at position 1"),
    ([0.5], [1, 0], r"\(2,\)"),
    ([0.5], [2], "zeros and ones"),
    ([0.5], ["yes"], "<U3"),
]
PUBLIC = {name: getattr(metrics, METRICS[name].aliases[0]) for name in METRICS}
OF_BOTH = [
    metrics.reliability_bins,
    lambda p, y: metrics.accuracy_above(p, y, threshold=0.5),
    lambda p, y: metrics.bootstrap("ece", p, y),
    lambda p, y: metrics.bootstrap_difference("ece", (p, y), (p, y)),
]


@pytest.mark.parametrize("function", [*PUBLIC.values(), metrics.evaluate, metrics.confidence_and_correct, *OF_BOTH])
def test_bad_probabilities_and_labels(function):
    for p, y, message in BAD_PROBABILITIES:
        with pytest.raises(OtptError, match=message):
            function(p, y)


@pytest.mark.parametrize("function", [*(PUBLIC[n] for n in METRICS if METRICS[n].needs == "confidence"), *OF_BOTH])
def test_bad_confidences(function):
    for confidence, correct, message in BAD_CONFIDENCES:
        with pytest.raises(OtptError, match=message):
            function(confidence, correct)


BAD_OPTIONS = [
    *((lambda f=f, n=n: f(P, Y, n_bins=n), f"n_bins .*{n}")
      for n in (0, -1, 2.5, True, "20")
      for f in (metrics.ece, metrics.adaptive_ece, metrics.sce, metrics.reliability_bins, metrics.evaluate)),
    (lambda: metrics.evaluate(P, Y, side="centre"), "'centre'"),
    (lambda: metrics.accuracy(P, Y, top=0), "top .*0"),
    *((lambda f=f: metrics.negative_log_likelihood(P, Y, floor=f), "floor") for f in (0.0, 1.0, NAN)),
    *((lambda c=c: metrics.selective_accuracy([0.5], [1], coverage=c), f"coverage .*{c}") for c in (0, 1.1, NAN)),
    *((lambda r=r: metrics.coverage_at_risk([0.5], [1], risk=r), f"risk .*{r}") for r in (-0.1, 1, NAN)),
    *((lambda p=p, y=y: metrics.macro_f1(p, y), "expected") for p, y in (([0.5], [1]), ([1], []), ([1], [1, 2]))),
    *((lambda m=m: metrics.bootstrap(m, P, Y), str(m)) for m in ("eec", 5)),
    (lambda: metrics.bootstrap("sce", [0.5], [1]), "sce"),
    *((lambda r=r: metrics.bootstrap("ece", P, Y, resamples=r), str(r)) for r in (0, 1.5, True)),
    *((lambda v=v: metrics.bootstrap("ece", P, Y, level=v), str(v)) for v in (0, 1, 95, NAN)),
    (lambda: metrics.bootstrap_difference("ece", ([0.5], [1]), ([0.5, 0.5], [1, 1])), "1 and 2"),
    (lambda: get_metric("pce"), "pce"),
    (lambda: metrics.accuracy([0.5], [1], top=2), "top"),
    *((lambda k=k, a=a: metrics.lower_confidence_bound(k, 2, a), str(n))
      for k, a, n in ((3, 0.1, 3), (-1, 0.1, -1), (1, 0.0, 0.0), (1, 1.0, 1.0))),
]  # fmt: skip


@pytest.mark.parametrize(("call", "offending"), BAD_OPTIONS)
def test_bad_input(call, offending):
    with pytest.raises(OtptError, match=offending):
        call()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("classes", [2, 10, 1000])
def test_rounded_rows_are_accepted(dtype, classes):
    generator = torch.Generator().manual_seed(classes)
    logits = torch.randn(200, classes, generator=generator) * 3
    p = torch.softmax(logits, dim=1).to(dtype)
    labels = torch.randint(0, classes, (200,), generator=generator)
    assert metrics.evaluate(p, labels) == metrics.evaluate(p.float().numpy(), labels.numpy())


def test_a_maximum_rounded_above_one_is_not_lost():
    p = np.array([[1.0 + 1e-6, 0.0]])
    assert metrics.expected_calibration_error(p, [1]) == 1.0
    assert metrics.classwise_calibration_error(p, [1]) == pytest.approx(0.5)  # the zero is in no bin
    assert metrics.negative_log_likelihood(p, [0]) == 0.0
    assert metrics.mean_entropy(p, [0]) == 0.0


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("ece", "ece"), ("ECE", "ece"), ("expected_calibration_error", "ece"), ("adaptive-ece", "adaptive_ece"),
        ("classwise-ece", "sce"), ("classwise_calibration_error", "sce"), ("Brier-score", "brier"),
        ("negative_log_likelihood", "nll"),
    ],
)  # fmt: skip
def test_aliases(alias: str, name: str) -> None:
    assert get_metric(alias).name == name


def test_set_metrics_are_shares() -> None:
    correct, answered = np.array([True, False, True, False]), np.array([True, True, True, False])
    sets = {"covered": np.array([True, True, True, False]), "sizes": np.array([1, 2, 1, 1])}
    found = metrics.set_metrics(correct, answered=answered, **sets)
    assert (found.coverage, found.set_size, found.singletons, found.answered) == (0.75, 1.25, 0.75, 0.75)
    assert found.risk == pytest.approx(1 / 3)
    assert found.coverage_interval == metrics.clopper_pearson(3, 4)
    assert found.risk_interval == metrics.clopper_pearson(1, 3)
    assert metrics.set_metrics(correct, answered=~correct & correct).risk is None


def test_cost_ranks_the_best_value_lowest() -> None:
    assert METRICS["accuracy"].cost(0.9) < METRICS["accuracy"].cost(0.8)
    assert METRICS["ece"].cost(0.1) < METRICS["ece"].cost(0.2)
    assert METRICS["overconfidence"].cost(-0.1) < METRICS["overconfidence"].cost(0.2)
    assert METRICS["debiased_ece"].cost(-0.1) == METRICS["debiased_ece"].cost(0.0)


def test_printed_values() -> None:
    assert METRICS["ece"].heading == "ECE %"
    assert METRICS["nll"].heading == "NLL"
    assert METRICS["ece"].format(0.04771) == "4.77"
    assert METRICS["nll"].format(0.5) == "0.5000"
    assert METRICS["auroc"].format(None) == "–"


MODULES = [
    info.name
    for package in (otpt.metrics, otpt.calibration)
    for info in pkgutil.iter_modules(package.__path__, prefix=f"{package.__name__}.")
]


@pytest.mark.parametrize("name", MODULES)
def test_docstrings(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


@pytest.mark.parametrize("name", METRICS)
def test_docstrings_of_metrics(name):
    """The decorator hides them from doctest."""
    function = getattr(otpt.metrics, METRICS[name].aliases[0])
    examples = doctest.DocTestParser().get_doctest(function.__doc__, vars(otpt.metrics), name, None, None)
    assert doctest.DocTestRunner().run(examples).failed == 0
