"""Terminals of 80 and 60 columns: no line is longer, and no digit is cut."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from oracles.command import run
from oracles.runs.simulated_runs import simulate_run, simulated_dataset

from otpt.evaluation import Settings
from otpt.report.tables.fitting import Column, fit, wrapped

pytestmark = pytest.mark.slow

LONG = ("tpt", "tpt+agreement+e-cots", "coop+o-tpt+sals+weak-strong"[5:])


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("widths")
    settings = Settings(methods=LONG, prompts=["a photo of a", "a blurry black and white photo of a"])
    sets = [simulated_dataset(name, classes=5, images=40) for name in ("dtd", "a-folder-with-a-long-name", "pets")]
    simulate_run(folder / "several", sets, Settings(methods=LONG))
    simulate_run(folder / "one", sets[:1], settings)
    return folder


COMMANDS = {
    "methods": ("methods",),
    "models": ("models",),
    "datasets": ("datasets",),
    "metrics": ("metrics", "several"),
    "metrics of one set": ("metrics", "one"),
    "intervals": ("metrics", "one", "--intervals", "--metrics", "ece", "accuracy", "brier", "aurc"),
    "classes": ("metrics", "several", "--per-class"),
    "confusions": ("metrics", "several", "--confusions", "3"),
    "table": ("table", "several", "--layout", "main", "--datasets", "dtd", "pets", "a-folder-with-a-long-name",
              "--methods", *LONG),
    "compare": ("compare", "several", "--a", LONG[1], "--b", LONG[2]),
    "doctor": ("doctor",),
}  # fmt: skip
WORDS = ("methods", "compare")  # whose sentences around the tables are wrapped by the terminal itself


@pytest.mark.parametrize("columns", [80, 60])
@pytest.mark.parametrize("command", COMMANDS)
def test_tables_fit_and_keep_their_digits(
    command: str, columns: int, runs: Path, capsys, monkeypatch, terminal: Callable[[int], None]
) -> None:
    monkeypatch.chdir(runs)
    _, wide, _ = run(capsys, *COMMANDS[command])
    terminal(columns)
    code, out, err = run(capsys, *COMMANDS[command])
    assert code == 0, err
    out = re.sub(r"\x1b\[[0-9;]*m", "", out)  # bold
    lines = [line.rstrip() for line in out.splitlines()]
    assert max(map(len, (line for line in lines if command not in WORDS or re.search(r"\S  +\S", line)))) <= columns
    assert "…" not in re.sub(r"\d (…) -?\d| …[,.)]|\[NAME …", "", out) or command in ("methods", "models")
    numbers = r"(?<![\w.])-?\d+\.\d+(?:e-\d+)?(?!\w)"
    if command not in ("methods", "models", "datasets", "doctor"):
        assert sorted(re.findall(numbers, out)) == sorted(re.findall(numbers, wide)), "every number, whole"


def test_a_bar_and_its_table_fit() -> None:
    import io

    from rich.console import Console

    from otpt.evaluation.progress import ImageDone, Started, TerminalProgress

    progress = TerminalProgress(Console(width=60, file=io.StringIO()))
    progress(Started(128, 300))
    progress(ImageDone("a-folder-with-a-long-name", 0, {("a photo of a", name): (0.9, True) for name in LONG}))
    paper = Console(width=60, file=io.StringIO())
    paper.print(progress._live.get_renderable())
    shown = paper.file.getvalue()  # type: ignore[attr-defined]
    assert "129/300" in shown
    assert shown.count("100.00") >= len(LONG)
    assert "10.00" in shown
    assert max(map(len, shown.splitlines())) <= 60


def test_names_are_wrapped_at_their_joints() -> None:
    assert wrapped("tpt+agreement+e-cots", 14) == "tpt+agreement+\ne-cots"
    assert wrapped("unbreakable", 4) == "unbr\neaka\nble"
    assert wrapped("a b", 10) == "a b"


def test_letters_that_take_two_places() -> None:
    assert wrapped("漢字" * 4, 6) == "漢字漢\n字漢字\n漢字"
    assert wrapped("abcdefabcdef ghi", 6) == "abcdef\nabcdef\nghi"


def test_columns_of_numbers_are_continued_below() -> None:
    names = Column("method", ["x" * 30], is_name=True)
    numbers = [Column(f"n{i}", ["12.345"]) for i in range(8)]
    parts = fit([names, *numbers], 40)
    assert [at for shown, _ in parts for at in shown if at] == list(range(1, 9)), "each once, in order"
    for shown, widths in parts:
        assert shown[0] == 0, "beside the names"
        assert sum(widths) + 2 * (len(widths) - 1) <= 40
        assert all(wide == 6 for at, wide in zip(shown, widths, strict=True) if at)
    assert fit([names, *numbers], None) == [(list(range(9)), [30, *[6] * 8])]
