"""Predictions on disk: whatever a kill leaves, the job continues to the rows of an unbroken one."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from otpt.cli import prediction_file
from otpt.cli.prediction_file import PredictionFile
from otpt.errors import OtptError

JOB = {"backbone": "b", "methods": ["tpt", "zero-shot"], "classes": ["cat", "dog"]}
IMAGES = [f"{i}.png" for i in range(5)]


def rows(image: str) -> list[dict[str, Any]]:
    if image == "2.png":
        return [{"image": image, "error": 'no image, "2.png"\nreally'}]
    found = {"image": image, "label": "=cat\n, dog", "confidence": 0.5, "top": [], "flags": ["a"], "extras": {"x": 1.0}}
    return [{**found, "method": method} for method in JOB["methods"]]


def opened(path: Path, job: dict[str, Any] = JOB, **options: Any) -> PredictionFile:
    return PredictionFile(path, job, **options)


def predict(path: Path, images: list[str] = IMAGES, **options: Any) -> PredictionFile:
    file = opened(path, **options)
    waiting = iter(images)
    try:
        file.resume(waiting)
        for image in waiting:
            file(rows(image))
        file.finish()
    finally:
        file.close()
    return file


@pytest.mark.parametrize("name", ["all.csv", "all.jsonl"])
@pytest.mark.parametrize("stop", [0, 1, 3, 5])
def test_a_file_that_is_cut_off_anywhere_continues_to_the_same_bytes(name: str, stop: int, tmp_path: Path) -> None:
    path = tmp_path / name
    predict(path)
    whole = path.read_bytes()
    predict(path, IMAGES[:stop], overwrite=True)
    begun, state = path.read_bytes() if stop else b"", (tmp_path / f"{name}.job.json").read_bytes()
    assert whole.startswith(begun)
    for size in range(len(begun), len(whole) + 1, 7):  # a kill while the next rows are written
        path.write_bytes(whole[:size])
        (tmp_path / f"{name}.job.json").write_bytes(state)
        predict(path)
        assert path.read_bytes() == whole, size


def test_an_output_that_was_changed_is_not_continued(tmp_path: Path) -> None:
    path = tmp_path / "all.csv"
    predict(path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.raises(OtptError, match="shorter"):
        predict(path)
    path.unlink()
    predict(path)
    assert path.read_bytes() == whole


@pytest.mark.parametrize("stop", [0, 1, 3, 5])
def test_parts_continue_and_are_joined(stop: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, path = tmp_path / "whole.parquet", tmp_path / "all.parquet"
    predict(whole)
    monkeypatch.setattr(prediction_file, "_PART_ROWS", 4)
    stopped = opened(path)
    for image in IMAGES[:stop]:
        stopped(rows(image))
        stopped.flush()
    stopped.close()
    assert not path.exists()
    parts = sorted((tmp_path / "all.parquet.parts").glob("part-*"))
    assert len(parts) < 3
    if stop > 1:  # as a kill between a merge and its clean-up leaves it
        shutil.copy(parts[0], parts[0].with_name("part-000000000000-000000000001.parquet"))
    assert predict(path).failed == 1
    pd.testing.assert_frame_equal(pd.read_parquet(path), pd.read_parquet(whole))
    assert predict(path).done == 5
    predict(path, [*IMAGES, "6.png"])
    assert pd.read_parquet(path)["image"].tolist() == [image for image in [*IMAGES, "6.png"] for _ in rows(image)]
    assert {each.name for each in tmp_path.iterdir() if each.name.startswith((".", "all"))} == {
        "all.parquet",
        "all.parquet.job.json",
    }


def test_a_folder_of_parts(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    predict(folder)
    assert len(pd.read_parquet(folder)) == 9
    assert predict(folder).done == 5


@pytest.mark.parametrize("name", ["all.csv", "all.jsonl", "all.parquet"])
def test_names_that_are_no_text_and_occur_twice(name: str, tmp_path: Path) -> None:
    images = ["\udcff.png", "\udcff.png", "=1.png", "a,b\n.png"]
    predict(tmp_path / name, images)
    assert predict(tmp_path / name, images).done == 4
    for other in (["0.png"], [*images[:3], "0.png"], images[:3], []):
        with pytest.raises(OtptError, match="other images"):
            predict(tmp_path / name, other)


def test_another_process_writes_the_file(tmp_path: Path) -> None:
    file = opened(tmp_path / "all.csv")
    with pytest.raises(OtptError, match=r"all\.csv"):
        opened(tmp_path / "all.csv")
    file.close()
    opened(tmp_path / "all.csv").close()


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
    assert predict(tmp_path / "all.csv", ["2.png"]).failed == 1
    assert predict(tmp_path / "all.csv", ["2.png"]).failed == 1
    for wrong in ("all.txt", "s3://bucket/all.csv"):
        with pytest.raises(OtptError, match=wrong):
            PredictionFile(wrong, JOB)


@pytest.mark.parametrize("name", ["all.csv", "all.parquet"])
def test_a_full_disk_keeps_what_is_finished(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = opened(tmp_path / name)
    file(rows("0.png"))
    file.flush()
    with monkeypatch.context() as full:
        full.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left on device")))
        file(rows("1.png"))
        with pytest.raises(OtptError, match="No space left"):
            file.flush()
    file.close()
    predict(tmp_path / name)
    frame = pd.read_csv(tmp_path / name) if name.endswith("csv") else pd.read_parquet(tmp_path / name)
    assert frame["image"].tolist() == [image for image in IMAGES for _ in rows(image)]
