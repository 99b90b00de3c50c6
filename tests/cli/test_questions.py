"""Several labels, groups, examples, heat maps and export on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from oracles.command import run
from PIL import Image

import otpt

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
    assert json.loads(out)["method"] == "multi-label", err
    more = ("--methods", "zero-shot", "--groups", folder / "groups.csv")
    _, out, err = run(capsys, "predict", image, "--classes", *NAMES, *more, *model)
    assert set(json.loads(out)["groups"]) == {"fruit"}, err


@pytest.mark.slow
def test_calibrate_and_evaluate_a_table(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = (folder / "labels.csv", "--multi-label", "--backbone", "pocket", "--json", "--threads", 1)
    code, out, err = run(capsys, "calibrate", *table, "--out", folder / "cal.json")
    assert code == 0, err
    assert json.loads(out)["labels"] == 20
    code, out, err = run(capsys, "evaluate", *table, "--calibration", folder / "cal.json")
    assert code == 0, err
    first, *rows = json.loads(out)["metrics"]
    assert (first["metric"], first["label"], first["images"]) == ("map", "", 20)
    assert first["low"] <= first["value"] <= first["high"]
    precisions = [row["value"] for row in rows if row["metric"] == "map"]
    assert first["value"] == pytest.approx(sum(precisions) / 3)  # over the labels
    frame = pd.DataFrame([first, *rows])
    monkeypatch.setattr("otpt.tasks.multi_label.evaluate_labels", lambda *_, **__: frame.copy())  # the same, faster
    files = {suffix: folder / f"metrics.{suffix}" for suffix in ("csv", "json", "html")}
    for path in files.values():
        code, _, err = run(capsys, "evaluate", *table, "--out", path)
        assert code == 0, err
    written = pd.read_csv(files["csv"], keep_default_na=False)
    assert list(written.label.unique()) == ["", *sorted(NAMES)]
    assert json.loads(files["json"].read_text())["metrics"][0]["metric"] == "map"
    assert files["html"].read_text().count("<table") == 2
    code, out, _ = run(capsys, "evaluate", *(word for word in table if word != "--json"))
    assert max(map(len, out.splitlines())) <= 80
    assert all(name in out for name in NAMES)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("export", "--classes", "cat", "dog", "--methods", "o-tpt", "--out", "m.onnx"), "o-tpt"),
        (("export", "--out", "m.onnx"), "--classes"),
        (("calibrate", "labels.csv", "--multi-label", "--classes", "pizza", "banana", "--out", "c.json"), "lemon"),
        (("evaluate", "a.csv", "b.csv", "--multi-label"), "--multi-label"),
        (("evaluate", "labels.csv", "--multi-label", "--out", "runs/a"), "runs/a"),
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
