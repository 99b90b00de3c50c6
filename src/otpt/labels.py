"""Labels of images, given as class names, indices or lists of names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import SupportsIndex

import numpy as np
import numpy.typing as npt

from otpt.errors import OtptError, unknown


def label_indices(labels: Sequence[object], classes: Sequence[str]) -> npt.NDArray[np.int64]:
    """Convert the labels of images (N,), class names or indices, to indices (N,)."""
    if isinstance(labels, str):
        raise OtptError(f"The labels are the single string {labels!r}; expected a list with one label per image.")
    places = {name: i for i, name in reversed(list(enumerate(classes)))}
    indices = []
    for label in labels:
        if isinstance(label, str):
            if label not in places:
                raise unknown("label", label, classes)
            indices.append(places[label])
            continue
        index = _index(label)
        if index is None or not 0 <= index < len(classes):
            raise OtptError(
                f"The label {label!r:.80} is not a class; expected 0 to {len(classes) - 1}, or a class name."
            )
        indices.append(index)
    return np.array(indices, np.int64)


def _index(label: object) -> int | None:
    """Return a whole number, also of an array with one entry; None for anything else."""
    try:
        return label.__index__() if isinstance(label, SupportsIndex) else None
    except Exception:  # an array, or a tensor without values
        return None


def read_label_sets(rows: Sequence[object], classes: Sequence[str]) -> npt.NDArray[np.bool_]:
    """Convert the labels of each image to booleans (N, C); for a single class also from True and False."""
    places = {name: i for i, name in enumerate(classes)}
    present = np.zeros((len(rows), len(classes)), bool)
    for number, row in enumerate(rows):
        if len(classes) == 1 and isinstance(row, (bool, np.bool_)):
            present[number] = row
            continue
        if isinstance(row, str) or not isinstance(row, Iterable):
            raise OtptError(f"The labels of image {number + 1} are {row!r}; expected a list of class names.")
        for label in row:
            if label not in places:
                raise OtptError(f"The label {label!r} of image {number + 1} is not one of the {len(classes)} classes.")
            present[number, places[label]] = True
    return present
