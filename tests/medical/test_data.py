"""Splits of the medical sets next to their test images, and PromptSmooth's 500."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from oracles.data.data_files import put_images, touch

from otpt.data import find_entry, load_dataset
from otpt.errors import OtptError

FOLDERS = find_entry("kather").class_list().folders


@pytest.mark.filterwarnings("ignore:.*were published")
@pytest.mark.parametrize(
    ("name", "test", "split", "other"),
    [
        ("kather", "CRC-VAL-HE-7K", "train", "NCT-CRC-HE-100K"),
        ("kather", "kather/images/test", "train", "kather/images/train"),
        ("covid", "covid/images/test", "train", "covid/images/train"),
        ("isic2018", "ISIC2018/test", "train", "ISIC2018/train"),
        ("isic2018", "ISIC2018/test", "val", "ISIC2018/val"),
    ],
)
def test_other_splits(tmp_path: Path, name: str, test: str, split: str, other: str) -> None:
    folders = find_entry(name).class_list().folders
    put_images(tmp_path / test, [f"{each}/t.jpg" for each in folders])
    assert len(load_dataset(name, root=tmp_path)) == len(folders)
    with pytest.raises(OtptError, match=f"its '{split}' split was not found; expected it in '.*{other}'"):
        load_dataset(name, root=tmp_path, split=split)
    put_images(tmp_path / other, [f"{each}/{i}.jpg" for each in folders for i in range(2)])
    data = load_dataset(name, root=tmp_path, split=split)
    assert data.ids == tuple(f"{each}/{i}.jpg" for each in folders for i in range(2))
    assert [sample.source.resolve() for sample in data] == [tmp_path / other / name for name in data.ids]  # type: ignore[union-attr]


@pytest.mark.filterwarnings("ignore:.*were published")
@pytest.mark.parametrize(("split", "word"), [("train", "Training"), ("val", "Validation")])
def test_isic_splits_with_their_ground_truth(tmp_path: Path, split: str, word: str) -> None:
    folders = find_entry("isic2018").class_list().folders
    put_images(tmp_path / "ISIC2018_Task3_Test_Input", ["a.jpg"])
    put_images(tmp_path / f"ISIC2018_Task3_{word}_Input", ["b.jpg", "c.jpg"])
    rows = ["image," + ",".join(folders), "b,0,0,1,0,0,0,0", "c,0,0,0,0,0,0,1"]
    (tmp_path / f"ISIC2018_Task3_{word}_GroundTruth.csv").write_text("\n".join(rows) + "\n")
    data = load_dataset("isic2018", root=tmp_path, split=split)
    assert (data.ids, data.labels) == (("b.jpg", "c.jpg"), (2, 6))
    assert all(sample.source.is_file() for sample in data)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "rows",
    [
        ["image,MEL,NV,XYZ,AKIEC,BKL,DF,VASC", "a,0,0,1,0,0,0,0"],
        ["image,MEL,NV,BCC,AKIEC,BKL,DF,VASC,UNK", "a,0,0,0,0,0,0,0,1"],
        ["image,MEL,NV,BCC,AKIEC,BKL,DF,VASC", "a,0,0,0,0,0,0,0"],
        ["image,MEL,NV,BCC,AKIEC,BKL,DF,VASC", "a,0,0,0.5,0.5,0,0,0"],
        ["name,MEL,NV,BCC,AKIEC,BKL,DF,VASC", "a,0,0,1,0,0,0,0"],
    ],
)
def test_unknown_labels_in_a_table(tmp_path: Path, rows: list[str]) -> None:
    put_images(tmp_path / "ISIC2018_Task3_Test_Input", ["a.jpg"])
    (tmp_path / "ISIC2018_Task3_Test_GroundTruth.csv").write_text("\n".join(rows) + "\n")
    with pytest.raises(OtptError, match=r"Test_GroundTruth\.csv"):
        load_dataset("isic2018", root=tmp_path)


def test_500_images_in_turn(tmp_path: Path) -> None:
    touch(tmp_path / "CRC-VAL-HE-7K", (f"{each}/{i:03d}.tif" for each in FOLDERS for i in range(70)))
    data = load_dataset("kather-500", root=tmp_path)
    assert len(data) == 500
    assert sorted(Counter(data.labels).values()) == [55] * 4 + [56] * 5
    assert [count for _, count in sorted(Counter(data.labels).items())] == [56] * 5 + [55] * 4
    assert load_dataset("kather-500", root=tmp_path).ids == data.ids
    first = [name for name in data.ids if name.startswith("ADI/")]
    assert first != [f"ADI/{i:03d}.tif" for i in range(56)], "drawn, not the first ones"
