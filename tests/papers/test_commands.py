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
    code, out, _ = call(capsys, "reproduce", "paper", "--tables", "2", "--hours-on", "a100", "--json")
    facts = json.loads(out)
    assert code == 0
    assert {exhibit["name"] for exhibit in facts["exhibits"]} == {"Table 2"}
    assert all(job["seconds"] > 0 for job in facts["jobs"])


def test_the_cache_is_mentioned_before_it_overflows(capsys: Captured) -> None:
    words = ("reproduce", "paper", "--tables", "2", "4", "--device", "cuda")
    _, _, err = call(capsys, *words)
    assert "--cache-size" in err
    assert "--cache-size" not in call(capsys, *words, "--cache-size", "200")[2]


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
        (["reproduce", "paper", "--bench", "--data", "."], "--data"),
        (["reproduce", "paper", "--tables", "2", "--context", "coop=x"], "--context"),
        (["reproduce", "paper", "--tables", "2", "--models", "PLIP=x"], "--models"),
        (["reproduce", "paper", "--tables", "2", "--epochs", "3"], "--epochs"),
        (["reproduce", "paper", "--hours-on", "gpu"], "gpu"),
        (["table", "A_RUN", "--paper", "otpt:99"], "99"),
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
