"""Data sets with one folder per class: ImageNet and its shifts, the medical ones, and your own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from otpt.data.classes import ClassList, find_class_list
from otpt.data.dataset import IMAGE_SUFFIXES, Dataset, FilesBelow
from otpt.data.own.labels import origin_of, own_dataset
from otpt.data.records import NoSuchSplit, Place, Records, records, shortened
from otpt.errors import OtptError, cannot_read


def read_folders(place: Place) -> Records:
    """One folder per class, named as in the class list, or by its label (ImageNet-V2: 0, 1, … 999)."""
    if place.split != "test":
        raise NoSuchSplit(f"it has no {place.split!r} split here; expected 'test'")
    labels = place.classes.index()
    present = class_folders(place.folder)
    if place.numeric_folders and present and all(name.isdecimal() for name in present):
        # By value: sorted as strings (0, 1, 10, 100, …) the folders would permute the classes.
        labels = {str(label): label for label in labels.values()}
    strange = [name for name in present if name not in labels]
    missing = sorted(labels.keys() - set(present), key=labels.__getitem__)
    if len(missing) == len(labels):
        raise OtptError(f"it holds none of the {len(labels)} class folders ({shortened(labels, 3)})")
    if missing:
        raise OtptError(f"{len(missing)} of {len(labels)} class folders are missing: {shortened(missing)}")
    if strange:
        raise OtptError(f"it holds more folders than the {len(labels)} classes: {shortened(strange)}")
    found = records(_rows(place.folder, labels))
    if not found.ids:
        raise OtptError("its class folders hold no images")
    return found


def image_folder(folder: Path, classes: ClassList | None = None) -> Dataset:
    """Your own images, ``folder/CLASS/…/image.jpg``.

    The label order is that of the class list (``classes``, or ``classes.txt`` in the folder), else alphabetical.
    """
    listed = classes if classes is not None else find_class_list(folder)
    present = class_folders(folder)
    if not present:
        raise OtptError(
            f"The folder {str(folder)!r} has no sub-folders; expected one per class, with its images inside, "
            "or a CSV of path and label."
        )
    if listed is None:
        listed = ClassList(tuple(present), tuple(present))
    labels = listed.index()
    strange = [name for name in present if name not in labels]
    if strange:
        raise OtptError(
            f"The folder {str(folder)!r} holds classes that the class list of {len(listed)} does not name: "
            f"{shortened(strange)}; add them to the list or take them out of the folder."
        )
    found = records(_rows(folder, {name: labels[name] for name in sorted(present, key=labels.__getitem__)}))
    if not found.ids:
        raise OtptError(f"The class folders of {str(folder)!r} hold no images ({', '.join(sorted(IMAGE_SUFFIXES))}).")
    return own_dataset(
        folder.resolve().name,
        listed,
        found.ids,
        found.labels,
        FilesBelow(folder, found.files),
        origin=origin_of(folder),
    )


def class_folders(folder: Path) -> list[str]:
    """Names of the sub-folders, sorted; hidden ones and leftovers of archives (``__MACOSX``) are ignored."""
    try:
        with os.scandir(folder) as inside:
            return sorted(item.name for item in inside if item.is_dir() and not item.name.startswith((".", "__")))
    except OSError as error:
        raise cannot_read("folder", folder, error) from None


def images_below(folder: Path, below: str = "") -> Iterator[str]:
    """Paths of the image files under ``folder``, relative to it, each folder's sorted by name."""
    try:
        with os.scandir(folder) as inside:
            items = sorted((item.name, item.is_dir()) for item in inside)  # is_dir fails where links form a circle
    except OSError as error:
        raise cannot_read("folder", folder, error) from None
    for name, is_folder in items:
        if name.startswith("."):
            continue
        if is_folder:
            yield from images_below(folder / name, f"{below}{name}/")
        elif os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES:
            yield below + name


def _rows(folder: Path, labels: dict[str, int]) -> Iterator[tuple[str, int]]:
    for name, label in labels.items():
        for file in images_below(folder / name):
            yield f"{name}/{file}", label
