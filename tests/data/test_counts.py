"""Every source says how many images it has, or why that is unknown."""

from __future__ import annotations

import csv
import gzip
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from otpt.data import open_source
from otpt.data.sources import Unknown
from otpt.progress import Progress

Make = Callable[[Path], str]
COUNT = 5


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(COUNT):
        Image.fromarray(np.full((8, 8, 3), number, np.uint8)).save(folder / f"{number}.png")
    (folder / "notes.txt").write_text("no image", encoding="utf-8")
    return folder


def shard(folder: Path, name: str, mode: str = "w") -> Path:
    path = folder.parent / name
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        archive.add(folder, "photos")
    return path


def two_shards(folder: Path, numbers: str) -> str:
    for number in (0, 1):
        shard(folder, f"x-{number}.tar")
    return str(folder.parent / f"x-{numbers}.tar")


def table(folder: Path, name: str) -> str:
    path = folder.parent / name
    files = sorted(folder.glob("*.png"))
    columns = {"image": [file.read_bytes() for file in files], "id": [file.name for file in files]}
    if name.endswith(".parquet"):
        pq.write_table(pa.table(columns), path)
    elif name.endswith(".csv"):
        with path.open("w", newline="", encoding="utf-8") as text:
            writer = csv.writer(text)
            writer.writerow(["path", "note"])
            writer.writerows([f"photos/{file.name}", "two\nlines"] for file in files)
    else:
        rows = pa.table(columns)
        kind = pa.ipc.new_stream if "stream" in name else pa.ipc.new_file
        with kind(str(path), rows.schema) as writer:
            writer.write_table(rows, max_chunksize=2)
    return str(path)


def listed(folder: Path, *further: str) -> str:
    path = folder.parent / "list.txt"
    path.write_text("\n".join([*map(str, sorted(folder.glob("*.png"))), *further]) + "\n", encoding="utf-8")
    return f"@{path}"


def features(folder: Path) -> str:
    path = folder.parent / "features.parquet"
    pq.write_table(pa.table({"id": ["a", "b"], "feature": [[1.0, 0.0]] * 2}), path)
    return str(path)


KNOWN: dict[str, Make] = {
    "folder": str,
    "pattern of files": lambda folder: f"{folder}/*.png",
    "list": listed,
    "list with a shard": lambda folder: listed(folder, str(shard(folder, "x.tar"))),
    "one file": lambda folder: f"{folder}/0.png",
    "shard": lambda folder: str(shard(folder, "x.tar")),
    "shards by braces": lambda folder: two_shards(folder, "{0..1}"),
    "pattern of shards": lambda folder: two_shards(folder, "*"),
    "parquet": lambda folder: table(folder, "x.parquet"),
    "arrow file": lambda folder: table(folder, "x.arrow"),
    "arrow stream": lambda folder: table(folder, "stream.arrow"),
    "csv": lambda folder: table(folder, "x.csv"),
    "data set": lambda folder: "emoji/food",
    "remote folder": lambda folder: f"file://{folder}",
    "remote parquet": lambda folder: f"file://{table(folder, 'x.parquet')}",
    "remote csv": lambda folder: f"file://{table(folder, 'x.csv')}",
    "features": features,
}
UNKNOWN: dict[str, Make] = {
    "compressed shard": lambda folder: str(shard(folder, "x.tar.gz", "w:gz")),
    "compressed shard without its suffix": lambda folder: str(shard(folder, "x.tar", "w:gz")),
    "remote shard": lambda folder: f"file://{shard(folder, 'x.tar')}",
    "remote arrow file": lambda folder: f"file://{table(folder, 'x.arrow')}",
    "list with a compressed shard": lambda folder: listed(folder, str(shard(folder, "x.tar.gz", "w:gz"))),
}


@pytest.mark.parametrize("kind", KNOWN)
def test_the_count_is_that_of_the_images(kind: str, photos: Path) -> None:
    source = open_source(KNOWN[kind](photos))
    assert source.count() == sum(1 for _ in source)


@pytest.mark.parametrize("kind", UNKNOWN)
def test_an_unknown_count_has_a_reason(kind: str, photos: Path) -> None:
    source = open_source(UNKNOWN[kind](photos))
    count = source.count()
    assert isinstance(count, Unknown)
    assert "x." in count.reason


def test_several_words(photos: Path) -> None:
    assert open_source(str(photos), table(photos, "x.parquet"), f"{photos}/0.png").count() == 2 * COUNT + 1
    assert isinstance(open_source(str(photos), str(shard(photos, "x.tar.gz", "w:gz"))).count(), Unknown)


def test_saved_hugging_face_data_sets(photos: Path, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    files = [str(file) for file in sorted(photos.glob("*.png"))]
    datasets.Dataset.from_dict({"image": files}).save_to_disk(tmp_path / "saved")
    assert open_source(f"hf:{tmp_path / 'saved'}").count() == COUNT


def test_counting_reads_headers_only(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = open_source(str(shard(photos, "x.tar")))
    monkeypatch.setattr("otpt.data.sources._range", lambda *_: pytest.fail("an image was read"))
    assert source.count() == COUNT
    damaged = shard(photos, "y.tar")
    damaged.write_bytes(gzip.compress(damaged.read_bytes())[:-20])
    assert isinstance(open_source(str(shard(photos, "z.tar.gz", "w:gz")), str(photos)).count(), Unknown)


# ---- what a log shows -----------------------------------------------------------------------------------------------


def wait_for(lines: list[str], count: int) -> None:
    until = time.monotonic() + 60
    while len(lines) < count and time.monotonic() < until:
        time.sleep(0.01)
    assert len(lines) >= count


def test_the_first_lines_of_a_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model is loaded, then the first images come."""
    monkeypatch.setattr("otpt.progress.FIRST_SECONDS", (0.01, 0.02, 0.03))
    lines: list[str] = []
    with Progress(log=lines.append) as progress, progress.waiting("loading the model"):
        wait_for(lines, 3)
    assert {line.partition(",")[0] for line in lines[:3]} == {"loading the model"}
    lines.clear()
    with Progress(log=lines.append) as progress:
        progress.start(0, 40)
        progress.update(2)
        wait_for(lines, 2)
    assert lines[-1].startswith("2/40 images, ")
    assert lines[-1].endswith(" left")
    lines.clear()
    with Progress(log=lines.append) as progress:
        progress.start(0, None)
        progress.unknown = "x.tar.gz is compressed"
        wait_for(lines, 2)
    assert "x.tar.gz is compressed" in lines[-1]


def test_nothing_is_logged_after_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("otpt.progress.FIRST_SECONDS", (0.05,))
    lines: list[str] = []
    with Progress(log=lines.append) as progress:
        progress.start(0, 40)
    time.sleep(0.2)
    assert lines == []
