"""``otpt reproduce cots``: the plan, its commands, and the run of it with a tiny model."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from oracles.command import run

from otpt import OtptError
from otpt.report.papers.commands import shell_loops
from otpt.report.papers.plans import Conditions, PlannedRun
from otpt.report.papers.reproduce import get_study, make_plan
from otpt.runs import Run

pytestmark = pytest.mark.slow


def test_plan_of_what_is_present(root: Path, tmp_path: Path) -> None:
    plan = make_plan(Conditions(data=root, out=tmp_path), get_study("cots"))
    assert [(table.number, table.backbone) for table in plan.tables] == [
        ("sets", "ViT-B/16"), ("shifts", "ViT-B/16"), ("sets", "RN50"), ("shifts", "RN50"), ("tda", "ViT-B/16"),
        ("coop-sets", "ViT-B/16"), ("coop-shifts", "ViT-B/16"), ("siglip-sets", "SigLIP"), ("siglip-shifts", "SigLIP"),
    ]  # fmt: skip
    by_name = {(table.number, table.backbone): table for table in plan.tables}
    main = by_name["sets", "ViT-B/16"]
    (of_dtd,) = main.runs
    assert (of_dtd.dataset, of_dtd.images, of_dtd.left, of_dtd.seeds) == ("dtd", 1692, 3 * 1692, (0, 1, 2))
    assert of_dtd.augmix is None
    assert {"zero-shot+weak-strong", "tpt+e-cots", "soc", "tda"} <= set(of_dtd.methods)
    assert not [name for name in of_dtd.methods if name.startswith("ttl")], "this package does not have it"
    assert "tda" not in main.methods
    assert by_name["tda", "ViT-B/16"].runs == main.runs, "one run serves both tables of the same images"
    assert by_name["sets", "RN50"].runs[0].folder == tmp_path / "RN50/main/dtd"
    assert {table.number for table in plan.tables if table.needs} == {
        "coop-sets", "coop-shifts", "siglip-sets", "siglip-shifts",
    }  # fmt: skip
    few = make_plan(Conditions(data=root, out=tmp_path, methods=["tpt", "o-tpt"], tables=["sets"]), get_study("cots"))
    assert [run.methods for run in few.runs] == [("tpt", "o-tpt")] * 2


def test_views_of_shifts_are_not_mixed() -> None:
    study = get_study("cots")
    assert (study.augmix, study.seeds) == ({"shifts": False}, (0, 1, 2))
    paper = get_study("paper")
    assert (paper.augmix, paper.seeds) == ({}, None)


def test_the_plan_in_words(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "runs"
    code, out, err = run(
        capsys, "reproduce", "cots", "--data", root, "--out", folder, "--paper-backbone", "ViT-B/16", "--device", "cpu",
        "--methods", "zero-shot", "tpt", "coop+tpt",
    )  # fmt: skip
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].split(maxsplit=3)[:3] == ["Table", "sets", "ViT-B/16"]
    assert "1 of 11 data sets, 5076 images to predict, 2 methods: about 13 h" in lines[0]
    assert f"dtd: 1692 images × 3 seeds, to do, in {str(folder / 'ViT-B-16/main/dtd')!r}" in lines[1]
    assert any(line.startswith("Table coop-sets") and "needs CoOp's checkpoint" in line for line in lines)
    assert any(line.startswith("  imagenet-r: imagenet-r was not found under") for line in lines)
    assert lines[-1] == "Add --go to run it."
    start = lines.index("The same as commands:") + 1
    command = " ".join(line.rstrip("\\").strip() for line in lines[start : lines.index("done")])
    head, _, body = command.partition("; do ")
    assert head == "for set in dtd"
    words = "otpt evaluate $set --data {} --backbone ViT-B-16/openai --methods zero-shot tpt --seeds 0 1 2"
    assert body.startswith(words.format(shlex.quote(str(root))))
    assert body.endswith(f"--out {shlex.quote(str(folder / 'ViT-B-16/main'))}/$set")
    assert not folder.exists(), "a plan changes nothing"


def test_only_food101_has_other_names_in_the_papers(tmp_path: Path) -> None:
    runs = [
        PlannedRun(tmp_path / name, name, "main", ("tpt",), None, (0,), list, 1, 1, None, False, augmix)
        for name, augmix in (("dtd", None), ("food101", None), ("pets", None), ("imagenet-a", False))
    ]
    loops = shell_loops(runs, Conditions(data=Path("my data")), "RN50/openai")
    assert [loop.partition("; do\n")[0] for loop in loops] == [
        "for set in dtd pets", "for set in food101", "for set in imagenet-a",
    ]  # fmt: skip
    assert ["--official-names" in loop for loop in loops] == [False, True, False]
    assert ["--no-augmix" in loop for loop in loops] == [False, False, True]
    assert all("--data 'my data'" in loop for loop in loops)


def test_methods_that_are_left_out_are_named(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "reproduce", "cots", "--data", root, "--out", tmp_path, "--json", "--device", "cpu")
    assert code == 0
    shown = json.loads(out)
    assert shown["left_out"]["ttl+cots"] == "it tunes the image tower by LoRA for each image"
    (planned,) = shown["plan"]["tables"][0]["runs"]
    assert {"zero-shot", "tpt", "tpt+sals", "o-tpt"} <= set(planned["methods"])
    assert not set(planned["methods"]) & set(shown["left_out"])
    code, out, _ = run(capsys, "reproduce", "cots", "--data", root, "--out", tmp_path, "--device", "cpu")
    assert "Left out: ttl, ttl+sals, ttl+cots, ttl+e-cots (it tunes the image tower" in out


def test_run_it_and_its_command_finds_nothing_left(
    root: Path, model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("reproduce", "cots", "--data", root, "--out", tmp_path / "runs", "--paper-backbone", "ViT-B/16",
               "--backbone", model, "--tables", "sets", "--methods", "zero-shot", "o-tpt", "--limit", 2, "--views", 6,
               "--device", "cpu", "--no-cache")  # fmt: skip
    code, out, _ = run(capsys, *options, "--go")
    assert code == 0
    assert "Table sets, ViT-B/16:" in out
    folder = tmp_path / "runs/ViT-B-16/main/dtd"
    assert tuple(Run(folder).seeds) == (0, 1, 2)
    beside = out[out.index("Beside CoTS and E-CoTS, ViT-B/16: sets") :]
    assert max(map(len, beside.splitlines())) <= 80
    assert "The runs differ: the model is" in beside.replace("\n", " ")
    rows = [line.split() for line in beside.splitlines()]
    assert [row[-2] for row in rows if row[:2] == ["DTD", "zero-shot"]] == ["8.24"]
    assert [row[-2] for row in rows if row[:1] == ["o-tpt"] and len(row) == 7] == ["7.66"]
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*.parquet")}
    code, out, _ = run(capsys, *options, "--go", "--json")
    shown = json.loads(out)
    assert code == 0
    assert shown["beside"][0]["rows"][0]["ece"]["paper"] == 8.24
    assert [run["left"] for table in shown["plan"]["tables"] for run in table["runs"]] == [0]
    (command,) = shown["commands"]
    code, _, err = run(capsys, *shlex.split(command)[1:], "--no-cache")
    assert code == 0, err
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*.parquet")} == before


def test_without_numbers_to_stand_beside(
    root: Path, model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run(
        capsys, "reproduce", "cots", "--go", "--data", root, "--out", tmp_path, "--paper-backbone", "RN50",
        "--backbone", model, "--tables", "sets", "--methods", "zero-shot", "--limit", 2, "--views", 6,
        "--device", "cpu", "--no-cache",
    )  # fmt: skip
    assert code == 0
    assert "for its RN50 numbers of zero-shot they lack imagenet, flowers102, food101" in out


BAD = {
    ("cot",): "Unknown paper to reproduce 'cot'. Did you mean: cots? Available: paper, cots",
    ("cots", "--tables", "set"): "Unknown table of the paper 'set'. Did you mean: sets",
    ("cots", "--paper-backbone", "ViT-L/14"): "Unknown backbone of the paper 'ViT-L/14'. Did you mean: ViT-B/16",
    ("cots", "--methods", "otpt"): "Unknown method of the paper 'otpt'. Did you mean: o-tpt",
    ("cots", "--data", "nowhere"): "The data root 'nowhere' is not a folder",
    ("paper", "--methods", "soc"): "Unknown method of the paper 'soc'",
}


@pytest.mark.parametrize("options", BAD, ids=" ".join)
def test_bad_input(options: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "reproduce", *options, "--out", tmp_path / "runs")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert BAD[options] in err


def test_unknown_study() -> None:
    with pytest.raises(OtptError, match="Unknown paper to reproduce 'fpp'"):
        get_study("fpp")
