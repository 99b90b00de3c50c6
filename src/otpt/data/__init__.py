"""Images with labels: the paper's data sets, the emoji bench, and your own.

| spec | images |
|---|---|
| ``dtd``, ``imagenet-v2``, ``imagenet-c/fog/3``, … | a registered set, found under ``root`` in a known layout |
| ``emoji/animals``, … | the bench, drawn on the fly |
| a folder | one sub-folder per class, or images and ``labels.csv`` |
| ``photos/*/1*.jpg``, ``@list.txt``, ``s3://bucket/photos`` | files whose folder is their class |
| ``x.csv``, ``x.parquet``, ``x.arrow`` | a table of path, address or bytes, and label |
| ``x-{000..009}.tar`` | WebDataset shards with labels |
| ``hf:owner/name`` | a Hugging Face data set |
| ``x.json``, ``x.csv`` | labels that were given in Label Studio (:mod:`otpt.data.label_studio`) |
| ``x.npz``, ``x.parquet`` with a column ``feature`` | features instead of images (:mod:`otpt.data.features`) |

A registered name wins over a folder of the same name; write ``./dtd`` for the folder. Without labels, the same
words are the images of :func:`open_source`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from otpt.arguments import checked
from otpt.data.classes import ClassList, ClassSource, class_list_of, read_class_list
from otpt.data.dataset import Conventions, Dataset, NoSuchSplit, Sample, classes_without_images, stratified
from otpt.data.downloader import Downloader
from otpt.data.downloads import Download, RemoteFile, published_downloads, read_downloads, register_downloads
from otpt.data.emoji import emoji_dataset, emoji_entries
from otpt.data.features import FeatureDataset, feature_dataset, read_features
from otpt.data.label_studio import is_label_studio, label_studio_dataset
from otpt.data.labelled import source_dataset
from otpt.data.own import (
    TABLE_SUFFIXES,
    as_dataset,
    hub_dataset,
    image_folder,
    label_table,
    shard_dataset,
    table_dataset,
)
from otpt.data.photographs import photograph
from otpt.data.registered import (
    CheckReport,
    DatasetEntry,
    DatasetNotFound,
    Found,
    Layout,
    Place,
    Record,
    builtin_entries,
    check_dataset,
    find_entry,
    find_records,
    read_folders,
    register_dataset,
    register_reader,
    registered_dataset,
)
from otpt.data.sources import (
    FEATURE,
    TABLES,
    Source,
    holds_contents,
    is_pattern,
    is_remote,
    is_shards,
    parts_of_table,
    table_columns,
)
from otpt.errors import OtptError, unknown
from otpt.folders import IMAGE_SUFFIXES

__all__ = [
    "IMAGE_SUFFIXES",
    "CheckReport",
    "ClassList",
    "Conventions",
    "Dataset",
    "DatasetEntry",
    "DatasetNotFound",
    "Download",
    "Downloader",
    "FeatureDataset",
    "Found",
    "Layout",
    "NoSuchSplit",
    "Place",
    "Record",
    "RemoteFile",
    "Sample",
    "as_dataset",
    "check_dataset",
    "classes_without_images",
    "feature_dataset",
    "find_entry",
    "find_records",
    "is_label_studio",
    "label_studio_dataset",
    "label_table",
    "list_datasets",
    "load_dataset",
    "open_source",
    "photograph",
    "published_downloads",
    "read_class_list",
    "read_downloads",
    "read_features",
    "read_folders",
    "register_dataset",
    "register_downloads",
    "register_reader",
    "stratified",
]


def __dir__() -> list[str]:
    return __all__


def list_datasets() -> Sequence[DatasetEntry]:
    """List all registered data sets: the papers', the plugins' and the emoji bench."""
    return [*builtin_entries().values(), *emoji_entries()]


@checked
def load_dataset(
    spec: str,
    *,
    root: str | Path | None = None,
    classes: ClassSource | None = None,
    official_names: bool = False,
    split: str = "test",
    drop_missing_texts: bool = False,
    column: str | None = None,
) -> Dataset:
    """Load a data set by name, path or ``hf:NAME`` (see the module).

    Args:
        root: the folder that holds the registered data sets; other paths may be relative to it.
        classes: class names in label order; or a file of them, one per line, "folder" or "folder<TAB>name".
        official_names: the class names of the papers' code where they differ from the correct ones (Food101).
        drop_missing_texts: leave out classes of a feature file without a text feature, and their images.
        column: column of a table that holds the images; a known name by default.
        split: "test"; or "val" and "train" where the set's split file has them, and "train" of the emoji bench.
    """
    root = None if root is None else Path(os.path.expanduser(root))
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
                f"{entry.name} needs a data root, the folder of the data sets; pass --data FOLDER, or in Python "
                f"otpt.data.load_dataset({spec!r}, root=FOLDER).{hint}"
            )
        return registered_dataset(entry, root, split, listed, official_names=official_names)
    if spec.startswith("hf:"):
        return hub_dataset(spec.removeprefix("hf:"), split=split, classes=listed)
    if _is_other_source(spec):
        if split != "test":
            raise NoSuchSplit(f"{spec!r} has no splits such as {split!r}; pass each split as a separate data set.")
        return source_dataset(spec, listed, column)
    path = Path(os.path.expanduser(spec))
    if root is not None and not os.path.exists(path) and os.path.exists(root / path):
        path = root / path
    suffix = path.suffix.lower()
    parts = parts_of_table(str(path))
    first = parts[0] if parts else str(path)
    if suffix == ".npz" or (first.endswith(".parquet") and FEATURE in table_columns(first)):
        return read_features(path, split=split, classes=listed, drop_missing_texts=drop_missing_texts)
    if split != "test":
        raise NoSuchSplit(f"{spec!r} has no splits such as {split!r}; pass each split as a separate data set.")
    if os.path.isfile(path) and is_label_studio(path):
        return label_studio_dataset(path, listed, root=root)
    if is_shards(spec):
        return shard_dataset(spec, root, listed)
    if os.path.isdir(path):
        return image_folder(path, listed)
    if suffix in TABLES and os.path.isfile(path):
        by_content = suffix not in TABLE_SUFFIXES or (suffix == ".parquet" and holds_contents(str(path), column))
        return (
            source_dataset(str(path), listed, column)
            if by_content
            else table_dataset(path, root, listed, column=column)
        )
    if os.path.exists(path) or len(path.parts) > 1:
        raise OtptError(
            f"There is no data set at {spec!r}; expected a folder of class folders, a table "
            f"({', '.join(TABLE_SUFFIXES)}) or tar shards."
        )
    error = unknown("data set", spec, [entry.name for entry in list_datasets()])
    raise OtptError(f"{error} For other images give a folder of class folders, a CSV or hf:OWNER/NAME.")


@checked
def open_source(*words: str, column: str | None = None, split: str = "test", root: str | Path | None = None) -> Source:
    """Open folders, patterns, lists, shards, tables, data sets and addresses of images.

    Args:
        words: what holds the images; see :mod:`otpt.data.sources`.
        column: column of tables that holds the images; a known name by default.
        split: of Hugging Face and registered data sets.
        root: folder that holds the registered data sets.

    >>> next(iter(open_source("photos/"))).id  # doctest: +SKIP
    'photos/cat.jpg'
    >>> next(iter(open_source("emoji/food"))).id.startswith("emoji/food/")
    True
    """
    if not words:
        raise OtptError("No images were named; expected paths, addresses or data sets.")
    datasets = {}
    for word in map(str, words):
        registered = word.startswith("emoji/") or find_entry(word) is not None
        if registered and (root is not None or not os.path.lexists(word)):
            datasets[word] = load_dataset(word, root=root, split=split)
    return Source([str(word) for word in words], column=column, split=split, datasets=datasets)


def _is_other_source(spec: str) -> bool:
    """Return whether a spec is a list, a pattern, or an address other than of shards."""
    if is_shards(spec):
        return False
    return spec.startswith("@") or is_remote(spec) or (is_pattern(spec) and not os.path.lexists(spec))
