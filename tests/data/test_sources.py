"""Images from folders, patterns, lists, shards, tables and data sets: the same images, named and in order."""

from __future__ import annotations

import io
import os
import random
import sys
import tarfile
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest
from PIL import Image

from otpt.data import open_source
from otpt.data.sources import Source, SourceError
from otpt.errors import OtptError
from otpt.folders import sort_names
from otpt.images import open_image

NAMES = ["a.png", "b c.png", "sub.png", "sub/0.png", "sub/[1].png"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("images")
    (root / "sub").mkdir()
    for i, name in enumerate(NAMES):
        Image.new("RGB", (4, 4), (i, 0, 0)).save(root / name)
    (root / "notes.txt").write_text("no image", encoding="utf-8")
    return root


def reds(source: Source) -> list[int]:
    """Which images these are."""
    return [open_image(image.read()).getpixel((0, 0))[0] for image in source]  # type: ignore[index]


def test_folders_patterns_files_and_lists(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = open_source(str(folder))
    assert [image.id for image in found] == [str(folder / name) for name in NAMES]
    assert reds(found) == reds(found) == [0, 1, 2, 3, 4]
    assert found.count() == 5
    assert reds(open_source(f"{folder}/**/*.png")) == [0, 1, 2, 3, 4]
    assert reds(open_source(f"{folder}/s*")) == [3, 4, 2]
    assert reds(open_source(str(folder / "sub/[1].png"), str(folder / "a.png"))) == [4, 0]
    (folder / "list.txt").write_text("sub/0.png\n\nb c.png\n", encoding="utf-8")
    assert reds(open_source(f"@{folder}/list.txt")) == [3, 1]
    monkeypatch.chdir(folder)
    (tmp_path / "list.txt").write_text("sub/0.png\n", encoding="utf-8")
    assert [image.id for image in open_source(f"@{tmp_path}/list.txt")] == ["sub/0.png"]


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_shards(mode: str, folder: Path, tmp_path: Path) -> None:
    names = [f"x-{i}.tar{'.gz' if mode == 'w:gz' else ''}" for i in range(2)]
    for i, name in enumerate(names):
        with tarfile.open(tmp_path / name, mode) as archive:
            for each in NAMES[3 * i : 3 * i + 3]:
                archive.add(folder / each, each)
            archive.add(folder / "notes.txt", "notes.txt")
    braces = open_source(str(tmp_path / names[0].replace("0", "{0..1}")))
    assert reds(braces) == [0, 1, 2, 3, 4]
    assert next(iter(braces)).id == f"{tmp_path / names[0]}/a.png"
    assert reds(open_source(f"{tmp_path}/x-*.tar*")) == [0, 1, 2, 3, 4]
    whole = (tmp_path / names[0]).read_bytes()
    cut = tmp_path / f"cut-{names[0]}"
    end = len(whole) if mode == "w:gz" else len(whole.rstrip(b"\0"))
    for size in range(1, end, 700):
        cut.write_bytes(whole[:size])
        with pytest.raises(OtptError, match="cut-"):
            reds(open_source(str(cut)))
    if mode == "w":
        damaged = bytearray(whole)
        damaged[1024 + 150] ^= 1  # in the header of the second member
        cut.write_bytes(damaged)
        with pytest.raises(SourceError, match="cut-"):
            reds(open_source(str(cut)))


def test_tables(folder: Path, tmp_path: Path) -> None:
    data = [(folder / name).read_bytes() for name in NAMES]
    pd.DataFrame({"id": NAMES, "picture": data}).to_parquet(tmp_path / "bytes.parquet")
    table = open_source(str(tmp_path / "bytes.parquet"), column="picture")
    assert [image.id for image in table] == NAMES
    assert reds(table) == [0, 1, 2, 3, 4]
    pairs = pa.table({"image": [{"bytes": None, "path": str(folder / "a.png")}, {"bytes": data[1], "path": "x"}]})
    for name, make in (("s.arrow", pa.ipc.new_stream), ("f.arrow", pa.ipc.new_file)):
        with make(tmp_path / name, pairs.schema) as writer:
            writer.write(pairs)
        assert reds(open_source(str(tmp_path / name))) == [0, 1]
    pd.DataFrame({"n": [1, 2], "path": ["a.png", "nowhere.png"]}).to_csv(folder / "rows.csv")
    first, second = open_source(str(folder / "rows.csv"))
    assert (first.id, second.id) == ("a.png", "nowhere.png")
    with pytest.raises(OtptError, match="nowhere"):
        open_image(second.read())
    pd.DataFrame({"id": ["x"], "image": [None]}).to_parquet(tmp_path / "none.parquet")
    (empty,) = open_source(str(tmp_path / "none.parquet"))
    with pytest.raises(OtptError, match="None"):
        empty.read()


def test_hugging_face(folder: Path, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    table = datasets.Dataset.from_dict({"picture": [str(folder / name) for name in NAMES], "n": range(5)})
    table = table.cast_column("picture", datasets.Image())
    datasets.DatasetDict({"train": table}).save_to_disk(str(tmp_path / "saved"))
    found = open_source(f"hf:{tmp_path / 'saved'}", split="train")
    assert reds(found) == [0, 1, 2, 3, 4]
    with pytest.raises(OtptError, match="test"):
        open_source(f"hf:{tmp_path / 'saved'}")


def test_names_are_sorted_in_pieces() -> None:
    names = [f"{random.Random(i).random()}\n{i}" for i in range(1000)]
    for size in (7, 1000, 1001):
        assert list(sort_names(iter(names), size)) == sorted(names)


@pytest.mark.parametrize(
    "word",
    ["nowhere", "nowhere.tar", "x-{0..3}.tar", "nowhere.parquet", "nowhere/*.png", "@nowhere.txt", "empty",
     "bad.parquet", "bad.arrow", "bad.tar", "n.parquet", "nothing://x/y.png", "memory://nowhere/", "hf:/nowhere"],
)  # fmt: skip
def test_bad_input(word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkdir("empty")
    for name in ("bad.parquet", "bad.arrow", "bad.tar"):
        Path(name).write_bytes(b"no table")
    pd.DataFrame({"n": [1]}).to_parquet("n.parquet")
    with pytest.raises(OtptError, match=word.lstrip("@")[:2]):
        open_source(word)


def test_standard_input_is_one_image(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO((folder / "b c.png").read_bytes())))
    assert reds(open_source("<stdin>")) == [1]
    with pytest.raises(OtptError, match="twice"):
        open_source("<stdin>", "<stdin>")
