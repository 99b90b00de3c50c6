"""Every other command once, in this process."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from .conftest import Run


def test_evaluate_again_adds_nothing(otpt: Run, run_folder: Path, model: str, images: Path) -> None:
    words = ("evaluate", images, "--backbone", model, "--methods", "zero-shot", "o-tpt", "--views", "2")
    code, out, _ = otpt(
        *words, "--out", run_folder, "--no-cache", "--save-probabilities", "--seeds", "0", "1", "--json"
    )
    assert code == 0
    assert {score["method"] for score in json.loads(out)["scores"]} == {"zero-shot", "o-tpt"}


def test_default_folder_is_named_after_what_is_computed(otpt: Run, model: str, images: Path, tmp_path: Path) -> None:
    words = ("evaluate", images, "--backbone", model, "--methods", "zero-shot", "--no-cache")
    assert otpt(*words)[0] == otpt(*words, "--json", "--threads", "1")[0] == 0
    assert len(list((tmp_path / "runs").iterdir())) == 1
    assert otpt(*words, "--limit", "4")[0] == 0
    assert len(list((tmp_path / "runs").iterdir())) == 2


def test_sweep(otpt: Run, model: str, images: Path) -> None:
    words = ("--backbone", model, "--views", "2", "--no-cache", "--json", "--limit", "4")
    code, out, _ = otpt("sweep", images, *words, "--set", "lambda=0,6", "--prompts", "a photo of a", "a {} sketch.")
    assert code == 0
    scores = json.loads(out)["scores"]
    assert {score["method"] for score in scores} == {"o-tpt[lambda=0]", "o-tpt[lambda=6]"}
    assert len({score["prompt"] for score in scores}) == 2


def test_calibrate_and_use(otpt: Run, model: str, images: Path, tmp_path: Path) -> None:
    many = tmp_path / "many"
    for i in range(3):  # twenty labels are needed
        for path in images.rglob("*.png"):
            copy = many / path.parent.name / f"{i}-{path.name}"
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())
    words = ("--backbone", model, "--methods", "zero-shot")
    code, out, _ = otpt("calibrate", many, *words, "-o", "cal.json", "--no-cache", "--json", "--figure", "cal.png")
    assert code == 0
    assert json.loads(out)["labels"] == 24
    assert (tmp_path / "cal.png").stat().st_size > 1000
    image = images / "cat" / "0.png"
    words = (
        "predict",
        image,
        *words,
        "--classes",
        "cat",
        "dog",
        "--calibration",
        "cal.json",
        "--coverage",
        "0.8",
        "--json",
    )
    code, out, _ = otpt(*words)
    assert code == 0
    assert set(json.loads(out)["set"]) <= {"cat", "dog"}


def test_metrics(otpt: Run, run_folder: Path, tmp_path: Path) -> None:
    code, out, _ = otpt("metrics", run_folder, "--bins", "15", "--json", "--seeds", "1", "--methods", "o-tpt")
    assert code == 0
    (score,) = json.loads(out)["scores"]
    assert (score["seed"], score["method"]) == (1, "o-tpt")
    code, out, _ = otpt("metrics", run_folder)
    assert code == 0
    assert all(word in out for word in ("zero-shot", "o-tpt", "accuracy", "ECE"))
    assert otpt("metrics", run_folder, "-o", "m.csv")[0] == 0
    assert sorted(pd.read_csv(tmp_path / "m.csv").method) == ["o-tpt", "o-tpt", "zero-shot", "zero-shot"]
    assert otpt("metrics", run_folder, "--intervals", "0.9", "--metrics", "ece")[0] == 0
    classes = json.loads(otpt("metrics", run_folder, "--per-class", "--confusions", "2", "--json")[1])["classes"]
    assert {row["class"] for row in classes} == {"cat", "dog"}


def test_compare(otpt: Run, run_folder: Path) -> None:
    code, out, _ = otpt("compare", run_folder, "--methods", "o-tpt", "zero-shot", "--json", "--resamples", "50")
    assert code == 0
    found = json.loads(out)
    assert (found["a"], found["b"]) == ("o-tpt", "zero-shot")
    assert otpt("compare", run_folder, "--resamples", "50")[0] == 0


def test_table_plot_and_report(otpt: Run, run_folder: Path, tmp_path: Path) -> None:
    code, out, _ = otpt("table", run_folder)
    assert code == 0
    assert "Zero-shot" in out
    assert otpt("table", run_folder, "--out", "t.md")[0] == 0
    assert (tmp_path / "t.md").read_text(encoding="utf-8").count("|") > 10
    assert otpt("plot", "reliability", run_folder, "--out", "f.png")[0] == 0
    assert otpt("report", run_folder, "--out", "r.html", "--images", "0")[0] == 0
    assert "<html" in (tmp_path / "r.html").read_text(encoding="utf-8")


def test_similarity_without_a_run(otpt: Run, model: str, tmp_path: Path) -> None:
    words = ("--classes", "cat", "dog", "bird", "--prompts", "a photo of a", "--backbone", model)
    assert otpt("plot", "similarity", *words, "-o", "s.svg")[0] == 0
    assert (tmp_path / "s.svg").stat().st_size > 1000


@pytest.mark.parametrize("kind", ["coop", "maple"])
def test_train(otpt: Run, model: str, images: Path, tmp_path: Path, kind: str) -> None:
    words = ("--backbone", model, "--epochs", "1", "--shots", "2", "--out", "p.safetensors", "--json")
    code, out, _ = otpt("train", kind, images, *words)
    assert code == 0
    assert json.loads(out.splitlines()[-1])["files"] == ["p.safetensors"]
    method = f"{kind}+zero-shot" if kind == "coop" else "maple+tpt"
    words = ("predict", images / "cat" / "0.png", "--classes", "cat", "dog", "--backbone", model, "--views", "2")
    assert otpt(*words, "--methods", method, "--context", "p.safetensors")[0] == 0


def test_demo(otpt: Run, tmp_path: Path) -> None:
    pytest.importorskip("resvg_py")
    code, out, _ = otpt("demo", "--images", "2", "--workers", "1", "--methods", "confident-half", "--out", "d")
    assert code == 0
    assert (tmp_path / "d" / "report.html").is_file()
    assert (tmp_path / "d" / "reliability.png").is_file()
    assert len(out.splitlines()) < 40


def test_reproduce_plans_without_data(otpt: Run) -> None:
    code, out, _ = otpt("reproduce", "paper", "--tables", "2")
    assert code == 0
    assert "--go" in out


def test_lists(otpt: Run, images: Path, tmp_path: Path) -> None:
    assert "dtd" in {row["name"] for row in json.loads(otpt("datasets", "--json")[1])}
    assert json.loads(otpt("datasets", "check", images, "--json")[1])["images"] == 8
    assert "o-tpt" in json.loads(otpt("methods", "--json")[1])
    assert "pocket" in {row["name"] for row in json.loads(otpt("models", "--json")[1])}
    assert json.loads(otpt("cache", "info", "--cache", tmp_path, "--json")[1])["entries"] == 0
    assert "torch" in json.loads(otpt("doctor", "--json", "--cache", tmp_path)[1])["versions"]
    for command in ("datasets", "methods", "models", "doctor"):
        assert otpt(command)[0] == 0


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(otpt: Run, shell: str) -> None:
    code, out, _ = otpt("completion", shell)
    assert code == 0
    assert all(word in out for word in ("predict", "--backbone", "maple"))


def test_plan(otpt: Run) -> None:
    code, out, _ = otpt("plan", "predict", "20000", "--classes", "40", "--backbone", "RN50", "--json")
    assert code == 0
    rows = {(row["device"], row["views"]): row for row in json.loads(out)["plan"]}
    assert {views for _, views in rows} >= {1, 64}
    assert rows["here", 64]["flops"] == pytest.approx(64 * rows["here", 1]["flops"])
    assert rows["h100", 64]["seconds"] < rows["here", 64]["seconds"]
    assert otpt("plan", "dtd", "--backbone", "RN50", "--methods", "o-tpt", "zero-shot")[0] == 0
