"""Which images belong to a split, and where they are: input and output of the readers of registered data sets."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from otpt.data.classes import ClassList
from otpt.errors import OtptError

_T = TypeVar("_T")


class NoSuchSplit(OtptError):
    """A data set exists, but not the requested split."""


@dataclass(frozen=True)
class Records:
    """N images: ids, labels, and files relative to the layout's folder."""

    ids: tuple[str, ...]
    labels: tuple[int, ...]
    files: tuple[str, ...]


def records(rows: Iterable[tuple[str, int]]) -> Records:
    """Images whose id is their path below the folder."""
    listed = list(rows)
    ids = tuple(file for file, _ in listed)
    return Records(ids, tuple(label for _, label in listed), ids)


@dataclass(frozen=True)
class Place:
    """Where a reader looks.

    Args:
        folder: the layout's folder, which exists.
        beside: every folder that may hold lists and split files, nearest first.
        classes: the classes in label order, with their correct names.
        split: "test", "val" or "train".
        split_file: name of CoOp's split file, "" if the set has none.
        numeric_folders: class folders may be named by their label.
    """

    folder: Path
    beside: tuple[Path, ...]
    classes: ClassList
    split: str
    split_file: str = ""
    numeric_folders: bool = False

    def find(self, *names: str) -> Path | None:
        """The first file of one of these names in the folders beside the images."""
        return next((path / name for name in names for path in self.beside if os.path.isfile(path / name)), None)

    def need(self, what: str, *names: str) -> Path:
        """:meth:`find`, or an error that names the folders searched."""
        found = self.find(*names)
        if found is None:
            places = ", ".join(str(path) for path in self.beside)
            raise OtptError(f"its {what} {' or '.join(names)} was not found in {places}")
        return found


def read_text(path: Path) -> str:
    """The text of a UTF-8 file, or an error."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise OtptError(f"cannot read {str(path)!r}: {error.strerror or error}") from None
    except ValueError:
        raise OtptError(f"{str(path)!r} is not UTF-8 text") from None


def spread(items: Sequence[_T], count: int) -> list[_T]:
    """``count`` items, spread evenly over the sequence; all if there are fewer."""
    count = min(count, len(items))
    return [items[len(items) * part // count] for part in range(count)]


def shortened(names: Iterable[str], limit: int = 5) -> str:
    """``a, b, c … (12 in all)``."""
    listed = list(names)
    if len(listed) <= limit:
        return ", ".join(listed)
    return f"{', '.join(listed[:limit])} … ({len(listed)} in all)"
