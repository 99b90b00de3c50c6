"""Predictions on disk: whatever a kill leaves, the job continues to the rows of an unbroken one."""

from __future__ import annotations

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
@pytest.mark.parametrize("stop", [0, 3])
def test_a_file_that_is_cut_off_anywhere_continues_to_the_same_bytes(name: str, stop: int, tmp_path: Path) -> None:
    path = tmp_path / name
    predict(path)
    whole = path.read_bytes()
    predict(path, IMAGES[:stop], overwrite=True)
    begun, state = path.read_bytes() if stop else b"", (tmp_path / f"{name}.job.json").read_bytes()
    assert whole.startswith(begun)
    for size in range(len(begun), len(whole) + 1, 23):  # a kill while the next rows are written
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


class Killed(BaseException):
    """The end of a process."""


@pytest.mark.parametrize("name", ["all.jsonl", "all.parquet", "folder"])
def test_a_kill_between_any_two_operations(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prediction_file, "_FLUSH_SECONDS", 0)
    monkeypatch.setattr(prediction_file, "_PART_ROWS", 4)
    operations: list[str] = []
    last = 0

    def counted(operation: str) -> None:
        real = getattr(PredictionFile, operation)

        def call(*arguments: Any) -> None:
            operations.append(operation)
            if len(operations) == last:
                raise Killed
            real(*arguments)

        monkeypatch.setattr(PredictionFile, operation, call)

    for operation in ("_append", "_write", "_join", "_remove"):
        counted(operation)
    predict(tmp_path / name)
    total, expected = len(operations), read(tmp_path / name)
    for number in range(2, total + 1):
        path, last = tmp_path / str(number) / name, number
        operations.clear()
        with pytest.raises(Killed):
            predict(path)
        operations.clear()
        last = 0
        assert predict(path).failed == 1
        pd.testing.assert_frame_equal(read(path), expected)
    assert len(list((tmp_path / "2").iterdir())) == 2  # the output and the description of the job
    assert predict(path).done == 5
    predict(path, [*IMAGES, "6.png"])  # a finished file grows
    assert read(path)["image"].tolist() == [image for image in [*IMAGES, "6.png"] for _ in rows(image)]


def read(path: Path) -> pd.DataFrame:
    return pd.read_json(path, lines=True) if path.suffix == ".jsonl" else pd.read_parquet(path)


@pytest.mark.parametrize("name", ["all.csv", "all.jsonl", "all.parquet", "folder"])
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
