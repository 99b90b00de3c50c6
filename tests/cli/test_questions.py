"""Several labels, groups, examples, heat maps and export on the command line."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from oracles.command import run
from PIL import Image

import otpt
from otpt.data import label_table
from otpt.metrics.multi_label import mean_average_precision
from otpt.runs import Run, results_frame

NAMES = ["pizza", "banana", "lemon"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Examples of each class, and a table of pictures with one or two drawings."""
    found = tmp_path_factory.mktemp("questions")
    data = otpt.data.emoji.load_emoji("emoji/food", seed=3, compositions=3)
    drawings = {
        name: [data.image(data.class_names.index(name) + k * len(data.class_names)) for k in range(3)] for name in NAMES
    }
    for name, images in drawings.items():
        (found / "examples" / name).mkdir(parents=True)
        for k, image in enumerate(images):
            image.save(found / "examples" / name / f"{k}.png")
    rows = ["path,labels"]
    for k in range(20):
        present = [NAMES[k % 3], NAMES[(k + 1) % 3]][: 1 + k % 2]
        canvas = Image.new("RGB", (256, 128), (240, 240, 235))
        for place, name in enumerate(present):
            canvas.paste(drawings[name][k % 3], (128 * place, 0))
        canvas.save(found / f"{k}.png")
        rows.append(f"{k}.png,{'; '.join(present)}")
    (found / "labels.csv").write_text("\n".join(rows))
    (found / "groups.csv").write_text("banana,fruit\nlemon,fruit\n")
    return found


def test_predict(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    image, model = folder / "0.png", ("--backbone", "pocket", "--json", "--threads", 1)
    code, out, err = run(capsys, "predict", image, "--examples", folder / "examples", "--explain", *model)
    assert code == 0, err
    row, where = out.splitlines()
    assert json.loads(row)["method"] == "gda"
    assert "otpt-maps" in where
    assert len(list((folder / "otpt-maps").glob("*.png"))) == 1
    _, out, err = run(capsys, "predict", image, "--classes", *NAMES, "--multi-label", *model)
    found = json.loads(out)
    assert found["method"] == "multi-label", err
    assert found["labels_above"] == [each["label"] for each in found["top"] if each["probability"] >= 0.5]
    more = ("--methods", "zero-shot", "--groups", folder / "groups.csv")
    _, out, err = run(capsys, "predict", image, "--classes", *NAMES, *more, *model)
    assert set(json.loads(out)["groups"]) == {"fruit"}, err
    words = ("--classes", *NAMES, *more, "--backbone", "pocket", "--threads", 1, "--threshold", 0)
    assert run(capsys, "predict", image, *words, "--out", folder / "groups-out.csv")[0] == 0
    row = pd.read_csv(folder / "groups-out.csv").iloc[0]
    assert row["back_off"] == row["label"], "the most specific answer above 0 is a class"
    assert row["back_off_confidence"] == pytest.approx(row["confidence"])
    assert 0 <= row["group fruit"] <= 1
    labels = ("--classes", *NAMES, "--multi-label", "--backbone", "pocket", "--threads", 1, "--threshold", 0)
    assert run(capsys, "predict", image, *labels, "--out", folder / "labels-out.csv")[0] == 0
    assert set(pd.read_csv(folder / "labels-out.csv").labels_above[0].split(" | ")) == set(NAMES)


@pytest.fixture(scope="module")
def labels_run(folder: Path) -> Path:
    """The run folder of the table; read only."""
    out = folder / "run"
    data = label_table(folder / "labels.csv")
    otpt.evaluation.evaluate(data, "pocket", out=out, shard_size=4, threads=1)
    return out


def test_a_run_of_several_labels(folder: Path, labels_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_folder = Run(labels_run)
    rows = run_folder.to_pandas()
    assert len(rows) == len(pd.read_parquet(labels_run / "rows")) == 20
    clf = otpt.load("pocket", multi_label=True).set_classes(sorted(NAMES))
    written = pd.read_csv(folder / "labels.csv").set_index("path").labels.str.split("; ")[rows.id]
    np.testing.assert_allclose(
        np.stack(rows.probabilities)[0], clf.predict(folder / rows.id[0]).probabilities, atol=1e-6
    )
    assert [sorted(each) for each in written] == [[sorted(NAMES)[i] for i in each] for each in rows.labels]
    present = [[c in each for c in range(3)] for each in rows.labels]
    expected = mean_average_precision(np.stack(rows.probabilities), present)
    assert results_frame(run_folder)["map"][0] == pytest.approx(expected, abs=1e-12)

    code, out, err = run(capsys, "metrics", labels_run, "--json")
    assert code == 0, err
    first, *others = json.loads(out)["metrics"]
    assert (first["metric"], first["label"], first["images"]) == ("map", "", 20)
    assert first["value"] == pytest.approx(100 * expected)
    assert first["low"] <= first["value"] <= first["high"]
    precisions = [row["value"] for row in others if row["metric"] == "map"]
    assert first["value"] == pytest.approx(sum(precisions) / 3)  # over the labels
    for suffix in ("txt", "md", "csv", "tex", "json"):
        code, _, err = run(capsys, "table", labels_run, "--out", folder / f"table.{suffix}")
        assert code == 0, err
        assert f"{first['value']:.2f}" in (folder / f"table.{suffix}").read_text()
    code, _, err = run(capsys, "report", labels_run, "--out", folder / "page.html")
    assert code == 0, err
    assert (folder / "page.html").read_text().count("<table") == 2
    for words in (("compare", labels_run), ("plot", "reliability", labels_run), ("metrics", labels_run, "nowhere")):
        code, _, err = run(capsys, *words)
        assert code == 2
        assert err.count("\n") == 1


@pytest.mark.slow
def test_a_killed_run_of_several_labels_continues(
    folder: Path, labels_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, model = folder / "killed", ("--backbone", "pocket", "--threads", "1", "--shard-size", "4")
    command = ("evaluate", str(folder / "labels.csv"), "--multi-label", *model, "--out", str(out))
    process = subprocess.Popen([sys.executable, "-m", "otpt", *command], stdout=subprocess.DEVNULL)
    while not list(out.rglob("0*.parquet")) and process.poll() is None:
        time.sleep(0.02)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert Run(out).missing()
    code, printed, err = run(capsys, *command)
    assert code == 0, err
    assert max(map(len, printed.splitlines()[:-1])) <= 80
    assert all(name in printed for name in NAMES)
    pd.testing.assert_frame_equal(Run(out).to_pandas(), Run(labels_run).to_pandas())
    same = [results_frame(Run(each)).drop(columns="run") for each in (out, labels_run)]
    pd.testing.assert_frame_equal(*same)


@pytest.mark.slow
def test_calibrate_and_evaluate_a_table(
    folder: Path, labels_run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    table = ("labels.csv", "--multi-label", "--backbone", "pocket", "--json", "--threads", 1)
    code, out, err = run(capsys, "calibrate", labels_run, "--json", "--out", "cal.json")
    assert code == 0, err
    assert json.loads(out)["labels"] == 20
    code, out, err = run(capsys, "calibrate", *table, "--out", "same.json")
    assert code == 0, err
    assert (folder / "same.json").read_text() == (folder / "cal.json").read_text()
    files = {suffix: folder / f"metrics.{suffix}" for suffix in ("csv", "json", "html")}
    for path in files.values():  # one run in the default folder, of which the later ones only read
        code, _, err = run(capsys, "evaluate", *table, "--calibration", "cal.json", "--out", path)
        assert code == 0, err
    written = pd.read_csv(files["csv"], keep_default_na=False)
    assert list(written.label.unique()) == ["", *sorted(NAMES)]
    assert set(written.method) == {"multi-label+calibrated"}
    assert json.loads(files["json"].read_text())["metrics"][0]["metric"] == "map"
    assert files["html"].read_text().count("<table") == 2
    clf = otpt.load("pocket", multi_label=True, calibration="cal.json").set_classes(sorted(NAMES))
    (calibrated,) = (
        each for each in (folder / "runs").iterdir() if "calibration" in (each / "config.json").read_text()
    )
    rows = Run(calibrated).to_pandas()
    found = clf.predict(folder / rows.id[0]).probabilities
    np.testing.assert_allclose(rows.probabilities[0], found, atol=1e-6)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("export", "--classes", "cat", "dog", "--methods", "o-tpt", "--out", "m.onnx"), "o-tpt"),
        (("export", "--out", "m.onnx"), "--classes"),
        (("calibrate", "labels.csv", "--multi-label", "--classes", "pizza", "banana", "--out", "c.json"), "lemon"),
        (("evaluate", "a.csv", "--multi-label"), "a.csv"),
        (("evaluate", "labels.csv", "--multi-label", "--out", "a.txt"), "a.txt"),
        (("evaluate", "labels.csv", "--multi-label", "--methods", "zero-shot"), "zero-shot"),
        (("evaluate", "groups.csv", "--multi-label"), "'labels'"),
        (("calibrate", "labels.csv", "--multi-label", "--maps", "beta", "--out", "c.json"), "--maps"),
        (("predict", "0.png", "--classes", "pizza", "banana", "--groups", "groups.csv"), "lemon"),
        (("predict", "0.png", "--examples", "nowhere"), "nowhere"),
    ],
)
def test_bad_input(
    words: tuple[str, ...],
    named: str,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(folder)
    code, _, err = run(capsys, *words, "--backbone", "pocket")
    assert code == 2
    assert named in err
