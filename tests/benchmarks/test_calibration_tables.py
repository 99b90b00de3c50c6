"""The tables of the calibration benchmark, on data where the right answer is known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from oracles.data.labelled import labelled
from oracles.runs.simulated_runs import simulate_run, simulated_dataset
from scipy.stats import betabinom

from benchmarks.calibration import METHODS, PAGE, columns
from benchmarks.calibration_tables import (
    COVERAGES,
    LABELS,
    Column,
    beta_binomial_below,
    coverage_table,
    few_labels,
    few_labels_table,
    resampled_risk,
    risk_table,
    split_coverage,
)
from otpt.evaluation import Settings
from otpt.metrics import negative_log_likelihood
from otpt.runs import Run


def test_bounds_are_scipys() -> None:
    for hits, images, rank, labels in ((80, 100, 46, 50), (95, 100, 46, 50), (3, 10, 9, 20)):
        expected = betabinom.cdf(hits, images, rank, labels + 1 - rank)
        assert beta_binomial_below(hits, images, rank, labels) == pytest.approx(expected, rel=1e-9)
    assert beta_binomial_below(0, 10, 11, 10) == 1.0


def test_coverage_is_measured_on_the_other_half() -> None:
    column = Column(*labelled(2000, seed=51))
    for coverage in COVERAGES:
        found = split_coverage(column, "lac", coverage)
        assert found.images == 1000
        assert abs(found.hits / 1000 - coverage) < 0.05
        assert not found.below
        assert not found.above
    wrong = Column(column.probabilities, column.labels.copy())
    order = np.random.default_rng(0).permutation(2000)
    wrong.labels[order[1000:]] = (wrong.labels[order[1000:]] + 3) % 8
    assert split_coverage(wrong, "lac", 0.9).below, "labels of another kind are noticed"
    easy = Column(column.probabilities, column.labels.copy())
    easy.labels[order[1000:]] = easy.probabilities[order[1000:]].argmax(axis=1)
    assert split_coverage(easy, "lac", 0.9).above, "easier ones, too"


def test_few_labels_help_and_more_than_there_are_is_left_out() -> None:
    column = Column(*labelled(400, seed=52))
    found = few_labels(column, Column(*labelled(300, seed=53)), draws=2)
    assert found.shape == (2, 1 + len(LABELS))
    assert found[0, 0] == pytest.approx(negative_log_likelihood(column.probabilities, column.labels), abs=1e-6)
    assert found[0, 2] < found[0, 0] - 0.05
    assert np.isnan(found[:, 3]).all()


def test_risk_is_that_of_the_population() -> None:
    draw = np.random.default_rng(0)
    confidence = draw.uniform(size=5000)
    correct = draw.uniform(size=5000) < 0.5 + 0.5 * confidence
    found = [each for each in resampled_risk(confidence, correct, 0.2, 100) if each is not None]
    assert len(found) > 90
    assert sum(risk > 0.2 for _, risk in found) <= 12
    assert all(abs(risk - 0.25 * answered) < 0.03 for answered, risk in found)
    assert resampled_risk(confidence, np.zeros(5000, bool), 0.2, 3) == [None] * 3


def test_tables_have_all_methods_and_their_place_on_the_page(tmp_path: Path) -> None:
    folder = simulate_run(
        tmp_path / "run",
        [simulated_dataset("emoji/food", 5, 240)],
        Settings(methods=["zero-shot", "tpt"], save_probabilities=True),
    )
    found = columns([Run(folder)], METHODS)
    assert list(found) == [("zero-shot", "emoji/food"), ("tpt", "emoji/food")]
    assert coverage_table(found).count("\n") == 1 + 2 * 3
    assert risk_table(found, resamples=2).count("\n") == 1 + 2 * 3
    assert few_labels_table(found, found, draws=1).count("| food |") == 2
    page = PAGE.read_text(encoding="utf-8")
    for name in ("coverage", "risk", "few-labels"):
        assert page.count(f"<!-- {name} -->") == page.count(f"<!-- /{name} -->") == 1
