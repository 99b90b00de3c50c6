"""Predictions on disk: whatever a kill leaves, the job continues to the rows of an unbroken one."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from otpt.cli.prediction_file import PredictionFile
from otpt.errors import OtptError

JOB = {"backbone": "b", "methods": ["tpt", "zero-shot"], "classes": ["cat", "dog"]}
IMAGES = [f"{i}.png" for i in range(5)]


def rows(image: str) -> list[dict[str, Any]]:
    if image == "2.png":
        return [{"image": image, "error": 'no image, "2.png"\nreally'}]
    found = {"image": image, "label": "=cat\n, dog", "confidence": 0.5, "top": [], "flags": ["a"], "extras": {"x": 1.0}}
    return [{**found, "method": method} for method in JOB["methods"]]


def predict(path: Path, images: list[str] = IMAGES, **options: Any) -> PredictionFile:
    file = PredictionFile(path, options.pop("job", JOB), methods=2, top=None, **options)
    for image in images[len(file.done) :]:
        file(rows(image))
    file.finish()
    return file


@pytest.mark.parametrize("name", ["all.csv", "all.jsonl"])
def test_a_file_that_is_cut_off_anywhere_continues_to_the_same_bytes(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    predict(path)
    whole = path.read_bytes()
    for size in range(len(whole) + 1):
        path.write_bytes(whole[:size])
        predict(path)
        assert path.read_bytes() == whole, size


def test_parts_continue_and_are_joined(tmp_path: Path) -> None:
    whole = tmp_path / "whole.parquet"
    predict(whole)
    path = tmp_path / "all.parquet"
    stopped = PredictionFile(path, JOB, methods=2, top=None)
    for image in IMAGES[:3]:
        stopped(rows(image))
        stopped.flush()
    assert not path.exists()
    assert predict(path).failed == 1
    pd.testing.assert_frame_equal(pd.read_parquet(path), pd.read_parquet(whole))
    assert not list(tmp_path.glob("*.parts"))
    folder = tmp_path / "folder"
    predict(folder)
    assert len(pd.read_parquet(folder)) == 9


def test_formulas_and_line_breaks_stay_text(tmp_path: Path) -> None:
    predict(tmp_path / "all.csv")
    found = pd.read_csv(tmp_path / "all.csv")
    assert set(found["label"].dropna()) == {"'=cat\n, dog"}
    assert found["image"].tolist() == [image for image in IMAGES for _ in rows(image)]


@pytest.mark.parametrize("name", ["all.csv", "all.parquet", "folder"])
def test_another_job_and_a_foreign_file_are_refused(name: str, tmp_path: Path) -> None:
    predict(tmp_path / name)
    with pytest.raises(OtptError, match="classes"):
        predict(tmp_path / name, job={**JOB, "classes": ["cat", "ram"]})
    predict(tmp_path / name, job={**JOB, "classes": ["cat", "ram"]}, overwrite=True)
    foreign = tmp_path / f"x{name}"
    shutil.move(tmp_path / name, foreign)
    with pytest.raises(OtptError, match="not of a prediction job"):
        predict(foreign)


def test_only_bad_images(tmp_path: Path) -> None:
    assert predict(tmp_path / "all.csv", ["2.png"]).done == []
    assert PredictionFile(tmp_path / "all.csv", JOB, methods=2, top=None).failed == 1
    with pytest.raises(OtptError, match=r"all\.txt"):
        predict(tmp_path / "all.txt")
