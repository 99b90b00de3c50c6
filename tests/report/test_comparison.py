"""Two methods compared image by image: against scipy's binomial test and the bootstrap of whole probabilities."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from oracles.runs.report_bench import SEEDS, SETS, probabilities
from oracles.runs.simulated_runs import simulate_run, simulated_dataset
from scipy import stats

from otpt import OtptError
from otpt.data import Dataset
from otpt.evaluation import Evaluation as Settings
from otpt.methods import Output
from otpt.metrics import bootstrap_difference
from otpt.report import Results, build_tables, compare_methods, comparison_table, gap, open_results, ranked
from otpt.report.comparison import ALL, bootstrap_p, mcnemar_p


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
