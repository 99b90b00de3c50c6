"""Every command but predict and serve once, in this process."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from PIL import Image

from otpt.cli.commands import all_commands
from otpt.data import photograph

from .conftest import Run

COMMANDS = [name for own in all_commands().values() for name in own]


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_an_example(otpt: Run, name: str) -> None:
    code, out, err = otpt(*name.split(), "--help")
    assert (code, err) == (0, "")
    assert f"otpt {name}" in out.partition("Examples:")[2]


def test_help_of_an_evaluation_is_short(otpt: Run) -> None:
    shown, whole = (otpt("evaluate", option)[1].count("\n  --") for option in ("--help", "--help-all"))
    assert shown <= 22 < 40 < whole


def test_default_folder_is_named_after_what_is_computed(otpt: Run, model: str, images: Path, tmp_path: Path) -> None:
    words = ("evaluate", images, "--backbone", model, "--methods", "zero-shot", "--no-cache")
    assert otpt(*words)[0] == otpt(*words, "--json", "--threads", "1")[0] == 0
    assert len(list((tmp_path / "runs").iterdir())) == 1
    assert otpt(*words, "--limit", "4")[0] == 0
    assert len(list((tmp_path / "runs").iterdir())) == 2


def test_sweep(otpt: Run, model: str, images: Path) -> None:
    words = ("--backbone", model, "--views", "2", "--no-cache", "--json", "--limit", "4")
    code, out, _ = otpt("sweep", images, *words, "--sweep", "lambda=0,6", "--prompts", "a photo of a", "a {} sketch.")
    assert code == 0
    found = {(score["method"], score["prompt"]) for score in json.loads(out)["scores"]}
    assert {method for method, _ in found} == {"o-tpt[lambda=0]", "o-tpt[lambda=6]"}
    assert len(found) == 4


def test_calibrate_and_use(otpt: Run, model: str, images: Path, tmp_path: Path) -> None:
    for name in ("a", "b", "c"):  # twenty labels are needed
        for path in images.rglob("*.png"):
            copy = tmp_path / "many" / path.parent.name / f"{name}-{path.name}"
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, copy)
    words = ("--backbone", model, "--methods", "zero-shot")
    code, out, _ = otpt("calibrate", "many", *words, "-o", "cal.json", "--no-cache", "--json", "--figure", "cal.png")
    assert code == 0
    assert json.loads(out)["labels"] == 24
    assert (tmp_path / "cal.png").stat().st_size > 1000
    words = (*words, "--classes", "cat", "dog", "--calibration", "cal.json", "--coverage", "0.8", "--json")
    code, out, _ = otpt("predict", images / "cat" / "0.png", *words)
    assert code == 0
    assert set(json.loads(out)["set"]) <= {"cat", "dog"}


def test_metrics(otpt: Run, run_folder: Path, tmp_path: Path) -> None:
    code, out, _ = otpt("metrics", run_folder, "--bins", "15", "--json", "--seeds", "1", "--methods", "o-tpt")
    assert code == 0
    (score,) = json.loads(out)["scores"]
    assert (score["seed"], score["method"]) == (1, "o-tpt")
    assert all(word in otpt("metrics", run_folder)[1] for word in ("zero-shot", "o-tpt", "accuracy", "ECE"))
    assert otpt("metrics", run_folder, "-o", "m.csv")[0] == 0
    assert sorted(pd.read_csv(tmp_path / "m.csv").method) == ["o-tpt", "o-tpt", "zero-shot", "zero-shot"]
    assert otpt("metrics", run_folder, "--intervals", "0.9", "--metrics", "ece")[0] == 0
    details = ("metrics", run_folder, "--per-class", "--confusions", "2")
    assert {row["class"] for row in json.loads(otpt(*details, "--json")[1])["classes"]} == {"cat", "dog"}
    assert "accuracy %" in otpt(*details)[1]


def test_compare(otpt: Run, run_folder: Path) -> None:
    code, out, _ = otpt("compare", run_folder, "--methods", "o-tpt", "zero-shot", "--json", "--resamples", "50")
    assert code == 0
    assert (json.loads(out)["method"], json.loads(out)["others"]) == ("o-tpt", ["zero-shot"])
    assert otpt("compare", run_folder, "--resamples", "50")[0] == 0


def test_table_plot_and_report(otpt: Run, run_folder: Path, tmp_path: Path) -> None:
    assert "zero-shot" in otpt("table", run_folder, "--layout", "plain")[1]
    assert otpt("table", run_folder, "--out", "t.md")[0] == 0
    assert (tmp_path / "t.md").read_text(encoding="utf-8").count("|") > 10
    assert otpt("plot", "reliability", run_folder, "--out", "f.png")[0] == 0
    assert otpt("report", run_folder, "--out", "r.html", "--images", "0")[0] == 0
    assert "<html" in (tmp_path / "r.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_similarity(otpt: Run, model: str, run_folder: Path, tmp_path: Path) -> None:
    words = ("--classes", "cat", "dog", "bird", "--prompts", "a photo of a", "--backbone", model)
    assert otpt("plot", "similarity", *words, "-o", "s.svg")[0] == 0
    assert otpt("plot", "similarity", run_folder, "--device", "cpu", "-o", "r.svg")[0] == 0  # the run's own backbone
    assert all((tmp_path / name).stat().st_size > 1000 for name in ("s.svg", "r.svg"))


@pytest.mark.parametrize("method", ["coop+zero-shot", "maple+tpt"])
def test_train(otpt: Run, model: str, images: Path, method: str) -> None:
    words = ("--backbone", model, "--epochs", "1", "--shots", "2", "--out", "p.safetensors", "--json")
    code, out, _ = otpt("train", method.split("+")[0], images, *words)
    assert code == 0
    assert json.loads(out.splitlines()[-1])["files"] == ["p.safetensors"]
    words = ("predict", images / "cat" / "0.png", "--classes", "cat", "dog", "--backbone", model, "--views", "2")
    assert otpt(*words, "--methods", method, "--set", "context=p.safetensors")[0] == 0


def test_settings_of_one_part(otpt: Run, model: str, images: Path) -> None:
    words = ("--backbone", model, "--epochs", "1", "--shots", "2", "--json")
    for kind in ("coop", "maple"):
        assert otpt("train", kind, images, *words, "--out", f"{kind}.safetensors")[0] == 0
    words = (
        "predict",
        images / "cat" / "0.png",
        "--classes",
        "cat",
        "dog",
        "--backbone",
        model,
        "--views",
        "2",
        "--json",
    )
    words = (*words, "--methods", "coop", "maple+tpt", "--set")
    code, out, _ = otpt(*words, "coop.context=coop.safetensors", "maple.context=maple.safetensors")
    assert code == 0
    assert [json.loads(line)["method"] for line in out.splitlines()] == ["coop", "maple+tpt"]
    code, _, err = otpt(*words, "cocoop.context=coop.safetensors")
    assert (code, "'cocoop'" in err) == (2, True)


@pytest.mark.slow
def test_demo(otpt: Run, tmp_path: Path) -> None:
    pytest.importorskip("resvg_py")
    code, out, _ = otpt("demo", "--images", "2", "--workers", "1", "--methods", "confident-half", "--out", "d")
    assert code == 0
    assert {path.name for path in (tmp_path / "d").iterdir()} >= {"report.html", "reliability.png"}
    assert len(out.splitlines()) <= 32
    for file, label in (("cat.jpg", "cat "), ("coffee.jpg", "cup of coffee "), ("rocket.jpg", "rocket ")):
        (line,) = [line for line in out.splitlines() if line.startswith(file)]
        assert line.removeprefix(file).lstrip().startswith(label)
    assert max(map(len, out.splitlines())) <= 80


def test_lists(otpt: Run, images: Path, tmp_path: Path) -> None:
    assert "dtd" in {row["name"] for row in json.loads(otpt("datasets", "--json")[1])}
    assert json.loads(otpt("datasets", "check", images, "--json")[1])["images"] == 8
    assert "o-tpt" in json.loads(otpt("methods", "--json")[1])
    assert "pocket" in {row["name"] for row in json.loads(otpt("models", "--json")[1])}
    assert json.loads(otpt("cache", "info", "--cache", tmp_path, "--json")[1])["entries"] == 0
    assert "torch" in json.loads(otpt("doctor", "--json", "--cache", tmp_path)[1])["versions"]
    for words in (["datasets"], ["methods"], ["models"], ["doctor"], ["cache", "info", "--cache", tmp_path]):
        assert otpt(*words)[0] == 0


def test_completion(otpt: Run) -> None:
    code, out, _ = otpt("completion", "bash")
    assert code == 0
    assert all(word in out for word in ("predict", "backbone", "maple", "check"))


@pytest.mark.slow
def test_plan(otpt: Run) -> None:
    code, out, _ = otpt("plan", "predict", "20000", "--classes", "40", "--backbone", "RN50", "--json")
    assert code == 0
    rows = {(row["device"], row["views"]): row for row in json.loads(out)["plan"]}
    assert {views for _, views in rows} >= {1, 64}
    assert rows["here", 64]["flops"] == pytest.approx(64 * rows["here", 1]["flops"])
    assert rows["h100", 64]["seconds"] < rows["here", 64]["seconds"]
    for backbone in ("pocket", "pocket-photo"):
        assert otpt("plan", "dtd", "--backbone", backbone, "--methods", "o-tpt", "zero-shot")[0] == 0


@pytest.mark.slow
def test_plan_needs_no_loaded_model(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "otpt", "plan", "dtd", "--backbone", "pocket-photo", "--methods", "zero-shot"]
    assert subprocess.run(words, cwd=tmp_path, capture_output=True, timeout=200).returncode == 0


@pytest.mark.parametrize("backbone", ["pocket", "pocket-photo"])
def test_pocket_says_that_photographs_need_another_model(otpt: Run, tmp_path: Path, backbone: str) -> None:
    Image.new("RGB", (64, 64), (200, 30, 30)).save(tmp_path / "drawing.png")
    words = ["--classes", "cat", "dog", "--methods", "zero-shot", "--backbone", backbone]
    for image, photographic in ((photograph("cat"), True), (tmp_path / "drawing.png", False)):
        code, _, err = otpt("predict", image, *words)
        assert code == 0
        assert ("--backbone pocket-photo" in err) == (photographic and backbone == "pocket")
