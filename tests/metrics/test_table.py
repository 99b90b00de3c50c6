"""The table of metrics: names, aliases, titles and directions."""

from __future__ import annotations

import pytest

from otpt.errors import OtptError
from otpt.metrics import METRICS, get_metric


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


def test_unknown_metric() -> None:
    with pytest.raises(OtptError, match="pce"):
        get_metric("pce")


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
