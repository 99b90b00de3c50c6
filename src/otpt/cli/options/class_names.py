"""``--classes``: class names, a comma list, or a file, with one meaning on every command.

--classes cat dog "red panda"          each word of the shell is a name, commas in it included
--classes "cat, dog, red panda"        a single word is a comma list; '"crab, king", dog' quotes as a CSV does
--classes cat, dog, red panda          the same without quotes: a comma at the end of a word
--classes @names.txt                   a file, one name per line
"""

from __future__ import annotations

import argparse
import csv
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from otpt.cli.notes import tell
from otpt.data.classes import ClassList, read_class_list
from otpt.errors import OtptError

_FILE = "@"


def add_classes_option(parser: Any, *, words: str = "") -> None:
    """``--classes``; :func:`chosen_classes` reads it."""
    told = words or "class names in label order: names, a comma list, or @FILE with one per line"
    parser.add_argument("--classes", nargs="+", metavar="NAME", help=told)


def chosen_classes(options: argparse.Namespace, *, unique: bool = True) -> ClassList | None:
    """The class list that ``--classes`` describes; None if it was not given.

    ``unique`` refuses a file that names a class twice.
    """
    if isinstance(options.classes, list):  # once: a hint is given once
        options.classes = _parsed(options.classes, unique)
    found: ClassList | None = options.classes
    return found


def _parsed(given: list[str], unique: bool) -> ClassList:
    if len(given) == 1:
        return _single(given[0], unique)
    if any(word.strip().startswith(",") or word.strip().endswith(",") for word in given):
        return _named(_comma_list(" ".join(given)))
    listed = next((word for word in given if "," in word.strip().replace(", ", "")), None)
    if listed is not None:
        tell(f"{listed!r} is taken as the name of one class; a comma list is a single word: --classes cat,dog,horse.")
    names = [name for word in given for name in _names_of(word, unique)]
    return _named(names)


def take_back_datasets(options: argparse.Namespace, name: str) -> None:
    """Data sets that ``--classes`` swallowed, since it takes all words up to the next option; with a note.

    ``name`` is that of the positional argument that they belong to. ``OtptError`` if none was given at all.
    """
    several = isinstance(getattr(options, name), list)
    if getattr(options, name):
        return
    given: list[str] = options.classes or []
    taken = [word for word in given if _is_dataset(word)]
    if not taken or (len(taken) > 1 and not several):
        raise OtptError("No DATASET was given; expected a name of 'otpt datasets', or a folder, table or shards.")
    options.classes = [word for word in given if word not in taken] or None
    setattr(options, name, taken if several else taken[0])
    tell(f"{', '.join(map(repr, taken))} after --classes: taken as data set, not as class name.")


def _is_dataset(word: str) -> bool:
    from otpt.data.own.shards import is_shards
    from otpt.data.own.tables import TABLE_SUFFIXES

    return has_splits(word) or os.path.isdir(word) or Path(word).suffix.lower() in TABLE_SUFFIXES or is_shards(word)


def has_splits(spec: str) -> bool:
    """Whether a data set may have other splits than "test", the only one of user data."""
    from otpt.data import find_entry

    return find_entry(spec) is not None or spec.startswith(("emoji/", "hf:"))


def _single(word: str, unique: bool) -> ClassList:
    if word.startswith(_FILE):
        return _of_file(word, unique)
    if "," in word and not os.path.isfile(word):
        return _named(_comma_list(word))
    if os.path.isfile(word) or word.lower().endswith(".txt"):
        tell(f"--classes {word} is an old spelling; write --classes @{word}.")
        return read_class_list(Path(word), unique=unique)
    return _named([word])


def _names_of(word: str, unique: bool) -> Sequence[str]:
    return _of_file(word, unique).names if word.startswith(_FILE) else [word]


def _of_file(word: str, unique: bool) -> ClassList:
    if word == _FILE:
        raise OtptError("--classes was given '@' without a file; expected @FILE, such as @names.txt.")
    return read_class_list(Path(os.path.expanduser(word.removeprefix(_FILE))), unique=unique)


def _comma_list(text: str) -> list[str]:
    """Names between commas; in quotes, a name may have commas itself."""
    try:
        (row,) = csv.reader([text], skipinitialspace=True, strict=True)
    except (csv.Error, ValueError) as error:
        raise OtptError(
            f"--classes was given the comma list {text!r}, which cannot be read ({error}); expected names between "
            "commas, those with a comma of their own in double quotes, or @FILE."
        ) from None
    return [name for each in row if (name := " ".join(each.split()))]


def _named(names: Sequence[str]) -> ClassList:
    return ClassList(tuple(names), tuple(names))
