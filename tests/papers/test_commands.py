"""``otpt reproduce``, and the options of ``otpt table`` and ``otpt plot`` that the entry points bring."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from otpt.cli import main

Captured = pytest.CaptureFixture[str]


def call(capsys: Captured, *words: object) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main([str(word) for word in words])
    return (code, *capsys.readouterr())


def test_reproduce_plans_without_data(capsys: Captured) -> None:
    code, out, _ = call(capsys, "reproduce", "paper", "--tables", "2", "--device", "cuda", "--json")
    assert code == 0
    assert {table["number"] for table in json.loads(out)["plan"]["tables"]} == {"2"}


@pytest.mark.slow
def test_reproduce_runs_the_bench(capsys: Captured, tmp_path: Path) -> None:
    pytest.importorskip("resvg_py")
    part = (
        "--tables",
        "4",
        "--datasets",
        "emoji/line",
        "--methods",
        "zero-shot",
        "tpt",
        "--limit",
        "3",
        "--views",
        "4",
    )
    words = ("reproduce", "paper", "--bench", *part, "--go", "--out", tmp_path, "--no-cache")
    code, out, err = call(capsys, *words)
    assert code == 0, err
    assert "Table 4, bench:" in out
    code, out, _ = call(capsys, *words, "--json")
    assert code == 0
    (table,) = json.loads(out)["tables"]
    assert {cell["method"] for cell in table["cells"]} == {"zero-shot", "tpt"}


def test_table_has_the_papers_layouts_and_numbers(capsys: Captured, runs: dict[str, Path]) -> None:
    assert "Zero-shot" in call(capsys, "table", runs["main"])[1]
    for words in (["--paper-backbone", "RN50"], ["--paper", "--paper-backbone", "RN50"]):
        code, out, _ = call(capsys, "table", runs["main"], "--layout", "sce", *words, "--format", "json")
        assert (code, json.loads(out)[0]["paper_table"]) == (0, "11")


def test_plot_has_the_papers_figure(capsys: Captured, runs: dict[str, Path], tmp_path: Path) -> None:
    file = tmp_path / "groups.png"
    words = ("plot", "groups", runs["main"], "--datasets", "dtd", "--methods", "o-tpt", "--out", file, "--dpi", "40")
    assert call(capsys, *words)[0] == 0
    assert file.stat().st_size > 1000


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["reproduce", "papr"], "paper"),
        (["table", "A_RUN", "--layout", "mian"], "main"),
        (["table", "A_RUN", "--paper", "cotz"], "cots"),
        (["table", "A_RUN", "--paper", "cots", "--layout", "sce"], "--layout"),
        (["table", "A_RUN", "--paper-backbone", "RN51"], "RN51"),
        (["table", "A_RUN", "--paper"], "--paper-backbone"),
    ],
)
def test_bad_input(capsys: Captured, runs: dict[str, Path], words: list[str], named: str) -> None:
    code, out, err = call(capsys, *(runs["main"] if word == "A_RUN" else word for word in words))
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert named in err
