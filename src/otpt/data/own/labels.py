"""What all kinds of user data share: labels as names or numbers, and the settings of the class list."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from otpt.data.classes import ClassList
from otpt.data.dataset import DEFAULT_PROMPT, Dataset
from otpt.data.records import shortened
from otpt.errors import OtptError

if TYPE_CHECKING:
    from otpt.images import ImageSource


def own_dataset(
    name: str,
    classes: ClassList,
    ids: Sequence[str],
    labels: Sequence[int],
    images: Callable[[int], ImageSource],
    *,
    origin: str,
) -> Dataset:
    """A user's data set, with family, AugMix and prompt from its class list, or the defaults."""
    return Dataset(
        name,
        classes.names,
        ids,
        labels,
        images,
        family=classes.family or "fine-grained",
        augmix=True if classes.augmix is None else classes.augmix,
        prompt=classes.prompt or DEFAULT_PROMPT,
        origin=origin,
    )


def origin_of(path: str | Path) -> str:
    """The absolute path, which a run records as the origin of a user's own data."""
    return Path(os.path.abspath(Path(os.path.expanduser(path)))).as_posix()


def resolve_labels(labels: Sequence[str], classes: ClassList | None, origin: str) -> tuple[ClassList, tuple[int, ...]]:
    """Class list and labels (N,), each in 0 … C − 1.

    With a class list, labels are its folders or its names, or else numbers from 0. Without one, the labels are the
    class names, in alphabetical order; numbers alone are refused, since they are not class names.
    """
    if classes is None:
        if all(label.isdecimal() for label in labels):
            raise OtptError(
                f"{origin}: the labels are numbers ({shortened(dict.fromkeys(labels), 3)}) without class names; "
                "give a file of class names, one per line in label order."
            )
        names = tuple(sorted(set(labels)))
        classes = ClassList(names, names)
    for keys in (classes.folders, classes.names):
        index = {key: label for label, key in enumerate(keys)}
        if all(label in index for label in labels):
            return classes, tuple(index[label] for label in labels)
    if all(label.isdecimal() for label in labels):
        # No class has a number of 20 digits; Python refuses to parse some thousands of them.
        return classes, tuple(int(label.lstrip("0")[:20] or "0") for label in labels)
    known = {*classes.folders, *classes.names}
    strange = dict.fromkeys(label for label in labels if label not in known) or dict.fromkeys(labels)
    raise OtptError(f"{origin}: the class list of {len(classes)} does not name {shortened(map(repr, strange))}.")
