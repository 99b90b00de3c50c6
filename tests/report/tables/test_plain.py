"""Plain tables of scores: means over seeds and data sets against numpy, and what stays empty."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from otpt.metrics import Metrics, evaluate
from otpt.report.tables import Number, metric_table, score_tables
from otpt.runs import Score

P, Y = np.array([[0.7, 0.3], [0.4, 0.6]]), np.array([0, 0])


def score(method: str, dataset: str, seed: int, ece: float | None, prompt: str = "a photo of a") -> Score:
    metrics: Metrics | None = None if ece is None else replace(evaluate(P, Y), ece=ece)
    return Score(dataset, seed, prompt, method, metrics, 0, 0, None)


def test_means_and_deviations() -> None:
    values = {("a", 0): 0.1, ("a", 1): 0.3, ("b", 0): 0.25, ("b", 1): 0.15}
    scores = [score("tpt", *place, value) for place, value in values.items()]
    tables = score_tables(scores)
    assert [(table.title, table.columns) for table in tables] == [
        (title, ("a", "b", "average")) for title in ("accuracy %", "ECE %", "SCE %")
    ]
    (row,) = tables[1].rows
    assert not tables[1].several_prompts
    assert [number.text for number in row.numbers] == ["20.00 ± 14.14", "20.00 ± 7.07", "20.00 ± 3.54"]
    assert row.numbers[2].deviation == pytest.approx(np.std([(0.1 + 0.25) / 2, (0.3 + 0.15) / 2], ddof=1))


def test_one_data_set_has_all_metrics_in_one_table() -> None:
    (table,) = score_tables([score("tpt", "a", 0, 0.1), score("tpt", "a", 0, 0.2, prompt="itap of a")])
    assert (table.title, table.several_prompts) == ("a", True)
    assert dict(zip(table.columns, (number.text for number in table.rows[1].numbers), strict=True))["ECE %"] == "20.00"
    assert table.columns[-2:] == ("Brier", "NLL")
    assert table.rows[0].numbers[-1].text == f"{-np.log([0.7, 0.4]).mean():.4f}"


def test_what_is_missing_stays_empty() -> None:
    scores = [
        *(score("tpt", "a", 0, 0.1), score("tpt", "b", 0, None)),
        *(score("o-tpt", "a", 0, 0.2), score("c-tpt", "b", 0, 0.3), score("zero-shot", "b", 0, 0.4)),
    ]
    table = metric_table(scores, "ece", datasets=["b", "a"], methods=["c-tpt", "tpt", "o-tpt"])
    assert table.columns == ("b", "a", "average")
    shown = {row.method: ["–" if number is None else number.text for number in row.numbers] for row in table.rows}
    assert shown == {"c-tpt": ["30.00", "–", "–"], "tpt": ["–", "10.00", "–"], "o-tpt": ["–", "20.00", "–"]}


def test_a_number_as_it_is_shown() -> None:
    assert (Number("ece", 0.0477).text, Number("nll", 1.23456, 0.5).text) == ("4.77", "1.2346 ± 0.5000")
    assert Number("ece", 0.2, 0.01).mean == "20.00"
