"""Find a registered data set under a root, in any of its layouts."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from otpt.data.folders import read_folders
from otpt.data.records import NoSuchSplit, Place, Records, spread
from otpt.data.registered.entry import DatasetEntry, Layout
from otpt.data.registered.medical import read_halves, read_one_hot, read_round_robin, read_split_folders
from otpt.data.registered.splits import read_lists, read_split
from otpt.errors import OtptError

_READERS: dict[str, Callable[[Place], Records]] = {
    "folders": read_folders,
    "halves": read_halves,
    "lists": read_lists,
    "one-hot": read_one_hot,
    "round-robin": read_round_robin,
    "split": read_split,
    "split-folders": read_split_folders,
}
SPLITS = ("test", "val", "train")


class DatasetNotFound(OtptError):
    """None of the folders of a data set exists."""


@dataclass(frozen=True)
class Found:
    """A data set that was found."""

    layout: Layout
    folder: Path
    records: Records

    def missing_share(self, sample: int = 300) -> float:
        """Fraction of missing images among ``sample`` spread over the split (or all); none is opened."""
        chosen = spread(self.records.files, sample)
        return sum(not os.path.isfile(self.folder / file) for file in chosen) / len(chosen)


def find_records(entry: DatasetEntry, root: Path, split: str = "test") -> Found:
    """The images of a split of ``entry`` in the first of its layouts that is found.

    A layout counts as found if its folder and lists exist, and at least one of five images spread over the split.
    Other missing images are reported when they are opened, or all by ``check``.
    """
    if split not in SPLITS:
        raise OtptError(f"The split {split!r} is not known; expected one of {', '.join(SPLITS)}.")
    root = Path(os.path.expanduser(root))
    if not os.path.isdir(root):
        raise OtptError(f"The data root {str(root)!r} is not a folder; give the folder that holds the data sets.")
    problems: list[str] = []
    kinds: set[type[OtptError]] = set()
    for layout, base in _candidates(entry, root):
        folder = base / layout.folder
        if not os.path.isdir(folder):
            continue
        place = Place(
            folder,
            _beside(folder, base, root),
            entry.class_list(),
            split,
            entry.split_file,
            entry.numeric_folders,
        )
        try:
            found = _READERS[layout.reader](place)
            _check_start(folder, found)
        except OtptError as error:
            problems.append(f"in {str(folder)!r} (the layout of {layout.style}): {str(error).rstrip('.')}")
            kinds.add(type(error))
            continue
        return Found(layout, folder, found)
    if problems:
        kind = NoSuchSplit if kinds == {NoSuchSplit} else OtptError
        raise kind(f"{entry.name} is incomplete: {'; '.join(dict.fromkeys(problems))}.")
    places = ", ".join(f"{layout.folder} ({layout.style})" for layout in entry.layouts)
    raise DatasetNotFound(f"{entry.name} was not found under {str(root)!r}; its images were looked for in {places}.")


def _candidates(entry: DatasetEntry, root: Path) -> Iterator[tuple[Layout, Path]]:
    """Each layout below the root, and beside it in case the root is the folder of the data set itself."""
    for layout in entry.layouts:
        yield layout, root
    for layout in entry.layouts:
        if PurePosixPath(layout.folder).parts[0] == root.resolve().name:
            yield layout, root.resolve().parent


def _beside(folder: Path, base: Path, root: Path) -> tuple[Path, ...]:
    """The folder itself, those above it up to the root, and ``data_splits`` as TPT has it."""
    above = [folder]
    while above[-1] != base:
        above.append(above[-1].parent)
    return tuple(dict.fromkeys([*above, root, base / "data_splits", root / "data_splits"]))


def _check_start(folder: Path, found: Records) -> None:
    if not found.files:
        raise OtptError("its list names no images")
    chosen = spread(found.files, 5)
    if not any(os.path.isfile(folder / file) for file in chosen):
        raise OtptError(f"its images are missing, such as {chosen[0]} (an incomplete download)")
