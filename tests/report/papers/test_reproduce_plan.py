"""``otpt reproduce paper``: the plan for what is present, and the run of it with a tiny model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from oracles.command import run

from otpt import OtptError
from otpt.costs import find_device
from otpt.report import open_results
from otpt.report.papers.paper import paper_table
from otpt.report.papers.plans import Conditions
from otpt.report.papers.rates import Rates
from otpt.report.papers.reproduce import make_plan
from otpt.runs import Run

pytestmark = pytest.mark.slow

MAIN_METHODS = {"zero-shot", "tpt", "c-tpt", "c-tpt+sals", "c-tpt+penalty", "c-tpt+zs", "o-tpt", "o-tpt-rows"}


def test_plan_of_what_is_present(root: Path, tmp_path: Path) -> None:
    plan = make_plan(Conditions(data=root, out=tmp_path))
    assert not plan.bench
    assert [table.number for table in plan.tables] == [1, 2, 3, 4, 4, *range(5, 20)]
    by_number = {(table.number, table.backbone): table for table in plan.tables}
    main = by_number[2, "ViT-B/16"]
    (of_dtd,) = main.runs
    assert (of_dtd.dataset, of_dtd.images, of_dtd.left, of_dtd.seeds) == ("dtd", 1692, 1692, (0,))
    assert set(of_dtd.methods) == MAIN_METHODS | {"o-tpt+c-tpt"}
    assert set(main.methods) == MAIN_METHODS - {"o-tpt-rows"}
    assert set(main.missing) == set(paper_table(2).datasets) - {"dtd"}
    assert "pets was not found under" in main.missing["pets"]
    for number in (8, 9, 10, 16):
        assert by_number[number, "ViT-B/16"].runs == main.runs, "one run serves all tables of the same images"
    assert by_number[1, "ViT-B/16"].runs == ()
    assert by_number[5, "ViT-B/16"].runs[0].seeds == (0, 1, 2)
    assert by_number[12, "ViT-B/16"].runs[0].prompts == ("a photo of the cool", "an example of")
    assert by_number[13, "RN50"].prompt == "a photo of the cool"
    assert {n for (n, _), table in by_number.items() if table.needs} == {6, 7, 17, 18, 19}
    assert len({run.folder for run in plan.runs}) == len(plan.runs) == 5
    assert (of_dtd.seconds, of_dtd.measured) == (None, False), "nothing was measured, and no machine was named"


def test_own_seeds_take_the_place_of_the_papers(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = make_plan(Conditions(data=root, out=tmp_path, tables=[2, 5], seeds=[4, 5]))
    assert {run.seeds for run in plan.runs} == {(4, 5)}
    assert all(run.left == 2 * run.images for run in plan.runs)
    given = ["reproduce", "paper", "--data", root, "--out", tmp_path, "--tables", 2, "--device", "cpu"]
    code, _, err = run(capsys, *given, "--seeds", 1, 1)
    assert (code, err) == (2, "otpt: The seed 1 is given twice; each is run once.\n")


def test_predicted_where_nothing_was_measured(root: Path, tmp_path: Path) -> None:
    """docs/performance.md: 9.7 s per image with 100 classes and one method on 2 cores; here 47 classes, 9 methods."""
    conditions = Conditions(data=root, out=tmp_path, tables=[2], machine=find_device("cpu", cores=2))
    (run,) = (run for run in make_plan(conditions).runs if "ViT-B-16" in str(run.folder))
    assert run.seconds == pytest.approx(1692 * 10.4, rel=0.2)
    assert not run.measured


def test_measured_rates_come_first(root: Path, tmp_path: Path) -> None:
    rates = Rates(tmp_path)
    rates.add("ViT-B/16", "main", "cpu", images=100, seconds=30.0)
    rates.add("ViT-B/16", "main", "cpu", images=100, seconds=50.0)
    plan = make_plan(Conditions(data=root, out=tmp_path, tables=[2], limit=1000))
    (of_dtd,) = plan.runs
    assert (of_dtd.seconds, of_dtd.measured) == (pytest.approx(400.0), True)
    assert Rates(tmp_path).seconds("RN50", "main", "mps") is None
    (tmp_path / "rates.json").write_text('{"x": 1}')
    with pytest.raises(OtptError, match=r"measured rates .* is damaged; delete it"):
        Rates(tmp_path)


def test_the_plan_in_words(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(
        capsys, "reproduce", "paper", "--data", root, "--out", tmp_path / "runs", "--paper-backbone", "ViT-B/16",
        "--device", "cpu", "--cache", tmp_path / "cache",
    )  # fmt: skip
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].split(maxsplit=4) == ["Table", "1", "groups", "ViT-B/16", "0 of 1 data sets"]
    assert any("1 of 11 data sets, 1692 images to predict, 9 methods: about " in line for line in lines)
    assert sum("made of the runs above" in line for line in lines) == 5
    assert any(line.startswith("Table  6") and "needs CoOp's checkpoint" in line for line in lines)
    assert any(
        line.startswith("Table 17") and "needs medical data" in line and "otpt train baple" in line for line in lines
    )
    assert "All together about " in out
    assert "a core with AVX-512, 75 % of the published peak and bandwidth (see 'otpt plan')." in out
    assert any(line.startswith("  imagenet: imagenet was not found under") for line in lines)
    assert lines[-1] == "Add --go to run it."
    assert not (tmp_path / "runs").exists(), "a plan changes nothing"


def test_run_resume_and_compare_with_the_paper(
    root: Path, model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ("reproduce", "paper", "--go", "--data", root, "--out", tmp_path / "runs", "--paper-backbone", "ViT-B/16",
               "--backbone", model, "--tables", 16, 8, "--limit", 2, "--views", 6, "--device", "cpu",
               "--no-cache")  # fmt: skip
    code, out, _ = run(capsys, *command)
    assert code == 0
    folder = tmp_path / "runs/ViT-B-16/main/dtd"
    made = Run(folder)
    assert made.config["numbers"]["official_precision"]
    assert {images for column in made.datasets[0]["columns"] for images in column["images"].values()} == {2}
    assert [line.split()[:4] for line in made.config["commands"]] == [["otpt", "reproduce", "paper", "--go"]]
    assert len(made.config["methods"]) == 9
    assert "Table 16, ViT-B/16:" in out
    assert "Table 8, ViT-B/16:" in out
    paper = [line.split() for line in out.splitlines() if line.strip().startswith("– paper")]
    assert ["–", "paper", "7.06", "7.06", "–"] in paper, "O-TPT + C-TPT, ECE on DTD and its average over what is there"
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*.parquet")}
    code, out, _ = run(capsys, *command, "--json")
    assert code == 0
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*.parquet")} == before
    shown = json.loads(out)
    assert [table["table"] for table in shown["plan"]["tables"]] == [8, 16]
    (planned,) = shown["plan"]["tables"][0]["runs"]
    assert (planned["images"], planned["left"], planned["seconds"], planned["measured"]) == (2, 0, 0.0, True)
    results = open_results([folder])
    by_layout = {table["layout"]: table for table in shown["tables"]}
    for line in by_layout["combination"]["lines"]:
        cell = next(cell for cell in results.keys if cell.method == line["method"])
        expected = getattr(results.score(cell).metrics, line["metric"])
        assert line["entries"]["dtd"]["value"] == 100.0 * expected
        assert line["entries"]["dtd"]["paper"] == paper_table(16).value(line["method"], line["metric"], "dtd")


def test_without_data_it_is_the_bench_and_says_so(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run(
        capsys, "reproduce", "paper", "--go", "--out", tmp_path, "--tables", 2, 6, "--datasets", "emoji/food",
        "--backbone", model, "--limit", 2, "--views", 6, "--device", "cpu", "--no-cache",
    )  # fmt: skip
    assert code == 0
    assert out.startswith("None of the paper's data sets is present: this is the emoji bench")
    assert "In the form of Table 2, on the emoji bench (not the paper's data):" in out
    assert "– paper" not in out
    assert "  imagenet: no --data was given" in out
    assert Run(tmp_path / "bench/main/emoji-food").config["datasets"][0]["name"] == "emoji/food"


BAD = {
    ("--tables", "20"): "Unknown table of the paper '20'",
    ("--paper-backbone", "ViT-L/14"): "Unknown backbone of the paper 'ViT-L/14'. Did you mean: ViT-B/16",
    ("--data", "nowhere"): "The data root 'nowhere' is not a folder",
    ("--limit", "0"): "The limit is 0; expected 1 or more",
}


@pytest.mark.parametrize("options", BAD, ids=" ".join)
def test_bad_input(options: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "reproduce", "paper", "--out", tmp_path / "runs", *options)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert BAD[options] in err


def test_one_model_for_one_backbone(root: Path, model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "reproduce", "paper", "--data", root, "--out", tmp_path, "--backbone", model)
    assert code == 2
    assert "--backbone was given for two backbones of the paper; choose one" in err
    with pytest.raises(OtptError, match="None of pets is in the plan"):
        make_plan(Conditions(out=tmp_path, datasets=["pets"]))
