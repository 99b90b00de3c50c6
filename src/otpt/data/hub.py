"""A data set of the Hugging Face hub (or any that its package ``datasets`` loads): ``hf:NAME``."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from otpt.data.classes import ClassList, read_class_list
from otpt.data.dataset import Dataset
from otpt.data.own import own_dataset, resolve_labels
from otpt.errors import OtptError
from otpt.views import PictureSource


@dataclass(frozen=True)
class RowsOf:
    """Picture ``i`` as the PIL image in row ``i``."""

    table: Any
    column: str

    def __call__(self, index: int) -> PictureSource:
        picture: PictureSource = self.table[index][self.column]
        return picture


def hub_dataset(name: str, *, split: str = "test", classes: Path | None = None) -> Dataset:
    """The split of the data set ``name`` (``owner/name``, or ``owner/name@configuration``).

    The pictures are in the column of type Image, the labels in the one of type ClassLabel, or ``label``.
    """
    try:
        library: Any = importlib.import_module("datasets")
    except ImportError:
        raise OtptError(
            f"hf:{name} needs the package datasets, which is not installed: pip install 'otpt[hf]'"
        ) from None
    path, _, configuration = name.partition("@")
    try:
        table = library.load_dataset(path, configuration or None, split=split)
    except Exception as error:  # the package raises errors of many other packages
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise OtptError(f"The data set hf:{name}, split {split!r}, cannot be loaded: {reason}.") from None
    kinds = {column: type(feature).__name__ for column, feature in table.features.items()}
    pictures = next((column for column, kind in kinds.items() if kind == "Image"), None)
    labels = next((column for column, kind in kinds.items() if kind == "ClassLabel"), "label")
    if pictures is None or labels not in kinds:
        described = ", ".join(f"{column} ({kind})" for column, kind in kinds.items())
        raise OtptError(
            f"hf:{name} has the columns {described}; expected one of type Image and one of type ClassLabel."
        )
    listed = read_class_list(classes) if classes is not None else None
    if listed is None and kinds[labels] == "ClassLabel":
        names = tuple(table.features[labels].names)
        listed = ClassList(names, names)
    values = [str(value) for value in table[labels]]
    listed, resolved = resolve_labels(values, listed, f"hf:{name}")
    ids = [f"{split}/{row}" for row in range(len(values))]
    return own_dataset(f"hf:{name}", listed, ids, resolved, RowsOf(table, pictures))
