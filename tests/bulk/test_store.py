"""Rows on disk: whatever a kill leaves, the job continues to the rows of an unbroken one."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from otpt.bulk import RowStore, stamp_of, store, writers
from otpt.bulk.storage import Storage
from otpt.errors import OtptError
from otpt.images import LocalFile, NamedImage

JOB = {"backbone": "b", "methods": ["tpt", "zero-shot"], "classes": ["cat", "dog"]}
IMAGES = [f"{i}.png" for i in range(5)]


def rows(image: str) -> list[dict[str, Any]]:
    if image == "2.png":
        return [{"image": image, "error": 'no image, "2.png"\nreally'}]
    found = {"image": image, "label": "=cat\n, dog", "confidence": 0.5, "top": [], "flags": ["a"], "extras": {"x": 1.0}}
    return [{**found, "method": method} for method in JOB["methods"]]


def opened(path: Path, job: dict[str, Any] = JOB, **options: Any) -> RowStore:
    return RowStore(path, job, **options)


def predict(path: Path, images: Sequence[str | NamedImage] = IMAGES, **options: Any) -> RowStore:
    file = opened(path, **options)
    waiting = iter(images)
    try:
        file.resume(waiting)
        for image in waiting:
            file.write(rows(image if isinstance(image, str) else image.id), stamp=stamp_of(image))
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


@pytest.mark.parametrize("with_files", [False, True])
@pytest.mark.parametrize("name", ["all.csv", "all.jsonl", "all.parquet", "folder"])
def test_a_kill_between_any_two_operations(
    name: str, with_files: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "FLUSH_SECONDS", 0)
    monkeypatch.setattr(writers, "PART_ROWS", 4)
    monkeypatch.setattr(store, "PART_ROWS", 4)
    images: Sequence[str | NamedImage] = files(tmp_path) if with_files else IMAGES
    operations: list[str] = []
    last = 0

    def counted(operation: str) -> None:
        real = getattr(Storage, operation)

        def call(*arguments: Any) -> Any:
            operations.append(operation)
            if len(operations) == last:
                raise Killed
            return real(*arguments)

        monkeypatch.setattr(Storage, operation, call)

    for operation in ("append", "write", "move", "publish", "remove"):
        counted(operation)
    predict(tmp_path / name, images)
    total, expected = len(operations), read(tmp_path / name)
    for number in range(2, total + 1):
        path, last = tmp_path / str(number) / name, number
        operations.clear()
        with pytest.raises(Killed):
            predict(path, images)
        operations.clear()
        last = 0
        whole = predict(path, images)
        assert (whole.failed, whole.changed, whole.rows) == (1, 0, len(expected))
        pd.testing.assert_frame_equal(read(path), expected)
        if with_files:
            assert Path(f"{path}.job.stamps").stat().st_size == 4 * len(images)
    leftovers = {each.name for each in (tmp_path / "2").iterdir()}
    assert leftovers == {name, f"{name}.job.json", *([f"{name}.job.stamps"] * with_files)}
    assert predict(path, images).done == 5
    predict(path, [*images, "6.png"])  # a finished file grows
    assert read(path)["image"].tolist() == [image for image in [*IMAGES, "6.png"] for _ in rows(image)]


def files(folder: Path) -> list[NamedImage]:
    """Image files, named without their folder."""
    (folder / "files").mkdir()
    for name in IMAGES:
        (folder / "files" / name).write_bytes(b"pixels")
    return [NamedImage(name, LocalFile(str(folder / "files" / name))) for name in IMAGES]


@pytest.mark.parametrize("name", ["all.csv", "all.parquet", "folder"])
def test_changed_files_are_counted(name: str, tmp_path: Path) -> None:
    images = files(tmp_path)
    path, folder = tmp_path / name, tmp_path / "files"
    predict(path, ["remote.png", *images[:3]])
    assert predict(path, ["remote.png", *images]).changed == 0
    expected = read(path)
    (folder / "1.png").write_bytes(b"other pixels")
    os.utime(folder / "3.png", ns=(0, 0))
    (folder / "4.png").unlink()
    for _ in range(2):  # the rows stay, so the next call says it again
        resumed = predict(path, ["remote.png", *images])
        assert (resumed.changed, resumed.first_changed, resumed.done) == (3, "1.png", 6)
    pd.testing.assert_frame_equal(read(path), expected)
    assert predict(path, ["remote.png", *IMAGES]).changed == 0  # names alone
    Path(f"{path}.job.stamps").unlink()
    assert predict(path, ["remote.png", *images]).changed == 0
    predict(path, ["remote.png", *images], overwrite=True)
    assert predict(path, ["remote.png", *images]).changed == 0


def test_stamps_of_an_abandoned_output_are_not_used(tmp_path: Path) -> None:
    images = files(tmp_path)
    predict(tmp_path / "all.csv", images)
    for left in ("all.csv", "all.csv.job.json"):
        (tmp_path / left).unlink()
    predict(tmp_path / "all.csv", images[:2])
    assert (tmp_path / "all.csv.job.stamps").stat().st_size == 8
    assert predict(tmp_path / "all.csv", images).changed == 0


def test_rows_are_not_written_before_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "FLUSH_SECONDS", 0)
    with opened(tmp_path / "all.csv") as file:  # a new output needs none
        for image in IMAGES:
            file.write(rows(image))
    whole = (tmp_path / "all.csv").read_bytes()
    with opened(tmp_path / "all.csv") as file, pytest.raises(OtptError, match="resume"):
        file.write(rows("0.png"))
    assert (tmp_path / "all.csv").read_bytes() == whole


def read(path: Path) -> pd.DataFrame:
    if path.suffix == ".csv":
        return pd.read_csv(path)
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


@pytest.mark.parametrize("name", ["all.csv", "all.jsonl", "all.parquet", "all.parquet.parts", "folder"])
def test_a_folder_with_other_files_is_never_removed(name: str, tmp_path: Path) -> None:
    folder = tmp_path / name
    (folder / "below").mkdir(parents=True)
    files = [folder / "notes.txt", folder / "below" / "photo.jpg"]
    for file in files:
        file.write_text("mine")
    with pytest.raises(OtptError, match="folder"):
        predict(tmp_path / name.removesuffix(".parts"), overwrite=True)
    assert all(file.read_text() == "mine" for file in files)


@pytest.mark.parametrize("name", ["all.parquet", "folder"])
def test_parts_that_a_kill_left_are_removed(name: str, tmp_path: Path) -> None:
    folder = tmp_path / (f"{name}.parts" if "." in name else name)
    folder.mkdir()
    for part in ("part-000000000000-000000000009.parquet", ".part-000000000000-000000000009.parquet.host.1.2.tmp"):
        (folder / part).write_bytes(b"")
    predict(tmp_path / name, overwrite=True)
    assert list(dict.fromkeys(pd.read_parquet(tmp_path / name)["image"])) == IMAGES


def test_only_bad_images(tmp_path: Path) -> None:
    assert predict(tmp_path / "all.csv", ["2.png"]).failed == 1
    assert predict(tmp_path / "all.csv", ["2.png"]).failed == 1
    for wrong in ("all.txt", "s3://bucket/all.csv"):
        with pytest.raises(OtptError, match=wrong):
            RowStore(wrong, JOB)


@pytest.mark.parametrize(
    "content",
    [
        "[" * 100_000,
        "[]",
        '{"job": 1}',
        '{"job": {}, "done": -1}',
        '{"job": {}, "done": 1e300}',
        '{"job": {}, "done": true}',
        '{"job": {}, "size": "x"}',
        '{"job": {}, "last": 3}',
        '{"job": {}, "columns": "image"}',
    ],
)
def test_a_damaged_description_is_refused(content: str, tmp_path: Path) -> None:
    path = tmp_path / "all.csv"
    predict(path)
    (job,) = tmp_path.glob("*.job.json")
    job.write_text(content, encoding="utf-8")
    with pytest.raises(OtptError, match="damaged"):
        opened(path)
