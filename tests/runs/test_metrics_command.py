"""``otpt metrics``: every metric of the rows, its intervals, and tables that fit a terminal."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from oracles.command import run
from oracles.runs.runs_bench import CLASSES, PROMPT, config, fill, output
from sklearn.metrics import f1_score, roc_auc_score

from otpt.metrics import bootstrap
from otpt.runs import Run, read_rows
from otpt.runs.scores import AVERAGED

pytestmark = pytest.mark.slow

METHODS = ("zero-shot", "coop+o-tpt+sals")


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one data set."""
    return fill(tmp_path_factory.mktemp("one") / "run", config(METHODS, images=60, shard_size=25)).folder


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two data sets and seeds."""
    given = config(METHODS, images=40, datasets=("tiny", "other"), seeds=(0, 1))
    return fill(tmp_path_factory.mktemp("two") / "run", given).folder


def predicted(method: str) -> tuple[np.ndarray, np.ndarray]:
    """All probabilities and labels, as the rows were made."""
    found = [(index % len(CLASSES), output("tiny", 0, (PROMPT, method), index)) for index in range(60)]
    read = [(label, made.probabilities) for label, made in found if made is not None]
    return np.stack([p for _, p in read]), np.array([label for label, _ in read])


def test_all_metrics_of_one_data_set_fit_a_terminal(one: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "metrics", one)
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    tables = [table.splitlines() for table in out.strip().split("\n\n")]
    *tables, headline, _ = tables
    assert [[line.split()[0] for line in table] for table in tables] == [["tiny", *METHODS]] * 4
    assert [line.split()[0] for line in headline[1::2]] == list(METHODS)
    shown: dict[str, str] = {}
    for head, first, _ in tables:
        titles = re.split(r"\s{2,}", head.strip())[1:]
        shown |= dict(zip(titles, first.split()[1:], strict=True))
    assert len(shown) == len(AVERAGED)
    p, labels = predicted("zero-shot")
    correct = p.argmax(axis=1) == labels
    assert shown["AUROC %"] == f"{100 * roc_auc_score(correct, p.max(axis=1)):.2f}"
    assert shown["macro F1 %"] == f"{100 * f1_score(labels, p.argmax(axis=1), average='macro'):.2f}"
    assert shown["top-label Brier"] == f"{np.mean((p.max(axis=1) - correct) ** 2):.4f}"


def test_json_has_every_metric(one: Path, two: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(run(capsys, "metrics", one, "--json")[1])
    assert set(AVERAGED) <= set(found["scores"][0])
    assert json.loads((one / "metrics.json").read_text())["scores"] == found["scores"]
    found = json.loads(run(capsys, "metrics", two, "--json")[1])
    for name in AVERAGED:
        own = [score[name] for score in found["scores"] if score["method"] == "zero-shot"]
        assert found["averages"][0][name] == pytest.approx(np.mean(own)), name


def test_intervals_are_those_of_the_metrics(one: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(run(capsys, "metrics", one, "--json", "--intervals", 0.9, "--bins", 10)[1])
    p, labels = predicted("zero-shot")
    intervals = found["scores"][0]["intervals"]
    assert set(intervals) == set(AVERAGED)
    for name, ends in intervals.items():
        expected = bootstrap(name, p, labels, level=0.9, n_bins=10)
        # rows hold float32 probabilities, and small ones as sums, which the resamples of SCE divide among the classes
        tolerance = 2e-3 if name == "sce" else 1e-5
        assert ends == pytest.approx([expected.low, expected.high], abs=tolerance), name


def test_intervals_stand_below_the_numbers(one: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(
        capsys, "metrics", one, "--intervals", "--metrics", "ece", "debiased_ece", "aurc", "auroc", "fpr95"
    )
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80, "what is wider is continued below"
    head, numbers, below, *_ = out.splitlines()
    assert re.split(r"\s{2,}", head)[:3] == ["tiny", "ECE %", "debiased ECE %"]
    rows = read_rows(Run(one), "tiny", 0, (PROMPT, "zero-shot"))
    assert rows is not None
    expected = [bootstrap(name, rows.confidences, rows.correct) for name in ("ece", "debiased_ece")]
    assert numbers.split()[:3] == ["zero-shot", *(f"{100 * each.estimate:.2f}" for each in expected)]
    words = [f"{100 * each.low:.2f} … {100 * each.high:.2f}" for each in expected]
    assert re.split(r"\s{2,}", below.strip())[:3] == ["95 %", *words]


def test_several_data_sets_show_what_is_asked_for(two: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "metrics", two)
    titles = [re.split(r"\s{2,}", table)[0] for table in out.strip().split("\n\n")]
    assert (code, titles[:5]) == (0, ["accuracy %", "ECE %", "debiased ECE %", "SCE %", "average"])
    assert titles[5].startswith("With fewer than 500 images of a data set")
    code, out, _ = run(capsys, "metrics", two, "--metrics", "aurc", "--intervals", 0.5)
    assert code == 0
    assert out.splitlines()[0].split() == ["AURC", "%", "tiny", "other", "average"]
    low, high = map(float, re.findall(r"(\S+) … (\S+)", out.splitlines()[2])[-1])
    mean = float(re.findall(r"(\S+) ±", out.splitlines()[1])[-1])
    assert low < mean < high


def test_refusals(one: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "metrics", one, "--metrics", "aurok", "--json")
    assert code == 2
    assert "Unknown metric 'aurok'. Did you mean: auroc" in err
    code, _, err = run(capsys, "metrics", one, "--intervals", 95)
    assert code == 2
    assert "expected level between 0 and 1" in err
