"""Printed thresholds select the rows of the written file that the file itself marks: one line of pandas each."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from .conftest import Run

CLASSES = ("pizza", "panda", "rocket", "cherries")
Predict = Callable[..., tuple[pd.DataFrame, str]]


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty images, with labels that are mostly those of the emoji on them."""
    pytest.importorskip("resvg_py")
    from otpt.data import load_dataset
    from otpt.images import open_image

    folder = tmp_path_factory.mktemp("labelled")
    lines = ["path,label"]
    number = 0
    for name in ("emoji/food", "emoji/animals", "emoji/travel"):
        data = load_dataset(name)
        for i in range(len(data)):
            label = data.class_names[data.labels[i]]
            if label in CLASSES:
                picture = open_image(data.source(i))
                for angle in (0, 20, 60, 120):
                    file = folder / f"{number}.png"
                    noise = np.random.default_rng(number).integers(0, 60, (picture.height, picture.width, 3))
                    pixels = np.clip(np.asarray(picture.rotate(angle), np.int64) + noise, 0, 255).astype(np.uint8)
                    Image.fromarray(pixels).save(file)
                    lines.append(f"{file.name},{label if number % 9 else CLASSES[number % 4]}")
                    number += 1
    (folder / "labels.csv").write_text("\n".join(lines), encoding="utf-8")
    assert number >= 24
    return folder


@pytest.fixture
def predict(otpt: Run, labelled: Path, tmp_path: Path) -> Predict:
    def call(*words: object) -> tuple[pd.DataFrame, str]:
        options = ("--backbone", "pocket", "--device", "cpu", "--classes", *CLASSES)
        methods = () if "--multi-label" in words else ("--methods", "zero-shot")
        files = sorted(labelled.glob("*.png"))
        code, _, err = otpt("predict", *files, *options, *methods, *words, "--out", "p.csv", "--overwrite")
        assert code == 0, err
        return pd.read_csv(tmp_path / "p.csv"), " ".join(err.split())

    return call


@pytest.mark.slow
def test_risk(otpt: Run, predict: Predict, labelled: Path) -> None:
    words = ("--backbone", "pocket", "--device", "cpu", "--classes", *CLASSES, "--methods", "zero-shot", "--no-cache")
    code, _, err = otpt("calibrate", labelled / "labels.csv", *words, "--out", "cal.json", "--maps", "temperature")
    assert code == 0, err
    table, notes = predict("--calibration", "cal.json", "--risk", "0.5", "--guarantee", "0.5")
    column, threshold = re.search(r"(\w+) > ([\d.]+)", notes).groups()
    assert ((table[column] > float(threshold)) == ~table["abstained"]).all()
    assert not np.allclose(table["confidence"], table[column]), "the two scales differ"


@pytest.mark.slow
def test_rejection(predict: Predict) -> None:
    table, _ = predict("--reject", "msp", "--reject-threshold", "0.3")
    assert ((table["unknown_score"] > 0.3) == table["rejected"]).all()
    assert 0 < table["rejected"].sum() < len(table)


@pytest.mark.slow
def test_decide(otpt: Run, predict: Predict, labelled: Path, tmp_path: Path) -> None:
    table, _ = predict()
    words = ("--labels", labelled / "labels.csv", "--risks", "0.1", "0.3", "--guarantee", "0.5")
    code, out, err = otpt("decide", "p.csv", *words, "--format", "csv", "--figure", "f.png")
    assert code == 0, err
    assert (tmp_path / "f.png").stat().st_size > 1000
    names = pd.read_csv(labelled / "labels.csv").set_index("path")["label"]
    truth = table["image"].map(lambda path: names[Path(path).name])
    found = pd.read_csv(io.StringIO(out)).dropna(subset=["threshold"])
    assert set(found["kind"]) == {"guaranteed", "empirical"}
    for row in found.itertuples():
        answered = table[table["confidence"] > row.threshold]
        wrong = (answered["label"] != truth[answered.index]).sum()
        assert (len(answered), wrong, len(table)) == (row.answered, row.wrong, row.labels)
        assert row.kind == "guaranteed" or wrong <= row.risk * len(answered)
    shown = otpt("decide", "p.csv", *words)[1]
    printed = re.findall(r"(?:guaranteed|empirical) +([\d.]+)", shown)
    assert [float(number) for number in printed] == [*found["threshold"]]
    table.assign(truth=truth).to_json(tmp_path / "t.jsonl", orient="records", lines=True)
    again = otpt("decide", "t.jsonl", *words[2:], "--format", "csv")[1]
    assert again == out, "a column of the file says the same as a table"
    assert otpt("decide", "p.csv", *words)[0] == 0
    assert otpt("decide", "p.csv", *words, "--figure", "f.png")[0] == 2, "files are not overwritten"
