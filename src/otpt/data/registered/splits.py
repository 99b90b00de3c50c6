"""Splits from files: CoOp's ``split_zhou_*.json``, and lists of lines.

A split file is ``{"train": …, "val": …, "test": …}``, each a list of ``[relative path, label, class name]``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from otpt.data.classes import ClassList
from otpt.data.records import NoSuchSplit, Place, Records, read_text, records
from otpt.errors import OtptError
from otpt.files import parse_json

# Official lists that define the very test split of CoOp's file, for users who have the data but not that file.
_OFFICIAL_LISTS = {
    "split_zhou_OxfordPets.json": "annotations/test.txt",
    "split_zhou_SUN397.json": "Testing_01.txt",
}


def read_split(place: Place) -> Records:
    """The images of a split as CoOp's split file lists them (or the official list that it was made from)."""
    official = _OFFICIAL_LISTS.get(place.split_file) if place.split == "test" else None
    file = place.need("split file", place.split_file, *filter(None, [official]))
    if file.name == place.split_file:
        return records(_split_rows(file, place))
    rows = _pets_rows if "Pets" in place.split_file else _sun_rows
    return records(rows(file, place.classes))


def read_lists(place: Place) -> Records:
    """FGVC Aircraft: ``images_variant_SPLIT.txt`` with lines "image class", ``variants.txt`` in label order."""
    labels = place.classes.index()
    variants = place.find("variants.txt")
    if variants is not None:
        listed = tuple(line.strip() for line in read_text(variants).splitlines() if line.strip())
        if listed != place.classes.folders:
            raise OtptError(f"the classes of {str(variants)!r} differ from the published list; expected its 100 lines")
    file = place.need("list", f"images_variant_{place.split}.txt")

    def rows() -> Iterator[tuple[str, int]]:
        for number, line in enumerate(read_text(file).splitlines(), start=1):
            if line.strip():
                image, _, name = line.strip().partition(" ")
                yield f"{image}.jpg", _label(name, labels, f"{file}, line {number}")

    return records(rows())


def _split_rows(file: Path, place: Place) -> Iterator[tuple[str, int]]:
    try:
        content: Any = parse_json(read_text(file))
        rows = content[place.split]
        listed = [(str(path), int(label), str(name)) for path, label, name in rows]
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        if isinstance(error, OtptError):
            raise
        kind = NoSuchSplit if isinstance(error, KeyError) else OtptError
        raise kind(
            f"the split file {str(file)!r} is damaged or has no {place.split!r} split; expected a JSON object with "
            "lists of [path, label, class name]"
        ) from None
    names = place.classes.names
    for path, label, name in listed:
        if not 0 <= label < len(names):
            raise OtptError(
                f"in {str(file)!r}, {path!r} has label {label}, which has no class name (0 to {len(names) - 1})"
            )
        if _plain(name) != _plain(names[label]):
            raise OtptError(
                f"in {str(file)!r}, label {label} is called {name!r}, but {names[label]!r} in the published list: "
                "it is a different split, or its labels are permuted"
            )
        if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
            raise OtptError(f"in {str(file)!r}, the image {path!r} lies outside the data; expected a relative path")
        yield path, label


def _pets_rows(file: Path, classes: ClassList) -> Iterator[tuple[str, int]]:
    """Lines "Abyssinian_201 1 1 1": image, class from 1, and two more numbers."""
    for number, line in enumerate(read_text(file).splitlines(), start=1):
        fields = line.split()
        if not fields or line.startswith("#"):
            continue
        if len(fields) != 4 or not fields[1].isdecimal() or not 1 <= int(fields[1]) <= len(classes):
            raise OtptError(f"{file}, line {number}: {line!r} is not 'image class species breed'")
        yield f"{fields[0]}.jpg", int(fields[1]) - 1


def _sun_rows(file: Path, classes: ClassList) -> Iterator[tuple[str, int]]:
    """Lines "/a/abbey/sun_….jpg"."""
    labels = classes.index()
    for number, line in enumerate(read_text(file).splitlines(), start=1):
        path = line.strip().lstrip("/")
        if path:
            yield path, _label(str(PurePosixPath(path).parent), labels, f"{file}, line {number}")


def _label(name: str, labels: dict[str, int], where: str) -> int:
    if name not in labels:
        raise OtptError(f"{where}: the class {name!r} is not in the published class list")
    return labels[name]


def _plain(name: str) -> str:
    return " ".join(name.replace("_", " ").lower().split())
