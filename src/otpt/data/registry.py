"""Data sets by name: the paper's, the bench's, and your own files.

| spec | what |
|---|---|
| ``dtd``, ``imagenet-v2``, … | a registered set, found under ``root`` in the layout of CoOp, TPT or torchvision |
| ``emoji/animals``, … | the bench, drawn on the fly |
| a folder | one sub-folder per class |
| ``x.csv``, ``x.parquet`` | a table of path and label |
| ``x-{000..009}.tar`` | webdataset shards |
| ``hf:owner/name`` | a Hugging Face data set |

A registered name wins over a folder of the same name; write ``./dtd`` for the folder.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from pathlib import Path

from otpt.data._emoji import emoji_dataset, emoji_entries
from otpt.data.classes import ClassList, ClassSource, class_list_of
from otpt.data.dataset import Dataset, FilesBelow
from otpt.data.folders import image_folder
from otpt.data.own.hub import hub_dataset
from otpt.data.own.shards import is_shards, shard_dataset
from otpt.data.own.tables import TABLE_SUFFIXES, table_dataset
from otpt.data.records import NoSuchSplit
from otpt.data.registered.entry import DatasetEntry, builtin_entries, find_entry
from otpt.data.registered.layouts import Found, find_records
from otpt.errors import OtptError, unknown


def list_datasets() -> Sequence[DatasetEntry]:
    """All registered data sets: the paper's 15, the medical ones, the emoji bench."""
    return [*builtin_entries().values(), *emoji_entries()]


def load_dataset(
    spec: str,
    *,
    root: str | Path | None = None,
    classes: ClassSource | None = None,
    official_names: bool = False,
    split: str = "test",
) -> Dataset:
    """A data set by name, path or ``hf:NAME`` (see the module).

    Args:
        root: the folder that holds the registered data sets; own paths may be relative to it.
        classes: class names in label order; or a file of them, one per line, "folder" or "folder<TAB>name".
        official_names: the class names of the papers' code where they differ from the correct ones (Food101).
        split: "test"; or "val" and "train" where the set's split file has them, and "train" of the emoji bench.
    """
    root = None if root is None else Path(root)
    if spec.startswith("emoji/"):
        if classes is not None:
            raise OtptError(f"{spec} has fixed class names; a class list is for your own data and the registered sets.")
        return emoji_dataset(spec, split)
    listed = None if classes is None else class_list_of(classes)
    entry = find_entry(spec)
    if entry is not None:
        if root is None:
            hint = f" The folder here is ./{Path(spec).as_posix()}." if os.path.isdir(spec) else ""
            raise OtptError(
                f"{entry.name} needs a data root, the folder that holds the data sets: --data ROOT, in Python root=."
                f"{hint}"
            )
        return _registered(entry, find_records(entry, root, split), listed, official_names, split)
    if spec.startswith("hf:"):
        return hub_dataset(spec.removeprefix("hf:"), split=split, classes=listed)
    if split != "test":
        raise NoSuchSplit(
            f"{spec!r} has no splits, so {split!r} cannot be chosen; pass each split as a separate data set."
        )
    if is_shards(spec):
        return shard_dataset(spec, root, listed)
    return _own(spec, root, listed)


def _own(spec: str, root: Path | None, classes: ClassList | None) -> Dataset:
    path = Path(os.path.expanduser(spec))
    if not os.path.exists(path) and root is not None and os.path.exists(Path(os.path.expanduser(root)) / path):
        path = Path(os.path.expanduser(root)) / path
    if os.path.isdir(path):
        return image_folder(path, classes)
    if path.suffix.lower() in TABLE_SUFFIXES:
        return table_dataset(path, root, classes)
    if os.path.exists(path):
        raise OtptError(
            f"Cannot use {spec!r} as a data set; expected a folder of class folders, "
            f"a table ({', '.join(TABLE_SUFFIXES)}) or tar shards."
        )
    if len(Path(spec).parts) > 1:
        raise OtptError(f"There is no data set at {spec!r}; check the path.")
    error = unknown("data set", spec, [entry.name for entry in list_datasets()])
    raise OtptError(f"{error} For other images give a folder of class folders, a CSV or hf:OWNER/NAME.")


def _registered(entry: DatasetEntry, found: Found, classes: ClassList | None, official: bool, split: str) -> Dataset:
    names = entry.class_list(official_names=official)
    given = names if classes is None else _renamed(classes, names, entry)
    count = len(found.records.ids)
    if split == "test" and entry.test_images is not None and count != entry.test_images:
        warnings.warn(
            f"{entry.name} has {count} test images in {str(found.folder)!r}, {entry.test_images} were published: "
            "accuracy and calibration are not comparable with the papers'.",
            stacklevel=3,
        )
    return Dataset(
        entry.name,
        given.names,
        found.records.ids,
        found.records.labels,
        FilesBelow(found.folder, found.records.files),
        family=given.family or entry.family,
        augmix=entry.augmix if given.augmix is None else given.augmix,
        prompt=given.prompt or entry.prompt,
        allow_duplicates=entry.allow_duplicates,
        origin=entry.name,
    )


def _renamed(given: ClassList, names: ClassList, entry: DatasetEntry) -> ClassList:
    """The user's names for a registered set's classes, in its label order."""
    if len(given) != len(names):
        raise OtptError(f"{entry.name} has {len(names)} classes, but the class list names {len(given)}.")
    if set(given.folders) == set(names.folders):
        # Lines "folder<TAB>name" say themselves which class they mean.
        by_folder = dict(zip(given.folders, given.names, strict=True))
        renamed = tuple(by_folder[folder] for folder in names.folders)
        return ClassList(names.folders, renamed, given.prompt, given.family, given.augmix)
    return given
