"""The medical data sets in every layout: classes, counts, labels, ids."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest
from oracles.data.data_files import put_images, touch

from otpt.data import Dataset, find_entry, find_records, load_dataset
from otpt.data.registered import builtin_entries
from otpt.errors import OtptError

# The table of the specification: classes and test images.
TABLE = {"covid": (2, 6904), "isic2018": (7, 1512), "kather": (9, 7180), "kather-500": (9, 500)}
LAYOUTS = {
    "kather": ["CRC-VAL-HE-7K", "kather/CRC-VAL-HE-7K", "kather/images/test"],
    "kather-500": ["CRC-VAL-HE-7K", "kather/CRC-VAL-HE-7K", "kather/images/test"],
    "isic2018": ["ISIC2018/test", "isic2018/test"],
    "covid": ["covid/images/test"],
}


def assert_as_published(data: Dataset, name: str) -> None:
    classes, images = TABLE[name]
    assert (len(data.class_names), len(data), data.family, data.augmix) == (classes, images, "fine-grained", True)
    assert (data.name, data.prompt) == (name, "a photo of a")
    assert set(data.labels) == set(range(classes)), "every class is tested"
    assert len(set(data.ids)) == images


def test_the_registry_is_the_published_table() -> None:
    entries = {name: builtin_entries()[name] for name in TABLE}
    facts = {name: (entry.classes, entry.test_images, entry.family, entry.augmix) for name, entry in entries.items()}
    assert facts == {name: (*numbers, "fine-grained", True) for name, numbers in TABLE.items()}
    listed = {(entry.name, layout.folder) for entry in entries.values() for layout in entry.layouts}
    others = {
        ("covid", "COVID-19_Radiography_Dataset"),
        ("isic2018", "ISIC2018/ISIC2018_Task3_Test_Input"),
        ("isic2018", "ISIC2018_Task3_Test_Input"),
    }
    assert listed == {(name, folder) for name, folders in LAYOUTS.items() for folder in folders} | others
    for entry in entries.values():
        assert len(set(entry.class_list().names)) == len(entry.class_list()) == entry.classes


def class_counts(name: str) -> dict[str, int]:
    """As many files in each class folder as make up the published number."""
    if name == "covid":
        return {"covid": 1808, "normal": 5096}
    classes, images = TABLE[name]
    folders = builtin_entries()[name].class_list().folders
    return {folder: images // classes + (i < images % classes) for i, folder in enumerate(folders)}


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYOUTS)
def test_folders_in_every_layout(tmp_path: Path, name: str) -> None:
    counts = class_counts(name)
    suffix = ".tif" if name.startswith("kather") else ".JPEG"
    first, *others = LAYOUTS[name]
    touch(tmp_path / first, (f"{folder}/{i:04d}{suffix}" for folder, count in counts.items() for i in range(count)))
    data = load_dataset(name, root=tmp_path)
    assert_as_published(data, name)
    order = list(counts)
    assert [order[label] for label in data.labels] == [image_id.split("/")[0] for image_id in data.ids]
    assert Counter(data.labels) == Counter(dict(enumerate(counts.values())))
    for layout in others:  # with one image per class
        root = tmp_path / layout.replace("/", "+")
        touch(root / layout, (f"{folder}/0{suffix}" for folder in counts))
        found = find_records(builtin_entries()[name], root)
        assert found.folder == root / layout
        assert [record.label for record in found.records] == list(range(len(order)))


def test_covid_from_kaggle_is_halved_with_seed_0(tmp_path: Path) -> None:
    base = tmp_path / "COVID-19_Radiography_Dataset"
    made = {"COVID": 36, "Normal": 102}
    touch(base, (f"{name}/images/{name}-{i}.png" for name, count in made.items() for i in range(1, count + 1)))
    touch(base, ["COVID/masks/COVID-1.png", "Viral Pneumonia/images/x.png"])
    with pytest.warns(UserWarning, match="has 69 test images .*, 6904 were published"):
        data = load_dataset("covid", root=tmp_path)
    random.seed(0)  # the literal way: the global generator
    train = [set(random.sample(range(1, count + 1), count // 2)) for count in made.values()]
    wanted = [f"covid/COVID-{i}.png" for i in range(1, 37) if i not in train[0]]
    wanted += [f"normal/Normal-{i}.png" for i in range(1, 103) if i not in train[1]]
    assert list(data.ids) == wanted
    assert Counter(data.labels) == {0: 18, 1: 51}
    assert all(sample.source.is_file() for sample in data)
    other = load_dataset("covid", root=tmp_path, split="train")
    assert not set(other.ids) & set(data.ids)
    assert len(other) + len(data) == 36 + 102


@pytest.mark.parametrize("above", ["", "ISIC2018/"])
def test_isic_from_its_ground_truth(tmp_path: Path, above: str) -> None:
    folders = find_entry("isic2018").class_list().folders
    images = tmp_path / above / "ISIC2018_Task3_Test_Input"
    put_images(images, ["ISIC_0034524.jpg"])
    truth = tmp_path / above / "ISIC2018_Task3_Test_GroundTruth/ISIC2018_Task3_Test_GroundTruth.csv"
    truth.parent.mkdir()
    rows = [f"ISIC_{34524 + i:07d}," + ",".join("1.0" if k == i % 7 else "0.0" for k in range(7)) for i in range(1512)]
    truth.write_text("\n".join(["image," + ",".join(folders), *rows]) + "\n")
    data = load_dataset("isic2018", root=tmp_path)
    assert_as_published(data, "isic2018")
    assert data.labels[:9] == (0, 1, 2, 3, 4, 5, 6, 0, 1)
    assert data[0].source == images / "ISIC_0034524.jpg"
    assert find_records(builtin_entries()["isic2018"], tmp_path).layout.style == "ISIC"


def test_an_image_with_two_classes(tmp_path: Path) -> None:
    put_images(tmp_path / "ISIC2018_Task3_Test_Input", ["ISIC_1.jpg"])
    truth = tmp_path / "ISIC2018_Task3_Test_GroundTruth.csv"
    truth.write_text("image,MEL,NV,BCC,AKIEC,BKL,DF,VASC\nISIC_1,1,1,0,0,0,0,0\n")
    with pytest.raises(OtptError, match="one of them 1 in each row"):
        load_dataset("isic2018", root=tmp_path)
