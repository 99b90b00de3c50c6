"""Plain tables of scores: means over seeds and data sets against numpy, and what stays empty."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from otpt.errors import OtptError
from otpt.metrics import Metrics, evaluate
from otpt.report.tables import Number, metric_table, score_tables
from otpt.report.tables.scores import TITLES
from otpt.runs import Score
from otpt.runs.scores import AVERAGED

pytestmark = pytest.mark.slow

P, Y = np.array([[0.7, 0.3], [0.4, 0.6]]), np.array([0, 0])


def score(method: str, dataset: str, seed: int, ece: float | None, prompt: str = "a photo of a") -> Score:
    metrics: Metrics | None = None if ece is None else replace(evaluate(P, Y), ece=ece)
    return Score(dataset, seed, prompt, method, metrics, 0, 0, None)


def test_means_and_deviations() -> None:
    values = {("a", 0): 0.1, ("a", 1): 0.3, ("b", 0): 0.25, ("b", 1): 0.15}
    scores = [score("tpt", *place, value) for place, value in values.items()]
    tables = score_tables(scores)
    assert [(table.title, table.columns) for table in tables] == [
        (title, ("a", "b", "average")) for title in ("accuracy %", "ECE %", "debiased ECE %", "SCE %")
    ]
    (row,) = tables[1].rows
    assert not tables[1].several_prompts
    assert [number.text for number in row.numbers] == ["20.00 ± 14.14", "20.00 ± 7.07", "20.00 ± 3.54"]
    assert row.numbers[2].deviation == pytest.approx(np.std([(0.1 + 0.25) / 2, (0.3 + 0.15) / 2], ddof=1))


def test_one_data_set_has_all_metrics() -> None:
    scores = [score("tpt", "a", 0, 0.1), score("tpt", "a", 0, 0.2, prompt="itap of a")]
    tables = score_tables(scores)
    assert {(table.title, table.several_prompts) for table in tables} == {("a", True)}
    columns = [column for table in tables for column in table.columns]
    assert sorted(columns) == sorted(TITLES.values()), "each metric once"
    assert set(TITLES) == set(AVERAGED)
    texts = [number.text for table in tables for number in table.rows[1].numbers]
    found = dict(zip(columns, texts, strict=True))
    assert found["ECE %"] == "20.00"
    assert columns[columns.index("ECE %") + 1] == "debiased ECE %"
    assert found["NLL"] == f"{-np.log([0.7, 0.4]).mean():.4f}"
    assert found["top-label Brier"] == f"{(0.3**2 + 0.6**2) / 2:.4f}"
    assert found["AUROC %"] == "100.00"


def test_metrics_by_name() -> None:
    scores = [score("tpt", name, 0, 0.1) for name in ("a", "b")]
    (table,) = score_tables(scores[:1], metrics=["auroc", "aurc"])
    assert table.columns == ("AUROC %", "AURC %")
    assert [table.title for table in score_tables(scores, metrics=["auroc", "aurc"])] == ["AUROC %", "AURC %"]
    with pytest.raises(OtptError, match="Unknown metric 'auc'"):
        score_tables(scores, metrics=["auc"])
    sure = replace(scores[0], metrics=replace(scores[0].metrics, auroc=None))
    (table,) = score_tables([sure], metrics=["auroc", "aurc"])
    assert [number is None for number in table.rows[0].numbers] == [True, False]


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
