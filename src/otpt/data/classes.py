"""Class lists as text: one class per line, in label order, ``folder`` or ``folder<TAB>name``.

Lines with ``#`` before the first class are comments; three of them are settings::

    # prompt: a satellite photo of
    # family: shift
    # augmix: off
    AnnualCrop<TAB>annual crop land
    Forest
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TypeAlias

from otpt.arguments import checked
from otpt.errors import OtptError
from otpt.files import read_text

FILE_NAMES = ("classes.txt", "classnames.txt")  # looked for next to the data
_SWITCH = {"on": True, "true": True, "yes": True, "off": False, "false": False, "no": False}


@dataclass(frozen=True)
class ClassList:
    """C classes in label order: their folders (or keys), their names, and the settings of the file.

    Attributes:
        taken_from: what the classes were inferred from, "labels" or "folders"; "" for a list that somebody wrote.
    """

    folders: tuple[str, ...]
    names: tuple[str, ...]
    prompt: str | None = None
    family: str | None = None
    augmix: bool | None = None
    taken_from: str = ""

    def __len__(self) -> int:
        return len(self.folders)

    def index(self) -> dict[str, int]:
        """Return the labels by folder."""
        return {folder: label for label, folder in enumerate(self.folders)}


ClassSource: TypeAlias = str | Path | Sequence[str] | ClassList
"""A file of class names, the names themselves, or a class list."""


def class_list_of(given: ClassSource) -> ClassList:
    """Return a class list from a file (a string or path), or from the names in label order."""
    if isinstance(given, ClassList):
        return given
    if isinstance(given, (str, Path)):
        return read_class_list(Path(given))
    return ClassList(tuple(given), tuple(given))


@checked
def read_class_list(path: str | Path, *, unique: bool = True) -> ClassList:
    """Read a class list from a UTF-8 text file; ``unique`` refuses duplicates."""
    return parse_class_list(read_text(Path(path), "class list"), str(path), unique=unique)


@cache
def builtin_class_list(name: str) -> ClassList:
    """Read the class list ``class_names/NAME.txt`` of this package."""
    file = resources.files(__package__).joinpath("class_names").joinpath(f"{name}.txt")
    return parse_class_list(file.read_text(encoding="utf-8"), f"{name}.txt")


def find_class_list(folder: Path) -> ClassList | None:
    """Read the class list in ``folder``, if any."""
    paths = [folder / name for name in FILE_NAMES if os.path.isfile(folder / name)]
    return read_class_list(paths[0]) if paths else None


def parse_class_list(text: str, origin: str, *, unique: bool = True) -> ClassList:
    """Parse a class list; ``origin`` names it in messages."""
    folders: list[str] = []
    names: list[str] = []
    settings: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        if line.startswith("#") and not folders:
            key, colon, value = line[1:].partition(":")
            if colon and key.strip().lower() in ("prompt", "family", "augmix"):
                settings[key.strip().lower()] = value.strip()
            continue
        folder, tab, name = line.partition("\t")
        folder, name = folder.strip(), name.strip()
        if not folder or (tab and not name):
            raise OtptError(f"{origin}, line {number}: {line!r} lacks a name; expected 'folder' or 'folder<TAB>name'.")
        folders.append(folder)
        names.append(name or folder)
    if not folders:
        raise OtptError(f"The class list {origin!r} is empty; expected one class per line.")
    if unique and len(set(folders)) != len(folders):
        twice = Counter(folders).most_common(1)[0][0]
        raise OtptError(f"The class list {origin!r} has the duplicate class {twice!r}; expected each class once.")
    augmix = settings.get("augmix")
    if augmix is not None and augmix.lower() not in _SWITCH:
        raise OtptError(f"{origin}: augmix is {augmix!r}; expected on or off.")
    mixed = None if augmix is None else _SWITCH[augmix.lower()]
    return ClassList(tuple(folders), tuple(names), settings.get("prompt") or None, settings.get("family"), mixed)
