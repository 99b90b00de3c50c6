"""Two medical sets as their makers publish them: the COVID-19 Radiography Database, and ISIC 2018 task 3."""

from __future__ import annotations

import csv
import io
import random
import re

from otpt.data.folders import pictures_below
from otpt.data.records import Place, Records, read_text, records
from otpt.errors import OtptError

_KAGGLE_FOLDERS = {"covid": "COVID", "normal": "Normal"}


def read_halves(place: Place) -> Records:
    """BAPLe's test half of the Kaggle release, drawn again: 1808 + 5096 of 3616 + 10192 pictures.

    One generator with seed 0; covid first, then normal; of each class, sorted by number, half is drawn for
    training and the rest is tested.
    """
    if place.split not in ("train", "test"):
        raise OtptError(f"it has no {place.split!r} split; expected 'train' or 'test'")
    generator = random.Random(0)
    ids: list[str] = []
    labels: list[int] = []
    files: list[str] = []
    for label, name in enumerate(place.classes.folders):
        folder = place.folder / _KAGGLE_FOLDERS[name]
        inside = "images" if (folder / "images").is_dir() else ""
        pictures = sorted(pictures_below(folder / inside), key=_number)
        drawn = set(generator.sample(pictures, len(pictures) // 2))
        for file in pictures:
            if (file in drawn) == (place.split == "train"):
                ids.append(f"{name}/{file}")
                labels.append(label)
                files.append(f"{folder.name}/{inside}/{file}" if inside else f"{folder.name}/{file}")
    return Records(tuple(ids), tuple(labels), tuple(files))


def read_one_hot(place: Place) -> Records:
    """ISIC's ground truth: a CSV with a column a class, one of them 1, beside the folder of pictures."""
    if place.split != "test":
        raise OtptError(f"it has no {place.split!r} split here; expected 'test'")
    name = "ISIC2018_Task3_Test_GroundTruth"
    file = place.need("ground truth", f"{name}.csv", f"{name}/{name}.csv")
    rows: list[tuple[str, int]] = []
    for number, row in enumerate(csv.DictReader(io.StringIO(read_text(file))), start=2):
        try:
            values = [float(row[column]) for column in place.classes.folders]
            picture = row["image"]
        except (KeyError, TypeError, ValueError):
            raise OtptError(
                f"{file}, line {number}: expected the columns image, {', '.join(place.classes.folders)} with numbers"
            ) from None
        if sorted(values) != [0.0] * (len(values) - 1) + [1.0]:
            raise OtptError(f"{file}, line {number}: expected exactly one class with 1, the others with 0")
        rows.append((f"{picture}.jpg", values.index(1.0)))
    return records(rows)


def _number(file: str) -> tuple[int, str]:
    """ "COVID-12.png" by its 12."""
    digits = re.findall(r"\d+", file)
    return (int(digits[-1]) if digits else -1, file)
