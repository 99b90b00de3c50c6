"""Data of one's own that are called like a registered set: what is said of them, and what a run keeps of them."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from otpt.cli.notes import tell

if TYPE_CHECKING:
    from otpt.cli.parser import Word
    from otpt.data import Dataset


def tell_folders(specs: Sequence[str], root: Path | None) -> None:
    """A hint for each registered name that is also a folder here: which of the two was taken, and how to take it."""
    from otpt.data import find_entry

    for spec in specs:
        entry, folder = find_entry(spec), Path(spec)
        if entry is None or not os.path.isdir(folder):
            continue
        if root is not None and folder.resolve().is_relative_to(Path(os.path.expanduser(root)).resolve()):
            continue  # the folder of the registered set itself
        tell(f"{spec!r} is the registered data set {entry.name}; for the folder of that name here, write ./{spec}.")


def with_origins(command: str, specs: Sequence[Word], datasets: Sequence[Dataset]) -> str:
    """A command whose own data are named by absolute paths, so that it means the same from any folder."""
    words = shlex.split(command)
    for spec, dataset in zip(specs, datasets, strict=True):
        if dataset.is_own:
            words[spec.place] = str(dataset.origin)
    return shlex.join(words)
