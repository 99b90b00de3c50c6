"""The page's summary in words: what is best, what comes next, what is noise."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from oracles.runs import simulated_runs
from oracles.runs.figure_bench import SETS, Bench
from oracles.runs.simulated_runs import simulate_run, simulated_dataset, simulated_output

from otpt.data import Dataset
from otpt.evaluation import Settings
from otpt.methods.output import Output
from otpt.report import ResultKey, Results, open_results
from otpt.report.page import make_page
from otpt.report.page.images import Answer
from otpt.report.page.numbers import SHOWN, Line, average_lines, dataset_lines, with_best
from otpt.report.page.page import marked
from otpt.report.page.summary import summary
from otpt.report.tables import table
from otpt.report.tables.scores import Number
from otpt.report.tables.table import mark_best

pytestmark = pytest.mark.slow


def test_summary_in_words(bench: Bench) -> None:
    results = bench.results()
    ece = {
        m: np.mean([results.score(ResultKey(d, 0, "a photo of a", m)).metrics.ece for d in SETS])
        for m in results.methods
    }
    best, second = sorted(ece, key=ece.__getitem__)[:2]
    page = re.sub("</?bdi>", "", make_page(results, images=0)).replace("\u00a0", " ")
    assert f"{best} has the lowest ECE on average over 3 data sets: {100 * ece[best]:.2f} %, debiased " in page
    assert f"; next is {second} with {100 * ece[second]:.2f} %" in page
    assert "With fewer than 500 images in a data set" in page


def test_summary_says_what_is_noise(tmp_path: Path) -> None:
    """A method that is over-confident by far differs by more than noise; accuracies of twelve images do not."""
    data = simulated_dataset("large", 20, 600)
    results = open_results([simulate_run(tmp_path / "run", [data], Settings(methods=("tpt", "o-tpt")))])
    (line,) = [each for each in _plain(results) if "lowest ECE" in each]
    assert re.search(r"o-tpt has the lowest ECE: .* next is tpt with .*: they differ by .* points \(p = ", line)
    assert not any("fewer than 500" in each for each in _plain(results))
    twins = ("zero-shot", "o-tpt")
    half = open_results([simulate_run(tmp_path / "few", [simulated_dataset("few", 4, 12)], Settings(methods=twins))])
    (line,) = [each for each in _plain(half) if "highest accuracy" in each]
    assert re.search(r"a difference within noise \(p = [0-9.]+\)", line)


def test_summary_names_all_that_share_a_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not two of three that are equal; and of many only the first."""

    def output(data: Dataset, index: int, column: tuple[str, str], seed: int) -> Output:
        plain = simulated_output(data, index, (column[0], "tpt"), seed)
        wrong = (data.labels[index] + 1) % 4
        return replace(plain, probabilities=np.eye(4)[wrong], index=wrong) if column[1] == "zero-shot" else plain

    monkeypatch.setattr(simulated_runs, "simulated_output", output)
    data = simulated_dataset("few", 4, 12)

    def sentence(*methods: str) -> str:
        results = open_results([simulate_run(tmp_path / str(len(methods)), [data], Settings(methods=methods))])
        (found,) = [each for each in _plain(results) if "highest accuracy" in each]
        return found

    assert sentence("tpt", "c-tpt").startswith("tpt and c-tpt share the highest accuracy: ")
    assert sentence("tpt", "c-tpt", "o-tpt").startswith("All methods share the highest accuracy: ")
    names = sentence("zero-shot", "tpt", "c-tpt", "o-tpt", "soc", "a-tpt", "d-tpt")
    assert "tpt, c-tpt, o-tpt and 3 more" in names


def _lines(*values: tuple[float, float], debiased: float = 0.02, images: int = 100) -> list[Line]:
    """Lines of methods a, b, … on one data set, of (ECE, over-confidence)."""
    found = []
    for name, (ece, over) in zip("abc", values, strict=False):
        numbers = {"ece": ece, "debiased_ece": debiased, "accuracy": 0.5, "overconfidence": over}
        own = {metric: Number(metric, value) for metric, value in numbers.items()}
        found.append(Line("some", name, "p", images, 0, False, own))
    return found


def _said(monkeypatch: pytest.MonkeyPatch, lines: list[Line], averages: Sequence[Line] = ()) -> str:
    monkeypatch.setattr("otpt.report.page.summary.gap", lambda *_: None)
    none: Any = None  # the results are asked for nothing but the gap
    return re.sub("[\u2068\u2069]", "", " ".join(summary(none, lines, averages)))


def test_summary_does_not_call_chance_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    """At an accuracy of one half, 100 images leave 9.8 points to chance, and 10,000 images one tenth of that."""
    said = _said(monkeypatch, _lines((0.05, 0.03), (0.06, 0.12)))
    assert "All methods are over-confident, by 3.0 to 12.0 points; with so few images, up to 9.8 points may" in said
    said = _said(monkeypatch, _lines((0.05, 0.03), (0.06, 0.12), images=10_000))
    assert "All methods are over-confident, by 3.0 to 12.0 points." in said
    said = _said(monkeypatch, _lines((0.05, 0.03), (0.06, -0.05)))
    assert "b is furthest off: under-confident by 5.0 points; with so few images, up to 9.8 points may" in said
    assert "b is furthest off: under-confident by 15.0 points." in _said(
        monkeypatch, _lines((0.05, 0.03), (0.06, -0.15))
    )


def test_summary_knows_that_an_ece_may_be_all_bias(monkeypatch: pytest.MonkeyPatch) -> None:
    words = "The debiased ECE of both is 0 or less: these images show no calibration error of either."
    assert words in _said(monkeypatch, _lines((0.05, 0.03), (0.10, 0.03), debiased=-0.01))
    assert words not in _said(monkeypatch, _lines((0.05, 0.03), (0.10, 0.03), debiased=0.01))
    assert words not in _said(monkeypatch, _lines((0.05, 0.03), debiased=-0.01)), "there is one method only"


def test_summary_counts_the_data_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    def said(*eces: tuple[float, float]) -> str:
        lines = [
            replace(line, dataset=f"set {i}")
            for i, pair in enumerate(eces)
            for line in _lines(*((each, 0.0) for each in pair))
        ]
        return _said(monkeypatch, lines, average_lines([_whole(line) for line in lines]))

    assert "It has the lowest ECE on both data sets." in said((0.1, 0.2), (0.1, 0.2))
    assert "It has the lowest ECE on each of the 3 data sets." in said((0.1, 0.2), (0.1, 0.2), (0.1, 0.2))
    assert "It has the lowest ECE on 2 of the 3 data sets." in said((0.1, 0.2), (0.1, 0.2), (0.2, 0.1))


def _whole(line: Line) -> Line:
    """With a value of every metric, of which an average is made."""
    return replace(line, numbers={name: line.numbers.get(name, Number(name, 0.0)) for name in SHOWN})


def test_sentences_and_confidences_as_they_are_shown() -> None:
    assert marked("\u2068a<b\u2069 has -1.50 % (p = 0.1), o-tpt[lambda=-1]") == (
        "<bdi>a&lt;b</bdi> has −1.50\u00a0% (p\u00a0=\u00a00.1), o-tpt[lambda=-1]"
    )
    assert [Answer("tpt", "cat", each, True).percent for each in (1.0, 0.9999, 0.994, 0.001)] == [
        "100 %",
        "> 99 %",
        "99 %",
        "0 %",
    ]


def test_what_is_equal_as_shown_is_best_together() -> None:
    """Whatever deviation is shown beside it; over-confidence counts by its size, a debiased ECE below 0 as 0."""
    values = {
        "accuracy": (0.50001, 0.50002, 0.4),
        "ece": (0.1, 0.100001, 0.2),
        "overconfidence": (-0.1, 0.1, 0.3),
        "debiased_ece": (-0.02, -0.03, 0.1),
        "brier": (0.5, 0.50001, 0.6),
    }
    rows = [
        {name: Number(name, own[at], deviation=0.01 * at if at else None) for name, own in values.items()}
        for at in range(3)
    ]
    best = [{name for name, number in row.items() if number.best} for row in with_best([*rows, {}])]
    assert best == [{*values}, {*values}, set(), set()]
    assert not any(number.best for number in with_best([rows[0], {}])[0].values()), "nothing to compare with"
    for metric, own in values.items():
        lines = mark_best(table.Line(str(at), metric, (table.Entry(100 * value),)) for at, value in enumerate(own))
        assert [line.entries[0].best for line in lines] == [True, True, False]


def _plain(results: Results) -> list[str]:
    lines = [line for name in results.datasets for line in dataset_lines(results, name)]
    return [text.replace("\u2068", "").replace("\u2069", "") for text in summary(results, lines, average_lines(lines))]
