"""Two methods compared image by image: against scipy's binomial test and the bootstrap of whole probabilities."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from oracles.runs.report_bench import SEEDS, SETS, probabilities
from oracles.runs.simulated_runs import simulate_run, simulated_dataset
from scipy import stats

from otpt import OtptError
from otpt.data import Dataset
from otpt.evaluation import Evaluation as Settings
from otpt.methods import Output
from otpt.metrics import bootstrap_difference
from otpt.report import (
    Results,
    build_tables,
    compare_methods,
    compare_with_others,
    comparison_frame,
    comparison_notes,
    comparison_table,
    evaluation_table,
    gap,
    open_results,
    ranked,
    render,
)
from otpt.report.comparison import ALL, bias_words, bootstrap_p, holm, mcnemar_p


@pytest.mark.parametrize("counts", [(0, 0), (0, 1), (3, 9), (40, 41), (700, 812), (5, 2000), (26000, 25000)])
def test_mcnemar_is_the_binomial_test(counts: tuple[int, int]) -> None:
    expected = stats.binomtest(counts[0], sum(counts)).pvalue if sum(counts) else 1.0
    assert mcnemar_p(*counts) == pytest.approx(expected, rel=1e-8, abs=1e-300)


def test_p_of_the_bootstrap() -> None:
    values = np.concatenate([np.full(97, 0.1), np.full(2, -0.1)])
    assert bootstrap_p(values) == bootstrap_p(-values) == pytest.approx(2 * 3 / 100)
    assert bootstrap_p(np.zeros(99)) == 1.0


@pytest.mark.slow
def test_one_seed_agrees_with_whole_probabilities(runs: dict[str, Path]) -> None:
    results = open_results([runs["main"]], seeds=[5])
    found = {each.dataset: each for each in compare_methods(results, "o-tpt", "tpt", resamples=200)}
    a, b = probabilities(2, "o-tpt", 5), probabilities(2, "tpt", 5)
    labels = np.array(SETS[2].labels)
    for metric in ("ece", "sce", "brier", "nll"):
        expected = bootstrap_difference(metric, (a, labels), (b, labels), resamples=200)
        one = found["dtd"].differences[metric]
        assert (one.difference, one.low, one.high) == pytest.approx(
            (expected.estimate, expected.low, expected.high), abs=2e-5
        )
    right = a.argmax(1) == labels, b.argmax(1) == labels
    only = int((right[0] & ~right[1]).sum()), int((right[1] & ~right[0]).sum())
    assert (found["dtd"].only_a, found["dtd"].only_b) == only
    assert found["dtd"].differences["accuracy"].p == mcnemar_p(*only)


def test_all_seeds_are_averaged_and_agree_with_the_table(results: Results) -> None:
    found = compare_methods(results, "o-tpt", "tpt", resamples=50)
    (table,) = build_tables(results, "plain")
    assert [each.dataset for each in found] == [*results.datasets, ALL]
    for each in found:
        assert each.seeds == SEEDS
        column = "average" if each.dataset == ALL else each.dataset
        for metric in ("accuracy", "ece"):
            cells = [table.cell(method=m, metric=metric, dataset=column)["value"] for m in ("o-tpt", "tpt")]
            one = each.differences[metric]
            assert (100 * one.a, 100 * one.b) == pytest.approx(cells)
    assert len(comparison_table(found)) == len(found) * 6
    assert all(f"seeds {SEEDS[0]}, {SEEDS[1]}" in each.conclusion for each in found)


def confident(data: Dataset, index: int, *, right: bool) -> Output:
    """A prediction with 90 % confidence."""
    p = np.full(5, 0.025)
    p[(data.labels[index] + (not right)) % 5] = 0.9
    return Output(p, int(p.argmax()))


def test_all_variants_are_used(tmp_path: Path) -> None:
    """A method that runs several times on a data set: the table, its intervals and the comparison are over all."""

    def output(data, index: int, column: tuple[str, str], seed: int) -> Output:
        return confident(data, index, right=index % 10 < {"a": 9, "b": 5}[data.variant] - (column[1] == "tpt"))

    data = [simulated_dataset("dtd", 5, 100).as_variant(name, {}) for name in ("a", "b")]
    folder = simulate_run(tmp_path / "run", data, Settings(methods=("zero-shot", "tpt")), output=output)
    results = open_results([folder])
    (found,) = compare_methods(results, "zero-shot", "tpt", resamples=200)
    assert (found.differences["accuracy"].a, found.differences["accuracy"].b) == pytest.approx((0.7, 0.6))
    assert (found.images, found.only_a, found.only_b) == (100, 20, 0)
    (table,) = build_tables(results, "plain", level=0.95)
    cell = table.cell(method="zero-shot", metric="accuracy", dataset="dtd")
    assert cell["value"] == pytest.approx(70)
    assert cell["low"] < 70 < cell["high"] < 85  # not that of the first variant, 90


def test_known_differences(tmp_path: Path) -> None:
    """a is right on 9 of 10 images and b on 7, under both seeds; of 200 images that is no chance."""

    def output(data, index: int, column: tuple[str, str], seed: int) -> Output:
        return confident(data, index, right=(index + seed) % 10 < {"zero-shot": 9, "tpt": 7, "c-tpt": 7}[column[1]])

    settings = Settings(methods=("zero-shot", "tpt", "c-tpt"), seeds=(0, 1))
    folder = simulate_run(tmp_path / "run", [simulated_dataset("dtd", 5, 200)], settings, output=output)
    results = open_results([folder])
    (found,) = compare_methods(results, "zero-shot", "tpt", resamples=200)
    assert found.differences["accuracy"].difference == pytest.approx(0.2)
    assert found.differences["ece"].difference == pytest.approx(-0.2, abs=1e-6)
    assert found.better("accuracy") == found.better("ece") == "zero-shot"
    assert found.differences["accuracy"].low < 0.2 < found.differences["accuracy"].high
    (same,) = compare_methods(results, "tpt", "c-tpt", resamples=200)
    assert same.better("accuracy") is same.better("ece") is None
    assert next(iter(ranked(results, "ece"))) == "zero-shot"
    keys = {method: results.keys_of(method=method) for method in results.methods}
    assert not gap(results, "ece", keys["zero-shot"], keys["tpt"]).is_noise
    assert gap(results, "ece", keys["tpt"], keys["c-tpt"]).is_noise


def test_only_the_same_images_are_compared(tmp_path: Path) -> None:
    data = [simulated_dataset("dtd", 5, 40)]
    folder = simulate_run(tmp_path / "run", data, Settings(methods=("zero-shot",), shard_size=8))
    simulate_run(folder, data, Settings(methods=("tpt",), shard_size=8), items=2)
    results = open_results([folder])
    with pytest.raises(OtptError, match="dtd"):
        compare_methods(results, "zero-shot", "tpt")
    assert gap(results, "ece", results.keys_of(method="zero-shot"), results.keys_of(method="tpt")) is None


def graded(data: Dataset, index: int, column: tuple[str, str], seed: int) -> Output:
    """Methods of falling accuracy at the same confidence."""
    right = {"zero-shot": 9, "tpt": 8, "c-tpt": 7, "o-tpt": 3}[column[1]]
    return confident(data, index, right=(7 * index) % 10 < right)


GRADED = ("zero-shot", "tpt", "c-tpt", "o-tpt")


@pytest.fixture(scope="module")
def graded_results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    data = [simulated_dataset(name, 5, 90) for name in ("dtd", "pets")]
    folder = simulate_run(tmp_path_factory.mktemp("graded") / "run", data, Settings(methods=GRADED), output=graded)
    return open_results([folder])


@pytest.mark.parametrize("seed", range(5))
def test_holm_is_the_sequential_procedure(seed: int) -> None:
    """A hypothesis is rejected at a level if its corrected p-value is at most the level."""
    p_values = np.random.default_rng(seed).random(7) ** 3
    corrected = np.array(holm(p_values))
    for level in np.linspace(0.001, 0.999, 200):
        rejected = np.zeros(7, bool)
        for rank, at in enumerate(np.argsort(p_values)):
            if p_values[at] > level / (7 - rank):
                break
            rejected[at] = True
        assert list(corrected <= level) == list(rejected)


def test_tables_and_comparisons_make_the_same_statement(graded_results: Results) -> None:
    """The mark of a table is the answer of the comparison of the best method with all others."""
    (table,) = build_tables(graded_results, "plain", metrics=["accuracy", "ece", "debiased_ece", "nll"])
    cells = evaluation_table(graded_results).cells
    pd.testing.assert_frame_equal(
        *(each.sort_values(["dataset", "method", "metric"], ignore_index=True) for each in (table.cells, cells)),
        check_like=True,
    )
    comparisons = compare_with_others(graded_results, "zero-shot", GRADED[1:])
    seen = set()
    for one in comparisons:
        dataset = "average" if one.dataset == ALL else one.dataset
        for metric in ("accuracy", "ece", "debiased_ece", "nll"):
            best = table.cell(dataset=dataset, method="zero-shot", metric=metric)
            cell = table.cell(dataset=dataset, method=one.b, metric=metric)
            assert best["best"]
            if not cell["best"]:
                assert cell["tie"] == one.differences[metric].is_noise
                assert (one.better(metric) is None) == one.differences[metric].is_noise
                seen.add(bool(cell["tie"]))
    assert seen == {True, False}


def test_every_mark_has_a_legend_in_every_format(graded_results: Results) -> None:
    (table,) = build_tables(graded_results, "plain", metrics=["accuracy", "ece"])
    for form in ("text", "markdown", "latex"):
        text = render([table], form)
        body, _, legend = text.rpartition("chance")
        assert ("\\approx" if form == "latex" else "≈") in body
        assert "best" in body
    flags = pd.read_csv(io.StringIO(render([table], "csv"))).set_index(["method", "metric", "kind"])
    for cell in table.cells.itertuples():
        for kind in ("best", "tie"):
            assert flags.loc[(cell.method, cell.metric, kind), cell.dataset] == getattr(cell, kind)
    (data,) = json.loads(render([table], "json"))
    assert any("chance" in sentence for sentence in data["legend"])
    one, *_ = build_tables(graded_results, "plain", methods=["tpt"], metrics=["accuracy"])
    assert "best" not in one.to_text(), "no mark, no legend"


def test_the_smallest_p_value_is_a_bound(graded_results: Results) -> None:
    comparisons = compare_with_others(graded_results, "zero-shot", ["o-tpt"], resamples=200)
    result = comparisons[0].differences["ece"]
    assert result.p == result.floor == pytest.approx(2 / 201)
    assert result.words == "p ≤ 0.00995"
    assert comparisons[0].differences["accuracy"].floor == 0.0, "McNemar's test is exact"
    assert "p ≤ 0.00995" in comparisons[0].conclusion
    assert any("≤" in note for note in comparison_notes(comparisons))
    assert comparison_frame(comparisons)["p"].min() > 0


def test_a_significant_difference_is_not_called_bias(graded_results: Results) -> None:
    """The debiased ECE confirms it or does not; of few images nothing else is said."""
    confirmed, *_ = compare_with_others(graded_results, "zero-shot", ["o-tpt"])
    assert confirmed.better("ece") == confirmed.better("debiased_ece") == "zero-shot"
    assert "confirms" in confirmed.conclusion
    assert "may explain" not in confirmed.conclusion
    ece = confirmed.differences["ece"]
    unlike = replace(confirmed.differences["debiased_ece"], p=0.4)
    assert ["may explain" in clause for clause in bias_words(ece, unlike)] == [True]
    assert bias_words(replace(ece, p=0.4), unlike) == []


@pytest.mark.parametrize(
    ("options", "value"),
    [
        ({"a": "tpt", "b": "otpt"}, "otpt"),
        ({"a": "tpt", "b": "tpt"}, "tpt"),
        ({"a": "tpt", "b": "o-tpt", "datasets": ["x"]}, "'x'"),
        ({"a": "tpt", "b": "o-tpt", "resamples": 0}, "0"),
    ],
)
def test_bad_input(results: Results, options: dict, value: str) -> None:
    with pytest.raises(OtptError, match=value):
        compare_methods(results, **options)
