"""Image files below folders, and folders with one sub-folder per class.

Names are sorted in pieces on the disk where there are many, so that ten million files take no more memory than a
thousand.
"""

from __future__ import annotations

import heapq
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import IO

from otpt.errors import OtptError, cannot_read

# Of the formats that Pillow reads, those in which data sets are stored.
IMAGE_SUFFIXES = frozenset(
    (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".avif")
)
"""File suffixes of images in a folder."""
LABELS = "labels.csv"
"""Table of files and labels in a folder without sub-folders."""

_AT_ONCE = 500_000  # names that are sorted in memory


def class_folders(folder: Path) -> list[str]:
    """Return the sorted names of sub-folders, without hidden folders and ``__MACOSX``."""
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries if _is_folder(entry, follow_links=True)]
            return sorted(name for name in names if not name.startswith((".", "__")))
    except OSError as error:
        raise cannot_read("folder", folder, error) from None


def class_names(folder: Path) -> tuple[str, ...]:
    """Return the names of the class folders in alphabetical order.

    Raises:
        OtptError: if the folder cannot be read or has no sub-folders.
    """
    names = tuple(class_folders(folder))
    if not names:
        raise OtptError(
            f"The folder {str(folder)!r} has no sub-folders; expected one per class, with its images inside, or a file "
            f"{LABELS} in it with the columns file and label."
        )
    return names


def labelled_images(folder: Path, labels: Mapping[str, int]) -> list[tuple[str, int]]:
    """Return the image files below each class folder with the label of the class.

    Args:
        folder: folder that holds the class folders.
        labels: label of each class folder, by its name.

    Returns:
        Path relative to ``folder`` and label of each image, in the order of ``labels``.

    Raises:
        OtptError: if there are no images.
    """
    images: list[tuple[str, int]] = []
    for name, label in labels.items():
        images += [(f"{name}/{file}", label) for file in images_below(folder / name, follow_links=True)]
    if not images:
        raise OtptError(f"The class folders of {str(folder)!r} hold no images ({', '.join(sorted(IMAGE_SUFFIXES))}).")
    return images


def class_images(folder: Path) -> dict[str, list[Path]]:
    """Return the image files of each class of a folder with one sub-folder per class, in alphabetical order.

    A class folder without images has an empty list.

    Raises:
        OtptError: if the folder has no sub-folders, or these hold no images.
    """
    names = class_names(folder)
    images: dict[str, list[Path]] = {name: [] for name in names}
    for file, label in labelled_images(folder, {name: label for label, name in enumerate(names)}):
        images[names[label]].append(folder / file)
    return images


def images_below(
    folder: str | Path, *, follow_links: bool = False, below: str = "", above: frozenset[tuple[int, int]] = frozenset()
) -> Iterator[str]:
    """Yield the sorted paths of image files below a local folder, relative to it.

    Links to a folder ``above``, by device and number, are left out, as are links that lead nowhere.
    """
    try:
        status = os.stat(os.path.join(folder, below))
        here = (status.st_dev, status.st_ino)
        if here in above:
            return
        for name in sort_names(_entries(os.path.join(folder, below), follow_links)):
            if name.endswith("/"):
                yield from images_below(folder, follow_links=follow_links, below=below + name, above=above | {here})
            else:
                yield below + name
    except OSError as error:
        raise cannot_read("folder", folder, error) from None


def _entries(folder: str, follow_links: bool) -> Iterator[str]:
    """Yield the names of images, and of folders with a trailing slash."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if _is_folder(entry, follow_links=follow_links):
                yield f"{entry.name}/"
            elif os.path.splitext(entry.name)[1].lower() in IMAGE_SUFFIXES and _is_file(entry):
                yield entry.name


def _is_folder(entry: os.DirEntry[str], *, follow_links: bool) -> bool:
    with suppress(OSError):  # a link to itself
        return entry.is_dir(follow_symlinks=follow_links)
    return False


def _is_file(entry: os.DirEntry[str]) -> bool:
    with suppress(OSError):
        return entry.is_file()
    return False


def sort_names(names: Iterable[str], at_once: int = _AT_ONCE) -> Iterator[str]:
    """Yield sorted names; more than ``at_once`` names are sorted externally in temporary files."""
    names = iter(names)
    piece = sorted(islice(names, at_once))
    if len(piece) < at_once:
        yield from piece
        return
    files = []
    while piece:
        file = tempfile.TemporaryFile("w+", encoding="utf-8", errors="surrogateescape", newline="\n")  # noqa: SIM115
        file.writelines(name.replace("\n", "\0") + "\n" for name in piece)  # names have no zero bytes
        file.seek(0)
        files.append(file)
        piece = sorted(islice(names, at_once))
    yield from heapq.merge(*map(_names, files))


def _names(file: IO[str]) -> Iterator[str]:
    with file:
        for line in file:
            yield line[:-1].replace("\0", "\n")
