"""A data set of the Hugging Face hub (or any that its package ``datasets`` loads): ``hf:NAME``."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from otpt.data.classes import ClassList
from otpt.data.dataset import Dataset
from otpt.data.own.labels import origin_of, own_dataset, resolve_labels
from otpt.data.records import NoSuchSplit, shortened
from otpt.errors import OtptError

if TYPE_CHECKING:
    from otpt.images import ImageSource


@dataclass(frozen=True)
class RowsOf:
    """Image ``i`` as the bytes or the file that row ``i`` names; ``column`` is one that is not decoded."""

    table: Any
    column: str

    def __call__(self, index: int) -> ImageSource:
        row = self.table[index][self.column] or {}
        source: ImageSource | None = row.get("bytes") or row.get("path")
        if source is None:
            raise OtptError(f"Row {index} has no image in the column {self.column!r}.")
        return source


def hub_dataset(name: str, *, split: str = "test", classes: ClassList | None = None) -> Dataset:
    """The split of the data set ``name`` (``owner/name``, or ``owner/name@configuration``).

    The images are in the column of type Image, the labels in the one of type ClassLabel, or ``label``.
    """
    try:
        library: Any = importlib.import_module("datasets")
    except ImportError:
        raise OtptError(
            f"hf:{name} needs the package datasets, which is not installed: pip install 'otpt[hf]'"
        ) from None
    path, _, configuration = name.partition("@")
    folder = Path(os.path.expanduser(path or "hf:"))  # an empty name is not a folder
    try:
        table = _load(library, folder if os.path.isdir(folder) else path, configuration or None, split)
    except Exception as error:  # the package raises errors of many other packages
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        kind = NoSuchSplit if reason.startswith("Unknown split") else OtptError
        hint = f" A folder of class folders is read without hf:, as {path!r}." if os.path.isdir(folder) else ""
        raise kind(f"The data set hf:{name}, split {split!r}, cannot be loaded: {reason}.{hint}") from None
    kinds = {column: type(feature).__name__ for column, feature in table.features.items()}
    images = next((column for column, kind in kinds.items() if kind == "Image"), None)
    labels = next((column for column, kind in kinds.items() if kind == "ClassLabel"), "label")
    if images is None or labels not in kinds:
        described = ", ".join(f"{column} ({kind})" for column, kind in kinds.items())
        raise OtptError(
            f"hf:{name} has the columns {described}; expected one of type Image and one of type ClassLabel."
        )
    listed, resolved = _labels(table, labels, classes, f"hf:{name}", split)
    ids = [f"{split}/{row}" for row in range(len(resolved))]
    origin = f"hf:{origin_of(folder)}" if os.path.isdir(folder) else f"hf:{name}"
    # What the package decodes, other columns included, may fail with errors of Pillow's, and takes time.
    undecoded = table.select_columns([images]).cast_column(images, library.Image(decode=False))
    return own_dataset(f"hf:{name}", listed, ids, resolved, RowsOf(undecoded, images), origin=origin)


def _load(library: Any, source: str | Path, configuration: str | None, split: str) -> Any:
    """The rows of a split; of a folder, what ``save_to_disk`` wrote, or files that the package reads."""
    if not isinstance(source, Path):
        return library.load_dataset(source, configuration, split=split)
    with _without_bars(library):
        return _load_folder(library, source, configuration, split)


def _load_folder(library: Any, source: Path, configuration: str | None, split: str) -> Any:
    if os.path.isfile(source / "state.json"):
        return library.load_from_disk(str(source))
    if not os.path.isfile(source / "dataset_dict.json"):
        return library.load_dataset(str(source), configuration, split=split)
    splits = library.load_from_disk(str(source))
    if split not in splits:
        raise ValueError(f"Unknown split {split!r}; there are {', '.join(splits)}")
    return splits[split]


@contextmanager
def _without_bars(library: Any) -> Iterator[None]:
    """What is on the disk is not downloaded, so its bars say nothing."""
    shown = not library.are_progress_bars_disabled()
    library.disable_progress_bars()
    try:
        yield
    finally:
        if shown:
            library.enable_progress_bars()


def _labels(
    table: Any, column: str, classes: ClassList | None, origin: str, split: str
) -> tuple[ClassList, tuple[int, ...]]:
    """Class list and labels (N,), from a column of type ClassLabel, or of plain numbers or names."""
    values = list(table[column])
    unlabelled = next((row for row, value in enumerate(values) if value in (None, -1)), None)
    if unlabelled is not None:
        raise OtptError(f"{origin}, split {split!r}, has no label in row {unlabelled}; take a split with labels.")
    feature = table.features[column]
    if type(feature).__name__ != "ClassLabel":
        if classes is not None and all(isinstance(value, int) for value in values):
            return classes, tuple(values)
        return resolve_labels([str(value) for value in values], classes, origin)
    names = tuple(feature.names or ())
    if not all(isinstance(each, str) for each in names):
        raise OtptError(f"{origin} has class names that are not text; its column {column!r} is damaged.")
    strange = next((value for value in values if not 0 <= value < len(names)), None)
    if strange is not None:
        raise OtptError(f"{origin}, split {split!r}, has the label {strange}; expected 0 to {len(names) - 1}.")
    if classes is None:
        return ClassList(names, names), tuple(values)
    places = _places(names, classes, origin)
    return classes, tuple(places[value] for value in values)


def _places(names: Sequence[str], listed: ClassList, origin: str) -> tuple[int, ...]:
    """The position of each class of the data set (C,) in a class list.

    A list of the same names may have another order; case and underscores matter only where they tell names apart. A
    list of the same length with only new names renames the classes in their original order.
    """
    for form in (str, _plain):
        for keys in (listed.folders, listed.names):
            index = {form(key): label for label, key in enumerate(keys)}
            if all(form(name) in index for name in names):
                return tuple(index[form(name)] for name in names)
    known = {_plain(key) for key in (*listed.folders, *listed.names)}
    if len(listed) == len(names) and known.isdisjoint(map(_plain, names)):
        return tuple(range(len(names)))
    strange = [name for name in names if _plain(name) not in known]
    raise OtptError(
        f"{origin} has {len(names)} classes, and the class list of {len(listed)} does not name "
        f"{shortened(map(repr, strange))}; expected all of its names, or the same number of new names in its order."
    )


def _plain(name: str) -> str:
    return name.replace("_", " ").casefold()
