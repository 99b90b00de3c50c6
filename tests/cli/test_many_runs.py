"""Several runs and models at once, class by class; and progress that counts what was there."""

from __future__ import annotations

import csv
import json
from collections import Counter
from pathlib import Path

import pytest
from oracles.command import run
from oracles.runs.simulated_runs import simulate_run, simulated_dataset

from otpt.evaluation import LogProgress, Settings
from otpt.evaluation.progress import Counter as ProgressCounter
from otpt.evaluation.progress import ImageDone, Started

pytestmark = pytest.mark.slow

METHODS = ("zero-shot", "o-tpt")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of two models on the same images."""
    folder = tmp_path_factory.mktemp("models")
    sets = [simulated_dataset(name, classes=6, images=60) for name in ("dtd", "pets")]
    for model in ("ViT-B-16/openai", "RN50/openai"):
        simulate_run(folder / model.partition("/")[0], sets, Settings(methods=METHODS), model=model)
    return folder


def test_one_csv_over_many_runs(runs: Path, tmp_path: Path, capsys) -> None:
    code, out, err = run(capsys, "metrics", runs / "ViT-B-16", runs / "RN50", "-o", tmp_path / "all.csv")
    assert (code, err) == (0, "")
    assert out == f"The numbers of 2 runs are in {str(tmp_path / 'all.csv')!r}.\n"
    with (tmp_path / "all.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert Counter(row["backbone"] for row in rows) == {"ViT-B-16/openai": 4, "RN50/openai": 4}
    for row in rows:
        stored = json.loads((runs / row["backbone"].partition("/")[0] / "metrics.json").read_text())["scores"]
        (score,) = (
            each
            for each in stored
            if all(str(each[key]) == row[key] for key in ("dataset", "method", "seed", "prompt"))
        )
        assert float(row["ece"]) == score["ece"]
        assert float(row["accuracy"]) == score["accuracy"]
    code, out, _ = run(capsys, "metrics", runs / "ViT-B-16", runs / "RN50", "--json")
    assert [each["run"] for each in json.loads(out)["runs"]] == [str(runs / "ViT-B-16"), str(runs / "RN50")]
    code, out, _ = run(capsys, "metrics", runs / "ViT-B-16", runs / "RN50")
    assert f"{runs / 'RN50'} (RN50/openai)" in out
    assert run(capsys, "metrics", runs / "RN50", "-o", tmp_path / "all.xls")[0] == 2


def test_only_some_methods_and_seeds_of_runs(tmp_path: Path, capsys) -> None:
    folder = tmp_path / "run"
    simulate_run(folder, [simulated_dataset("dtd", images=60)], Settings(methods=METHODS, seeds=(0, 1)))
    scores = json.loads(run(capsys, "metrics", folder, "--json")[1])["scores"]
    for options, kept in (
        (("--methods", "o-tpt"), [each for each in scores if each["method"] == "o-tpt"]),
        (("--seed", 1), [each for each in scores if each["seed"] == 1]),
        (("--method", "zero-shot", "--seeds", 0), scores[:1]),
    ):
        code, out, _ = run(capsys, "metrics", folder, *options, "--json")
        assert code == 0
        assert json.loads(out)["scores"] == kept
        assert kept
    assert len(json.loads((folder / "metrics.json").read_text())["scores"]) == len(scores)
    for more in ("--per-class", "--confusions"):
        rows = json.loads(run(capsys, "metrics", folder, more, "--methods", "o-tpt", "--seed", 1, "--json")[1])
        assert {(row["method"], row["seed"]) for own in rows.values() for row in own} == {("o-tpt", 1)}
    one = json.loads(run(capsys, "metrics", folder, "--seed", 1, "--intervals", "--json")[1])
    for average, score in zip(one["averages"], one["scores"], strict=True):
        assert average["intervals"] == score["intervals"], "of that seed alone"
    page = tmp_path / "page.html"
    assert run(capsys, "report", folder, "--methods", "zero-shot", "-o", page)[0] == 0
    with_both = tmp_path / "both.html"
    assert run(capsys, "report", folder, "-o", with_both)[0] == 0
    assert page.read_text().count("o-tpt") < with_both.read_text().count("o-tpt")
    for command in (("metrics",), ("report", "-o", page)):
        code, _, err = run(capsys, *command, folder, "--methods", "o-ptp")
        assert (code, "Unknown method of the runs 'o-ptp'. Did you mean: o-tpt?" in err) == (2, True)
    assert "No run has the seed 7; there are 0, 1" in run(capsys, "metrics", folder, "--seeds", 7)[2]


def test_a_method_that_only_one_model_has(runs: Path, tmp_path: Path, capsys) -> None:
    more = tmp_path / "more"
    sets = [simulated_dataset(name, classes=6, images=60) for name in ("dtd", "pets")]
    simulate_run(more, sets, Settings(methods=("zero-shot", "tpt")), model="ViT-L-14/openai")
    both = ("report", runs / "RN50", more, "-o", tmp_path / "page.html")
    assert run(capsys, *both, "--methods", "zero-shot", "tpt")[0] == 0
    code, _, err = run(capsys, *both, "--methods", "tpt")
    assert (code, "Unknown method of the runs 'tpt'" in err) == (2, True)


def test_classes_and_confusions_are_those_of_the_rows(runs: Path, capsys, tmp_path: Path) -> None:
    folder = runs / "RN50"
    code, out, _ = run(capsys, "metrics", folder, "--per-class", "--confusions", 4, "--json")
    assert code == 0
    found = json.loads(out)
    for method in METHODS:
        rows = [
            row
            for path in sorted((folder / "dtd" / "seed-0" / method).glob("*.parquet"))
            for row in __import__("pyarrow.parquet").parquet.read_table(path).to_pylist()
        ]
        own = [row for row in found["classes"] if (row["dataset"], row["method"]) == ("dtd", method)]
        assert [row["name"] for row in own] == [f"class {i}" for i in range(6)]
        for label, row in enumerate(own):
            images = [each for each in rows if each["label"] == label]
            assert row["images"] == len(images) == 10
            assert row["accuracy"] == pytest.approx(sum(each["prediction"] == label for each in images) / 10)
            assert row["predicted"] == sum(each["prediction"] == label for each in rows)
        wrong = Counter((each["label"], each["prediction"]) for each in rows if each["label"] != each["prediction"])
        pairs = [row for row in found["confusions"] if (row["dataset"], row["method"]) == ("dtd", method)]
        expected = sorted(wrong.items(), key=lambda item: (-item[1], item[0]))[:4]
        assert [(row["label"], row["prediction"], row["images"]) for row in pairs] == [
            (f"class {label}", f"class {other}", images) for (label, other), images in expected
        ]
        assert all(row["fraction"] == row["images"] / 10 for row in pairs)
    code, _, _ = run(capsys, "metrics", folder, "--per-class", "-o", tmp_path / "classes.csv")
    with (tmp_path / "classes.csv").open(encoding="utf-8", newline="") as file:
        assert len(list(csv.DictReader(file))) == len(found["classes"])
    assert run(capsys, "metrics", folder, "--per-class", "--confusions", "-o", tmp_path / "x.csv")[0] == 2
    assert run(capsys, "metrics", folder, "--confusions", 0)[0] == 2


def test_progress_of_a_resumed_run_counts_what_was_there(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("otpt.evaluation.progress.time.monotonic", lambda: now[0])
    lines: list[str] = []
    progress = LogProgress(say=lines.append, seconds=1.0)
    progress(Started(200, 300))
    assert lines == ["200/300 images are already done; 100 are left"]
    for _ in range(20):
        now[0] += 0.5
        progress(ImageDone("dtd", 0, {("a photo of a", "o-tpt"): (0.9, True)}))
    assert lines[-1].startswith("220/300 images, 2.0 images/s, 40 s left")
    fresh = ProgressCounter()
    fresh(Started(0, 10))
    assert fresh.pace() == ""


def test_a_resumed_evaluation_says_so(tmp_path: Path, model: str, capsys) -> None:
    common = ("evaluate", "emoji/food", "--methods", "zero-shot", "--backbone", model, "--no-cache", "--shard-size", 2)
    common = (*common, "--out", tmp_path / "run", "--limit", 6, "--device", "cpu")
    assert run(capsys, *common)[0] == 0
    for path in sorted((tmp_path / "run").rglob("*.parquet"))[1:]:
        path.unlink()
    code, _, err = run(capsys, *common)
    assert code == 0
    assert "otpt: 2/6 images are already done; 4 are left\n" in err
