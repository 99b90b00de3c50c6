"""``otpt plot``: every figure by one command, and what is told when it cannot be made."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
from oracles.command import run
from oracles.runs.figure_bench import NAMES, PROMPTS, Bench

from otpt.backbones import load_backbone
from otpt.methods.prompt_tuning import TextSide
from otpt.prompts import Prompt
from otpt.report import figures
from otpt.report.figures import FIGURES, similarity

pytestmark = pytest.mark.slow

FROM = {"seeds": ("seeds",), "pareto": ("sweep",), "templates": ("prompts",)}


@pytest.mark.parametrize("kind", FIGURES)
def test_every_figure_by_one_command(
    kind: str, bench: Bench, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    few = [] if kind in {"radar", *FROM} else ["--datasets", "second", "--methods", "tpt", "o-tpt"]
    few += ["--best", 3] if kind == "templates" else []
    code, out, _ = run(capsys, "plot", kind, *(bench.runs[name] for name in FROM.get(kind, ("main",))),
                       "-o", tmp_path / "figure.svg", *few)  # fmt: skip
    assert (code, out) == (0, f"The figure is in {str(tmp_path / 'figure.svg')!r}.\n")
    assert ET.parse(tmp_path / "figure.svg").getroot().tag.endswith("svg")


def test_similarity_of_a_run(
    bench: Bench, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    real = similarity.draw_similarity
    monkeypatch.setattr(figures, "draw_similarity", lambda *a, **k: made.append(real(*a, **k)) or made[-1])
    code, _, _ = run(capsys, "plot", "similarity", bench.runs["prompts"], "-o", tmp_path / "s.pdf", "--device", "cpu")
    assert code == 0
    (axes,) = made[0].axes
    results = bench.results("prompts")
    backbone = load_backbone(bench.model, device="cpu")
    curves, means = axes.lines[::2], axes.lines[1::2]
    for prompt, curve, mark in zip(PROMPTS, curves, means, strict=True):
        features = TextSide(backbone, NAMES, Prompt(prompt)).text_features.numpy()
        pairs = [float(features[i] @ features[j]) for i in range(4) for j in range(i)]
        assert mark.get_xdata()[0] == pytest.approx(np.mean(pairs), abs=1e-6)
        score = results.score(results.keys[0]._replace(prompt=prompt))
        assert f"ECE {100 * score.metrics.ece:.2f}" in curve.get_label()


def test_similarity_of_a_seed(bench: Bench, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    given = ["plot", "similarity", bench.runs["prompts"], "-o", tmp_path / "s.png", "--device", "cpu"]
    assert run(capsys, *given, "--seed", 0)[0] == 0
    code, _, err = run(capsys, *given, "--seed", 9)
    assert code == 2
    assert "No run has the seed 9; there are 0" in err


def test_similarity_without_a_run(bench: Bench, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "classes.txt").write_text("red panda\ncat\nsea\n", encoding="utf-8")
    given = ["plot", "similarity", "--backbone", bench.model, "--device", "cpu", "-o", tmp_path / "s.png"]
    words = ["--prompts", "a photo of a", "itap of a", "a [CLS] in a video game"]
    assert run(capsys, *given, "--classes", tmp_path / "classes.txt", *words)[0] == 0
    assert run(capsys, *given, "--dataset", "first", "--data", bench.data, *words)[0] == 0
    assert (tmp_path / "s.png").read_bytes().startswith(b"\x89PNG")
    for more, message in (
        (words, "No classes are known"),
        (["--classes", tmp_path / "classes.txt"], "No prompt is known"),
        (["--classes", tmp_path / "none.txt", *words], "Cannot read the class list"),
    ):
        code, _, err = run(capsys, *given, *more)
        assert (code, message in err) == (2, True)


def test_what_cannot_be_drawn_is_told(bench: Bench, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    main, out = bench.runs["main"], ["-o", tmp_path / "f.png"]
    for given, message in (
        (["reliability", tmp_path / "nothing", *out], "There is no run in"),
        (["reliability", main, "-o", tmp_path / "f.gif"], "Unknown figure format 'gif'"),
        (["reliability", main, *out, "--methods", "o-tpp"], "Unknown method 'o-tpp'"),
        (["reliability", main, *out, "--bins", "0"], "expected bins as an integer from 1 to 100, but got 0"),
        (["reliability", main, *out, "--dpi", "5"], "expected 20 to 1200"),
        (["pie", main, *out], "invalid choice: 'pie'"),
        (["seeds", main, *out], "hold one seed"),
        (["pareto", main, *out], "hold no sweep"),
        (["templates", bench.runs["prompts"], *out, "--best", "2"], "expected 3 or more"),
        (["posthoc", main, main, *out], "cannot be compared"),
        (["similarity", main, *out, "--dataset", "nothing"], "Unknown data set of the runs"),
    ):
        code, _, err = run(capsys, "plot", *given)
        assert (code, message in err) == (2, True), err
    assert not (tmp_path / "f.png").exists()


def test_other_bins_are_those_of_the_metrics(bench: Bench, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Drawn with other bins, the figure differs; with the run's own, given by number, it does not."""
    figures = []
    for bins in ([], ["--bins", "10", "--side", "right"], ["--bins", "5", "--side", "left"]):
        path = tmp_path / f"{len(figures)}.svg"
        few = ["--datasets", "first", "--methods", "tpt"]
        assert run(capsys, "plot", "reliability", bench.runs["main"], "-o", path, *few, *bins)[0] == 0
        figures.append(path.read_bytes())
    assert figures[0] == figures[1]
    assert figures[0] != figures[2]
