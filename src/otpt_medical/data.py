"""The medical data sets as published: COVID-19 Radiography, ISIC 2018 task 3, Kather's colon tissue."""

from __future__ import annotations

import os
import random
import re
from dataclasses import replace
from importlib import resources
from pathlib import Path

import pandas
from pydantic import TypeAdapter

from otpt.data import (
    ClassList,
    DatasetEntry,
    NoSuchSplit,
    Place,
    Record,
    read_downloads,
    read_folders,
    register_dataset,
    register_downloads,
    register_reader,
)
from otpt.errors import OtptError
from otpt.files import parse_toml
from otpt.folders import images_below

ROUND_ROBIN = 500
"""Number of images of PromptSmooth's test set."""

_KAGGLE_FOLDERS = {"covid": "COVID", "normal": "Normal"}
_ISIC_SPLITS = {"train": "Training", "val": "Validation", "test": "Test"}
_OTHER_SPLITS = {
    "train": (("CRC-VAL-HE-7K", "NCT-CRC-HE-100K"), ("/test", "/train"), ("_Test_Input", "_Training_Input")),
    "val": (("/test", "/val"), ("_Test_Input", "_Validation_Input")),
}
"""Endings of the test folder, and those of another split next to it."""


def read_halves(place: Place) -> list[Record]:
    """Read BAPLe's test half of the Kaggle release: 1808 + 5096 of 3616 + 10192 images.

    One generator with seed 0; covid first, then normal; of each class, sorted by number, half is drawn for
    training and the rest is tested.
    """
    if place.split not in ("train", "test"):
        raise NoSuchSplit(f"it has no {place.split!r} split; expected 'train' or 'test'")
    generator = random.Random(0)
    records = []
    for label, name in enumerate(place.classes.folders):
        folder = place.folder / _KAGGLE_FOLDERS[name]
        inside = "images" if (folder / "images").is_dir() else ""
        images = sorted(images_below(folder / inside), key=_number)
        drawn = set(generator.sample(images, len(images) // 2))
        for file in images:
            if (file in drawn) == (place.split == "train"):
                records.append(Record(f"{folder.name}/{inside}/{file}".replace("//", "/"), label, f"{name}/{file}"))
    return records


def read_split_folders(place: Place) -> list[Record]:
    """Read one folder per class; other splits are in folders next to the test folder."""
    if place.split == "test":
        return read_folders(place)
    folder = _split_folder(place)
    return _from(place.folder, folder, read_folders(replace(place, folder=folder, split="test")))


def read_round_robin(place: Place) -> list[Record]:
    """Read PromptSmooth's 500 test images: round-robin over the classes, each shuffled with seed 3.

    The files are sorted first, so that the subset is the same on every machine; PromptSmooth takes the order of its
    file system.
    """
    records = read_split_folders(place)
    generator = random.Random(3)
    by_class: list[list[int]] = [[] for _ in place.classes.folders]
    for position, record in enumerate(records):
        by_class[record.label].append(position)
    orders = [generator.sample(positions, len(positions)) for positions in by_class]
    turns: list[int] = []
    for turn in range(max(len(order) for order in orders)):
        turns += [order[turn] for order in orders if turn < len(order)]
    return [records[position] for position in sorted(turns[:ROUND_ROBIN])]


def read_one_hot(place: Place) -> list[Record]:
    """Read ISIC's ground truth, a CSV with one-hot class columns next to the image folder."""
    folder = place.folder if place.split == "test" else _split_folder(place)
    name = f"ISIC2018_Task3_{_ISIC_SPLITS[place.split]}_GroundTruth"
    file = place.need("ground truth", f"{name}.csv", f"{name}/{name}.csv")
    folders = list(place.classes.folders)
    try:
        table = pandas.read_csv(file, index_col="image")
        if (
            list(table.columns) != folders
            or not (table.sum(axis=1) == 1).all()
            or not table.isin((0, 1)).all(axis=None)
        ):
            raise ValueError(f"expected the columns {', '.join(folders)}, one of them 1 in each row and the others 0")
    except (OSError, ValueError) as error:
        raise OtptError(f"Cannot read the ground truth {str(file)!r}: {error}.") from None
    labels = table.to_numpy().argmax(axis=1).tolist()
    records = [Record(f"{image}.jpg", label) for image, label in zip(table.index, labels, strict=True)]
    return records if place.split == "test" else _from(place.folder, folder, records)


def _split_folder(place: Place) -> Path:
    """Return the folder of the training or validation split, next to the test folder."""
    test = place.folder.as_posix()
    for theirs, other in _OTHER_SPLITS[place.split]:
        if test.endswith(theirs):
            folder = Path(test.removesuffix(theirs) + other)
            if folder.is_dir():
                return folder
            raise NoSuchSplit(f"its {place.split!r} split was not found; expected it in {str(folder)!r}")
    raise NoSuchSplit(f"it has no {place.split!r} split here; expected 'test'")


def _from(folder: Path, other: Path, records: list[Record]) -> list[Record]:
    """Return records of another folder, relative to the layout's folder."""
    way = Path(os.path.relpath(other, folder)).as_posix()
    return [Record(f"{way}/{record.file}", record.label, record.id) for record in records]


def _number(file: str) -> tuple[int, str]:
    """Return a sort key by the number in a name, such as 12 in "COVID-12.png"."""
    digits = re.findall(r"\d+", file)
    return (int(digits[-1]) if digits else -1, file)


def _entry(name: str, table: dict[str, object]) -> DatasetEntry:
    """Return the data set of a table in ``datasets.toml``."""
    names = TypeAdapter(dict[str, str]).validate_python(table.pop("class_names"))
    classes = ClassList(tuple(names), tuple(names.values()))
    facts = {"name": name, "classes": len(classes), "family": "fine-grained", "augmix": True, "listed": classes}
    return TypeAdapter(DatasetEntry).validate_python({**facts, **table})


register_reader("halves", read_halves)
register_reader("one-hot", read_one_hot)
register_reader("round-robin", read_round_robin)
register_reader("split-folders", read_split_folders)
_TABLES = TypeAdapter(dict[str, dict[str, object]])
_TEXT = resources.files(__package__).joinpath("datasets.toml").read_text(encoding="utf-8")
for _name, _table in _TABLES.validate_python(parse_toml(_TEXT)).items():
    register_dataset(_entry(_name, _table))
_DOWNLOADS = resources.files(__package__).joinpath("downloads.toml").read_text(encoding="utf-8")
register_downloads(read_downloads(_DOWNLOADS, "downloads.toml"))
