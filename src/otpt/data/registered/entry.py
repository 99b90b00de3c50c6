"""The registered data sets as data: ``datasets.toml`` and ``class_names/``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

from otpt.data.classes import ClassList, builtin_class_list
from otpt.data.dataset import DEFAULT_PROMPT
from otpt.errors import OtptError
from otpt.files import parse_toml


@dataclass(frozen=True)
class Layout:
    """A folder layout: ``folder`` under the root, in the style of a project."""

    style: str
    folder: str
    reader: str


@dataclass(frozen=True)
class DatasetEntry:
    """What is known about a registered data set before any file is read.

    ``classes`` and ``test_images`` are the published numbers; None for a set that needs a package which is not
    installed to count.
    """

    name: str
    title: str
    classes: int | None
    test_images: int | None
    family: str
    augmix: bool
    prompt: str = DEFAULT_PROMPT
    names: str = ""
    split_file: str = ""
    layouts: tuple[Layout, ...] = ()
    aliases: tuple[str, ...] = ()
    torchvision: str = ""
    official_swap: tuple[int, int] | None = None
    numeric_folders: bool = False

    def class_list(self, *, official_names: bool = False) -> ClassList:
        """Folders and names of the classes, in label order.

        ``official_names`` reproduces the class list of the papers' code where that differs: Food101, whose labels
        16 and 17 (cheese_plate, cheesecake) are swapped there.
        """
        classes = builtin_class_list(self.names)
        names = list(classes.names)
        if self.names.startswith("imagenet"):
            names = [imagenet_names()[wnid] for wnid in classes.folders]
        if official_names and self.official_swap is not None:
            first, second = self.official_swap
            names[first], names[second] = names[second], names[first]
        return ClassList(classes.folders, tuple(names))

    @property
    def allow_duplicates(self) -> bool:
        """ImageNet's list has the duplicates "missile" and "sunglasses"."""
        return self.names == "imagenet"


@cache
def imagenet_names() -> Mapping[str, str]:
    """WordNet id → class name of CLIP's list for ImageNet, from open_clip."""
    from open_clip.zero_shot_metadata import IMAGENET_CLASSNAMES

    wnids = builtin_class_list("imagenet").folders
    if len(IMAGENET_CLASSNAMES) != len(wnids):
        raise OtptError(
            f"The installed open_clip names {len(IMAGENET_CLASSNAMES)} ImageNet classes; expected {len(wnids)}."
        )
    return dict(zip(wnids, IMAGENET_CLASSNAMES, strict=True))


@cache
def builtin_entries() -> Mapping[str, DatasetEntry]:
    """The registered data sets by name, in the order of the paper's tables."""
    text = resources.files("otpt.data").joinpath("datasets.toml").read_text(encoding="utf-8")
    entries = {}
    for name, table in parse_toml(text).items():
        reader = table.pop("reader")
        layouts = tuple(Layout(style, folder, *(own or [reader])) for style, folder, *own in table.pop("layouts"))
        swap = table.pop("official_swap", None)
        entries[name] = DatasetEntry(
            name,
            test_images=table.pop("images"),
            layouts=layouts,
            aliases=tuple(table.pop("aliases", ())),
            official_swap=None if swap is None else (swap[0], swap[1]),
            **table,
        )
    return entries


def find_entry(name: str) -> DatasetEntry | None:
    """The registered data set of this name or alias; case, hyphens and underscores do not matter."""
    wanted = _plain(name)
    for entry in builtin_entries().values():
        if wanted in map(_plain, (entry.name, *entry.aliases)):
            return entry
    return None


def _plain(name: str) -> str:
    return re.sub(r"[-_ ]", "", name).lower()
