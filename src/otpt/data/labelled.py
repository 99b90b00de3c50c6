"""Labelled data sets of any source of :mod:`otpt.data.sources`: patterns, lists, tables of images, remote folders.

The label of an image is the column ``label`` of its row; without such a column, the folder that holds the image
(``photos/cat/1.jpg`` shows a cat).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePosixPath

from otpt.data.classes import ClassList
from otpt.data.dataset import Dataset
from otpt.data.own import ReaderTable, origin_of, own_dataset, resolve_labels
from otpt.data.sources import Source, image_column, is_remote, is_table, row_image, table_rows
from otpt.errors import OtptError
from otpt.images import ImageSource, NamedImage

LABEL = "label"


def source_dataset(word: str, classes: ClassList | None = None, column: str | None = None) -> Dataset:
    """Return the labelled images of a source.

    Args:
        word: pattern, ``@list.txt``, table or address; see :mod:`otpt.data.sources`.
        classes: class list; by default, the labels in alphabetical order.
        column: column of a table that holds the images; a known name by default.

    Raises:
        OtptError: if an image has no label.
    """
    images: Callable[[int], ImageSource]
    if is_table(word):
        rows = TableRows(word, column)
        ids, labels = rows.ids, rows.labels
        images = rows
    else:
        files = list(_files(word))
        ids = [file.id for file in files]
        labels = [_folder_of(file.id, word) for file in files]
        images = ReaderTable(tuple(file.read for file in files))
    listed, indices = resolve_labels(labels, classes, f"The source {word!r}")
    origin = word if is_remote(word) else origin_of(word.removeprefix("@"))
    return own_dataset(_name_of(word), listed, ids, indices, images, origin=origin)


@dataclass(frozen=True)
class TableRows:
    """Images of the rows of a table, which are read when the first one is needed, in each process.

    Attributes:
        address: path or address of the table.
        column: column of the images; a known name by default.
    """

    address: str
    column: str | None = None

    def __call__(self, index: int) -> ImageSource:
        return self._images[index].read()

    def __getstate__(self) -> dict[str, object]:
        return {"address": self.address, "column": self.column}

    @property
    def ids(self) -> list[str]:
        """Names of the images."""
        return [image.id for image in self._images]

    @property
    def labels(self) -> list[str]:
        """Label of each row."""
        return [_label_of(row, number, self.address) for number, row in enumerate(self._rows)]

    @cached_property
    def _rows(self) -> list[Mapping[str, object]]:
        return list(table_rows(self.address))

    @cached_property
    def _images(self) -> list[NamedImage]:
        folder = os.path.dirname(self.address)
        columns = self._rows[0] if self._rows else ()
        column = image_column(columns, self.column, self.address)
        return [row_image(row, column, f"{self.address}#{number}", folder) for number, row in enumerate(self._rows)]


def _files(word: str) -> Iterator[NamedImage]:
    for item in Source([word]):
        if not isinstance(item, NamedImage):
            raise OtptError(f"{word!r} holds features next to images; expected images.")
        yield item


def _label_of(row: Mapping[str, object], number: int, table: str) -> str:
    value = row.get(LABEL)
    if value is None or value == "":
        what = "no label" if LABEL in row else f"the columns {', '.join(map(repr, row))}, but none called 'label'"
        raise OtptError(f"Row {number + 1} of the table {table!r} has {what}; expected the class of each image.")
    return str(value)


def _folder_of(name: str, word: str) -> str:
    """Return the folder that holds an image."""
    folder = PurePosixPath(name.replace("\\", "/")).parent.name
    if not folder:
        raise OtptError(
            f"The image {name!r} of {word!r} has no label; put each image into the folder of its class, or write a "
            "table with the columns path and label."
        )
    return folder


def _name_of(word: str) -> str:
    """Return the name of a data set: of the file, or of the last folder before a pattern."""
    fixed = re.split(r"[*?\[]", word.removeprefix("@"))[0]
    if fixed != word.removeprefix("@"):
        fixed = fixed.rpartition("/")[0]
    path = PurePosixPath(fixed.rstrip("/"))
    return path.stem if is_table(word) or word.startswith("@") else path.name or "images"
