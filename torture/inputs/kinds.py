"""The kinds of inputs: how one is made from a seed, and how often it is tried."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TypeAlias

from otpt.errors import unknown

KINDS: dict[str, tuple[str, int]] = {
    "image files": ("images", 300),
    "image paths": ("images", 15),
    "image arrays": ("images", 40),
    "checkpoints": ("checkpoints", 110),
    "learned prompts": ("learned", 80),
    "model folders": ("models", 20),
    "method files": ("method_files", 75),
    "method names": ("method_files", 50),
    "class lists": ("class_lists", 40),
    "class names": ("class_lists", 25),
    "split files": ("splits", 60),
    "tables": ("tables", 90),
    "tars": ("tars", 85),
    "Hugging Face folders": ("hub_folders", 10),
    "run folders": ("runs", 50),
    "report pages": ("pages", 6),
    "calibration files": ("calibrations", 60),
    "attribute files": ("attributes", 40),
    "plugin names": ("plugins", 18),
    "addresses": ("addresses", 36),
}
"""Kind → its module in this package, whose ``KINDS`` hold it, and how many of a thousand cases it gets.

A module is imported when its kind is tried. Kinds of other packages (a service) are added with :func:`plug_in`.
"""

_elsewhere: dict[str, Kind] = {}


class Broken(Exception):
    """An answer that breaks a promise, such as a page that runs a script of a class name."""


@dataclass(frozen=True)
class Input:
    """Something hostile, ready to be read.

    Attributes:
        detail: what the seed chose, in words.
        ask: reads it with the package; what it returns is the answer.
    """

    detail: str
    ask: Callable[[], object]


Maker: TypeAlias = Callable[[random.Random, Path], Input]
"""Makes an input from a random generator, with its files in a folder."""


@dataclass(frozen=True)
class Kind:
    """A row of the table.

    Attributes:
        make: makes one.
        prepare: imports what is needed, once, before cases are isolated in processes of their own.
    """

    name: str
    make: Maker
    prepare: Callable[[], object] = lambda: None


def plug_in(kind: Kind, share: int) -> None:
    """Add a kind that is made elsewhere."""
    _elsewhere[kind.name] = kind
    KINDS[kind.name] = (kind.make.__module__, share)


def kind_named(name: str) -> Kind:
    """The kind of that name."""
    if name in _elsewhere:
        return _elsewhere[name]
    if name not in KINDS:
        raise unknown("kind of inputs", name, KINDS)
    found: list[Kind] = import_module(f"torture.inputs.{KINDS[name][0]}").KINDS
    return next(kind for kind in found if kind.name == name)


def schedule() -> tuple[str, ...]:
    """A thousand turns or so, each kind spread evenly over them by its share."""
    turns = [((turn + 0.5) / share, name) for name, (_, share) in KINDS.items() for turn in range(share)]
    return tuple(name for _, name in sorted(turns))
