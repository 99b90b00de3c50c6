"""Two methods compared image by image: against scipy's binomial test and the bootstrap of whole probabilities."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from oracles.command import run
from oracles.runs.simulated_runs import simulate_run, simulated_dataset, simulated_output
from scipy import stats

from otpt import OtptError
from otpt.cli.results.compare import _columns
from otpt.evaluation import Settings
from otpt.metrics import bootstrap_difference
from otpt.report import open_results
from otpt.report.compare import ALL, Comparison, Difference, compare_methods, conclusion
from otpt.report.results import ResultKey
from otpt.report.statistics import bootstrap_p, mcnemar_p

pytestmark = pytest.mark.slow

SETS = [simulated_dataset("dtd", 5, 120), simulated_dataset("own", 4, 60)]
METHODS = ("zero-shot", "tpt", "o-tpt")
RESAMPLES = 200


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return simulate_run(tmp_path_factory.mktemp("compare") / "run", SETS, Settings(methods=METHODS, seeds=(0, 5)))


def probabilities(position: int, method: str, seed: int) -> np.ndarray:
    """What the run was made of, all of it."""
    data, column = SETS[position], ("a photo of a", method)
    return np.array([simulated_output(data, i, column, seed).probabilities for i in range(len(data))])


@pytest.mark.parametrize("counts", [(0, 0), (0, 1), (3, 9), (40, 41), (700, 812), (5, 2000), (26000, 25000)])
def test_mcnemar_is_the_binomial_test(counts: tuple[int, int]) -> None:
    expected = stats.binomtest(counts[0], sum(counts)).pvalue if sum(counts) else 1.0
    assert mcnemar_p(*counts) == pytest.approx(expected, rel=1e-8, abs=1e-300)
    assert mcnemar_p(*counts) == mcnemar_p(*counts[::-1])


def test_p_of_the_bootstrap() -> None:
    values = np.concatenate([np.full(97, 0.1), np.full(2, -0.1)])
    assert bootstrap_p(values) == pytest.approx(2 * 3 / 100)
    assert bootstrap_p(-values) == bootstrap_p(values)
    assert bootstrap_p(np.full(99, 0.1)) == pytest.approx(2 / 100)
    assert bootstrap_p(np.zeros(99)) == 1.0


@pytest.mark.parametrize("seed", [0, 5])
def test_differences_are_those_of_whole_probabilities(folder: Path, seed: int) -> None:
    found = compare_methods(open_results([folder]), "o-tpt", "tpt", seed=seed, resamples=RESAMPLES)
    assert [(each.dataset, each.images) for each in found] == [("dtd", 120), ("own", 60), (ALL, 180)]
    right = []
    for position, comparison in enumerate(found[:2]):
        labels = np.array(SETS[position].labels)
        pair = [probabilities(position, method, seed) for method in ("o-tpt", "tpt")]
        for each in comparison.differences:
            expected = bootstrap_difference(each.metric, *((p, labels) for p in pair), resamples=RESAMPLES)
            close = {"rel": 2e-2, "abs": 2e-4} if each.metric == "sce" else {"rel": 1e-7, "abs": 1e-9}
            assert each.difference == pytest.approx(expected.estimate, rel=1e-7, abs=1e-8)
            assert (each.low, each.high) == pytest.approx((expected.low, expected.high), **close)
        first, second = ((p.argmax(axis=1) == labels) for p in pair)
        assert (comparison.only_a, comparison.only_b) == ((first & ~second).sum(), (second & ~first).sum())
        expected_p = stats.binomtest(comparison.only_a, comparison.only_a + comparison.only_b).pvalue
        assert comparison.of("accuracy").p == pytest.approx(expected_p)
        right.append((comparison.only_a, comparison.only_b))
    assert (found[2].only_a, found[2].only_b) == tuple(np.sum(right, axis=0))
    for each in found[2].differences:
        assert each.a == pytest.approx(np.mean([c.of(each.metric).a for c in found[:2]]))


def test_a_clear_difference_is_told_in_words(tmp_path: Path) -> None:
    path = simulate_run(tmp_path / "run", [simulated_dataset("large", 20, 400)], Settings(methods=METHODS))
    (only,) = compare_methods(open_results([path]), "tpt", "o-tpt", resamples=RESAMPLES)
    ece = only.of("ece")
    assert ece.a > ece.b, "TPT is simulated over-confident"
    assert (ece.better, ece.low > 0) == ("o-tpt", True)
    words = conclusion(only, "tpt", "o-tpt")
    assert words.startswith("On large, 400 images: the difference in accuracy may be chance (p = ")
    assert f"o-tpt is better calibrated than tpt by {100 * ece.difference:.2f} points (p = {ece.p:.3g})" in words


def test_the_command(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = ("compare", folder, "--a", "o-tpt", "--b", "tpt", "--resamples", "50")
    code, out, err = run(capsys, *common)
    assert (code, err) == (0, "")
    assert out.splitlines()[0].split() == [
        "data",
        "set",
        "metric",
        "o-tpt",
        "tpt",
        "difference",
        "95",
        "%",
        "p",
        "better",
    ]
    assert "On dtd, 120 images: " in out
    assert "Over all data sets, 180 images: " in out
    assert "18 tests: about 0.9 of them" in out
    code, out, _ = run(capsys, *common, "--json", "--seed", "5", "--level", "0.5", "--datasets", "own")
    shown = json.loads(out)
    assert (code, shown["a"], shown["b"], shown["seed"], shown["level"]) == (0, "o-tpt", "tpt", 5, 0.5)
    (only,) = compare_methods(open_results([folder]), "o-tpt", "tpt", seed=5, datasets=["own"], resamples=50, level=0.5)
    assert shown["comparisons"][0].pop("conclusion") == conclusion(only, "o-tpt", "tpt")
    assert shown["comparisons"] == [json.loads(json.dumps(only.as_dict()))]


def test_two_runs_in_one_comparison(folder: Path, tmp_path: Path) -> None:
    settings = [Settings(methods=[name], seeds=(0, 5)) for name in ("tpt", "o-tpt")]
    paths = [simulate_run(tmp_path / str(i), SETS[:1], each) for i, each in enumerate(settings)]
    apart = compare_methods(open_results(paths), "o-tpt", "tpt", resamples=50)
    together = compare_methods(open_results([folder]), "o-tpt", "tpt", datasets=["dtd"], resamples=50)
    assert apart == together
    half = simulate_run(tmp_path / "half", SETS[:1], settings[0], items=1)
    with pytest.raises(OtptError, match=r"not predicted the same images of 'dtd' \(120 and 64\)"):
        compare_methods(open_results([paths[1], half]), "o-tpt", "tpt")


def test_without_names_the_lowest_ece_meets_the_next_one(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = open_results([folder])
    error = {
        method: np.mean([results.score(ResultKey(data.name, 0, "a photo of a", method)).metrics.ece for data in SETS])
        for method in METHODS
    }
    first, second, third = sorted(error, key=error.__getitem__)
    code, out, _ = run(capsys, "compare", folder, "--resamples", "50", "--json")
    shown = json.loads(out)
    assert (code, shown["a"], shown["b"]) == (0, first, second)
    _, out, _ = run(capsys, "compare", folder, "--resamples", "50", "--json", "--a", third)
    assert (json.loads(out)["a"], json.loads(out)["b"]) == (third, first)
    _, out, _ = run(capsys, "compare", folder, "--resamples", "50", "--a", third, "--b", second)
    assert f"The lowest ECE is that of {first}: {100 * error[first]:.2f} %, against" in out
    _, out, _ = run(capsys, "compare", folder, "--resamples", "50", "--a", third, "--b", first)
    assert "The lowest ECE is that of" not in out


BAD = {
    ("--a", "o-tp", "--b", "tpt"): "Unknown method 'o-tp'. Did you mean: o-tpt",
    ("--a", "tpt", "--b", "tpt"): "Method 'tpt' was given twice",
    ("--a", "o-tpt", "--b", "tpt", "--datasets", "dtt"): "Unknown data set 'dtt'",
    ("--a", "o-tpt", "--b", "tpt", "--seed", "3"): "No run has the seed 3; there are 0, 5",
    ("--a", "o-tpt", "--b", "tpt", "--prompt", "x"): "No data set of the runs has both 'o-tpt' and 'tpt'",
    ("--a", "o-tpt", "--b", "tpt", "--resamples", "0"): "The number of resamples is 0; expected 1 or more",
    ("--a", "o-tpt", "--b", "tpt", "--level", "95"): "expected level between 0 and 1, both excluded, but got 95.0",
    ("--b", "o-tp"): "Unknown method 'o-tp'. Did you mean: o-tpt",
}


@pytest.mark.parametrize("options", BAD, ids=" ".join)
def test_bad_input(options: tuple[str, ...], folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "compare", folder, *options)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert BAD[options] in err


def test_methods_as_on_other_commands(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = METHODS[:2]
    same = run(capsys, "compare", folder, "--a", a, "--b", b, "--json")
    assert run(capsys, "compare", folder, "--methods", a, b, "--json") == same
    assert same[0] == 0
    for words, told in (
        (("--methods", a, b, "--a", a), "give them in one way"),
        (("--methods", a, b, a), "3 methods were given; expected two"),
        ((a, b), f"'{a}' is a method of the run, not a run; write --methods {a} {b}."),
    ):
        code, _, err = run(capsys, "compare", folder, *words)
        assert (code, told in err) == (2, True), err


def test_no_sign_before_nought() -> None:
    difference = Difference("ece", 0.1, 0.1, -1e-6, -0.01, -1e-7, 0.9, None)
    found = Comparison("dtd", 60, 0, 0, False, (difference,))
    assert [column.cells[0] for column in _columns([found], "a", "b", 0.95)][4:6] == ["0.00", "-1.00 … 0.00"]
