"""The kinds of inputs: how one is made from a seed, and how often it is tried."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TypeAlias

MODULES = (
    "images", "checkpoints", "learned", "models", "method_files", "class_lists", "splits", "tables", "tars", "hub_folders",
    "runs", "pages", "calibrations", "attributes", "plugins", "addresses",
)  # fmt: skip
"""Modules of this package, each with ``KINDS``."""


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
        share: how many of a thousand cases.
        prepare: imports what is needed, once, before cases are isolated in processes of their own.
    """

    name: str
    make: Maker
    share: int
    prepare: Callable[[], object] = lambda: None


@cache
def kinds() -> dict[str, Kind]:
    """All kinds by name."""
    found: list[Kind] = []
    for name in MODULES:
        found += import_module(f"torture.inputs.{name}").KINDS
    return {kind.name: kind for kind in found}


@cache
def schedule() -> tuple[str, ...]:
    """A thousand turns or so, each kind spread evenly over them by its share."""
    turns = [((turn + 0.5) / kind.share, kind.name) for kind in kinds().values() for turn in range(kind.share)]
    return tuple(name for _, name in sorted(turns))
