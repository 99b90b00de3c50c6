"""Registered data sets (``datasets.toml``): their folder layouts, splits and class names.

A split file of CoOp is ``{"train": …, "val": …, "test": …}``, each a list of ``[relative path, label, class name]``.
"""

from __future__ import annotations

import importlib
import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from itertools import product
from pathlib import Path, PurePosixPath
from typing import NamedTuple, TypeVar

import pydantic.dataclasses
from pydantic import TypeAdapter

from otpt.arguments import checked
from otpt.data.classes import ClassList, builtin_class_list
from otpt.data.dataset import DEFAULT_PROMPT, Conventions, Dataset, FilesBelow, NoSuchSplit
from otpt.errors import OtptError
from otpt.files import parse_json, parse_toml, read_text
from otpt.folders import class_folders, labelled_images
from otpt.images import open_image
from otpt.plugins import load_installed_plugins, restorable

_T = TypeVar("_T")


class Record(NamedTuple):
    """An image of a layout: its file below the layout's folder, its label, and its id, the file by default."""

    file: str
    label: int
    name: str = ""

    @property
    def id(self) -> str:
        """The same in all layouts."""
        return self.name or self.file


def spread(items: Sequence[_T], count: int) -> list[_T]:
    """Return up to ``count`` items spread evenly over the sequence."""
    count = min(count, len(items))
    return [items[len(items) * part // count] for part in range(count)]


def shortened(names: Iterable[str], limit: int = 5) -> str:
    """Format names as ``a, b, c … (12 in all)``."""
    listed = list(names)
    more = f" … ({len(listed)} in all)" if len(listed) > limit else ""
    return ", ".join(listed[:limit]) + more


class Layout(NamedTuple):
    """Location of a data set: ``folder`` below the data root, as the project ``style`` arranges it.

    ``reader`` overrides the reader of the entry.
    """

    style: str
    folder: str
    reader: str = ""


@pydantic.dataclasses.dataclass(frozen=True)
class DatasetEntry:
    """A registered data set, as in ``datasets.toml``.

    ``classes`` and ``test_images`` are the published numbers, None if unknown. The class list is ``listed``, or the
    file ``names`` of this package. A set with ``parts`` (ImageNet-C) is loaded as NAME/PART/LEVEL.
    """

    name: str
    title: str
    classes: int | None
    test_images: int | None
    family: str
    augmix: bool
    prompt: str = DEFAULT_PROMPT
    names: str = ""
    reader: str = ""
    split_file: str = ""
    layouts: tuple[Layout, ...] = ()
    aliases: tuple[str, ...] = ()
    official_swap: tuple[int, int] | None = None
    numeric_folders: bool = False
    parts: tuple[str, ...] = ()
    levels: int = 0
    listed: ClassList | None = None

    def class_list(self, *, official_names: bool = False) -> ClassList:
        """Return the folders and names of the classes, in label order.

        ``official_names`` reproduces the papers' code, which swaps labels 16 and 17 of Food101 (cheese_plate,
        cheesecake).
        """
        classes = self.listed or builtin_class_list(self.names)
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


@dataclass(frozen=True)
class Place:
    """Where a reader looks for a split: the layout's folder, and ``near``, folders that may hold lists."""

    entry: DatasetEntry
    folder: Path
    near: tuple[Path, ...]
    split: str

    @property
    def classes(self) -> ClassList:
        return self.entry.class_list()

    def need(self, what: str, *names: str) -> Path:
        """Return the first file with one of ``names`` in the folders that may hold lists."""
        for name, path in product(names, self.near):
            if os.path.isfile(path / name):
                return path / name
        raise OtptError(f"its {what} {' or '.join(names)} was not found in {', '.join(map(str, self.near))}")


@cache
def imagenet_names() -> Mapping[str, str]:
    """Return CLIP's ImageNet class names by WordNet id, from open_clip."""
    names = importlib.import_module("open_clip.zero_shot_metadata").IMAGENET_CLASSNAMES
    return dict(zip(builtin_class_list("imagenet").folders, names, strict=True))


_ADDED: dict[str, DatasetEntry] = restorable({})


def register_dataset(entry: DatasetEntry) -> None:
    """Register a data set; its layouts name readers of :func:`register_reader`."""
    _ADDED[entry.name] = entry


def builtin_entries() -> Mapping[str, DatasetEntry]:
    """Return registered data sets by name: those of the papers in table order, then those of plugins."""
    load_installed_plugins("datasets")
    return {**published_entries(), **_ADDED}


@cache
def published_entries() -> Mapping[str, DatasetEntry]:
    """Return the data sets of the papers by name, in table order."""
    text = resources.files(__package__).joinpath("datasets.toml").read_text(encoding="utf-8")
    tables = parse_toml(text)
    return TypeAdapter(dict[str, DatasetEntry]).validate_python(
        {name: {"name": name, **table} for name, table in tables.items() if isinstance(table, Mapping)}
    )


@checked
def find_entry(name: str) -> DatasetEntry | None:
    """Return the registered data set of this name or alias; case, hyphens and underscores do not matter."""
    base, *rest = name.split("/")
    entry = _named_entry(base)
    if entry is None or not entry.parts:
        return None if rest else entry
    if len(rest) != 2 or rest[0] not in entry.parts or rest[1] not in map(str, range(1, entry.levels + 1)):
        raise OtptError(
            f"{name!r} is not one of {entry.name}'s sets; expected {entry.name}/PART/LEVEL with a level from 1 to "
            f"{entry.levels} and one of the parts {', '.join(entry.parts)}."
        )
    part = "/".join(rest)
    layouts = tuple(layout._replace(folder=f"{layout.folder}/{part}") for layout in entry.layouts)
    return replace(entry, name=f"{entry.name}/{part}", layouts=layouts, parts=(), levels=0)


def _named_entry(name: str) -> DatasetEntry | None:
    for entry in (*published_entries().values(), *_ADDED.values()):
        if _plain(name) in map(_plain, (entry.name, *entry.aliases)):
            return entry
    is_name = _NAME.fullmatch(name) is not None  # a path such as "~" or "./photos" belongs to no plugin
    return _named_entry(name) if is_name and load_installed_plugins("datasets") else None


_NAME = re.compile(r"\w[\w. -]*")


def _plain(name: str) -> str:
    return re.sub(r"[-_ ]", "", name).lower()


def read_folders(place: Place) -> list[Record]:
    """Read one folder per class, named as in the class list or by label (ImageNet-V2: 0, 1, … 999)."""
    if place.split != "test":
        raise NoSuchSplit(f"it has no {place.split!r} split here; expected 'test'")
    labels = place.classes.index()
    present = class_folders(place.folder)
    if place.entry.numeric_folders and present and all(name.isdecimal() for name in present):
        # By value: sorted as strings (0, 1, 10, 100, …) the folders would permute the classes.
        labels = {str(label): label for label in labels.values()}
    missing = [name for name in labels if name not in present]
    strange = [name for name in present if name not in labels]
    if missing or strange:
        raise OtptError(
            f"its folders differ from the {len(labels)} classes: {len(missing)} missing ({shortened(missing)}), "
            f"{len(strange)} unknown ({shortened(strange)})"
        )
    return [Record(file, label) for file, label in labelled_images(place.folder, labels)]


def read_split(place: Place) -> list[Record]:
    """Read a split from CoOp's split file or from an equivalent official list."""
    name = place.entry.split_file
    official, read = _OFFICIAL_LISTS.get(name if place.split == "test" else "", ("", None))
    file = place.need("split file", *filter(None, (name, official)))
    if read is not None and file.name != name:
        return _read_lines(file, read, place.classes)
    try:
        listed = _listed_images(parse_json(read_text(file)), place.split)
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        kind = NoSuchSplit if isinstance(error, KeyError) else OtptError
        raise kind(
            f"the split file {str(file)!r} is damaged or has no {place.split!r} split; expected a JSON object with "
            "lists of [path, label, class name]"
        ) from None
    names = place.classes.names
    for path, label, name in listed:
        published = names[label] if 0 <= label < len(names) else ""
        if _words(name) != _words(published):
            raise OtptError(
                f"in {str(file)!r}, label {label} is called {name!r}, but {published!r} in the published list: it is a "
                "different split, or its labels are permuted"
            )
        if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
            raise OtptError(f"in {str(file)!r}, the image {path!r} lies outside the data; expected a relative path")
    return [Record(path, label) for path, label, _ in listed]


def _listed_images(splits: object, split: str) -> list[tuple[str, int, str]]:
    """Return path, label and class name of each image in a split of CoOp's file."""
    if not isinstance(splits, Mapping):
        raise TypeError("not an object")
    return [(str(path), int(label), str(name)) for path, label, name in splits[split]]


def read_lists(place: Place) -> list[Record]:
    """Read FGVC Aircraft's ``images_variant_SPLIT.txt`` with lines "image class"."""
    return _read_lines(place.need("list", f"images_variant_{place.split}.txt"), _aircraft_line, place.classes)


Line = Callable[[str, Mapping[str, int]], tuple[str, int]]
"""Function from a line of a list and the labels by class folder to the path and label of an image."""


def _read_lines(file: Path, read: Line, classes: ClassList) -> list[Record]:
    """Read the images of an official list; blank lines and comments are skipped."""
    labels = classes.index()
    records = []
    for line in map(str.strip, read_text(file).splitlines()):
        try:
            if line and not line.startswith("#"):
                records.append(Record(*read(line, labels)))
        except (KeyError, ValueError, IndexError):
            raise OtptError(f"{file}: {line!r} does not name an image with a class of the published list") from None
    return records


def _aircraft_line(line: str, labels: Mapping[str, int]) -> tuple[str, int]:
    image, _, name = line.partition(" ")
    return f"{image}.jpg", labels[name]


def _pets_line(line: str, labels: Mapping[str, int]) -> tuple[str, int]:
    """Parse a line "Abyssinian_201 1 1 1": image, class from 1, and two more numbers."""
    image, number, _, _ = line.split()
    return f"{image}.jpg", range(1, len(labels) + 1).index(int(number))


def _sun_line(line: str, labels: Mapping[str, int]) -> tuple[str, int]:
    """Parse a line "/a/abbey/sun_….jpg"."""
    path = line.lstrip("/")
    return path, labels[str(PurePosixPath(path).parent)]


_OFFICIAL_LISTS: dict[str, tuple[str, Line]] = {
    "split_zhou_OxfordPets.json": ("annotations/test.txt", _pets_line),
    "split_zhou_SUN397.json": ("Testing_01.txt", _sun_line),
}
"""Official lists equivalent to the test split of CoOp's file, used if that file is missing."""


def _words(name: str) -> str:
    return " ".join(name.replace("_", " ").lower().split())


Reader = Callable[[Place], list[Record]]
"""Function that returns the images of a split at a place; it raises ``NoSuchSplit`` if there is none."""
READERS: dict[str, Reader] = restorable({"folders": read_folders, "lists": read_lists, "split": read_split})
"""Readers by the name that layouts have."""


def register_reader(name: str, reader: Reader) -> None:
    """Register a reader of a folder layout; :class:`Layout` and :class:`DatasetEntry` name it."""
    READERS[name] = reader


SPLITS = ("test", "val", "train")


class DatasetNotFound(OtptError):
    """None of the folders of a data set exists."""


@dataclass(frozen=True)
class Found:
    """Location and records of a data set."""

    layout: Layout
    folder: Path
    records: list[Record]

    def missing_share(self, sample: int = 300) -> float:
        """Return the fraction of missing files among ``sample`` images spread over the split."""
        records = spread(self.records, sample)
        return sum(not os.path.isfile(self.folder / record.file) for record in records) / len(records)


def find_records(entry: DatasetEntry, root: Path, split: str = "test") -> Found:
    """Find the images of a split of ``entry`` in the first of its layouts that exists.

    A layout exists if its folder, its lists, and at least one of five images spread over the split do. Other missing
    images are reported when they are opened, or by :func:`check_dataset`.
    """
    if split not in SPLITS:
        raise OtptError(f"The split {split!r} is not known; expected one of {', '.join(SPLITS)}.")
    root = Path(os.path.expanduser(root))
    if not os.path.isdir(root):
        raise OtptError(f"The data root {str(root)!r} is not a folder; give the folder that holds the data sets.")
    problems: dict[str, type[OtptError]] = {}
    for layout, base in _candidates(entry, root):
        folder = base / layout.folder
        read = READERS[layout.reader or entry.reader]
        try:
            records = read(Place(entry, folder, _folders_of_lists(folder, base, root), split))
            _check_images(folder, records)
            return Found(layout, folder, records)
        except OtptError as error:
            problem = f"in {str(folder)!r} (the layout of {layout.style}): {str(error).rstrip('.')}"
            problems[problem] = type(error)
    if problems:
        kind = NoSuchSplit if set(problems.values()) == {NoSuchSplit} else OtptError
        raise kind(f"{entry.name} is incomplete: {'; '.join(problems)}.")
    places = ", ".join(f"{layout.folder} ({layout.style})" for layout in entry.layouts)
    raise DatasetNotFound(f"{entry.name} was not found under {str(root)!r}; its images were looked for in {places}.")


def _folders_of_lists(folder: Path, base: Path, root: Path) -> tuple[Path, ...]:
    """Return the folders that may hold the lists of a layout: between it and the base, the root, and TPT's own."""
    above = [path for path in (folder, *folder.parents) if path.is_relative_to(base)]
    return tuple(dict.fromkeys([*above, root, base / "data_splits", root / "data_splits"]))


def _check_images(folder: Path, records: Sequence[Record]) -> None:
    """Raise unless one of five images spread over the records exists."""
    sample = spread(records, 5)
    if not sample:
        raise OtptError("it lists no images")
    if not any(os.path.isfile(folder / record.file) for record in sample):
        raise OtptError(f"its images are missing, such as {sample[0].file}")


def _candidates(entry: DatasetEntry, root: Path) -> Iterator[tuple[Layout, Path]]:
    """Yield the layouts below the root, or next to it if the root is the folder of the data set."""
    here = root.resolve()
    named = [layout for layout in entry.layouts if PurePosixPath(layout.folder).parts[0] == here.name]
    for layout, base in [*product(entry.layouts, [root]), *product(named, [here.parent])]:
        if os.path.isdir(base / layout.folder):
            yield layout, base


def registered_dataset(
    entry: DatasetEntry, root: Path, split: str, classes: ClassList | None = None, *, official_names: bool = False
) -> Dataset:
    """Load a registered set from below ``root``; ``classes`` renames its classes."""
    place = find_records(entry, root, split)
    class_list = entry.class_list(official_names=official_names)
    if classes is not None:
        class_list = _renamed(classes, class_list, entry)
    count = len(place.records)
    if split == "test" and entry.test_images is not None and count != entry.test_images:
        warnings.warn(
            f"{entry.name} has {count} test images in {str(place.folder)!r}, {entry.test_images} were published: "
            "accuracy and calibration are not comparable with the papers'.",
            stacklevel=3,
        )
    return Dataset(
        entry.name,
        class_list.names,
        [record.id for record in place.records],
        [record.label for record in place.records],
        FilesBelow(place.folder, tuple(record.file for record in place.records)),
        conventions=Conventions(
            family=class_list.family or entry.family,
            augmix=entry.augmix if class_list.augmix is None else class_list.augmix,
            prompt=class_list.prompt or entry.prompt,
            allow_duplicates=entry.allow_duplicates,
        ),
        origin=entry.name,
    )


def _renamed(custom: ClassList, published: ClassList, entry: DatasetEntry) -> ClassList:
    """Return custom names for a registered set's classes, in label order."""
    if len(custom) != len(published):
        raise OtptError(f"{entry.name} has {len(published)} classes, but the class list names {len(custom)}.")
    if set(custom.folders) == set(published.folders):
        by_folder = dict(zip(custom.folders, custom.names, strict=True))
        names = tuple(by_folder[folder] for folder in published.folders)
        return replace(custom, folders=published.folders, names=names)
    return custom


@dataclass(frozen=True)
class CheckReport:
    """Result of :func:`check_dataset`; ``problems`` has a sentence for each problem."""

    name: str
    classes: int
    images: int
    published_classes: int | None
    published_images: int | None
    empty_classes: tuple[str, ...]
    missing: tuple[str, ...]
    opened: int
    unreadable: tuple[tuple[str, str], ...]

    @property
    def problems(self) -> tuple[str, ...]:
        problems = []
        if self.published_classes not in (None, self.classes):
            problems.append(f"{self.classes} classes, {self.published_classes} published")
        if self.published_images not in (None, self.images):
            problems.append(f"{self.images} test images, {self.published_images} published")
        if self.published_images is not None and self.empty_classes:
            problems.append(f"{len(self.empty_classes)} classes without an image")
        if self.missing:
            problems.append(f"{len(self.missing)} images are missing")
        if self.unreadable:
            problems.append(f"{len(self.unreadable)} of {self.opened} opened images cannot be read")
        return tuple(problems)

    @property
    def ok(self) -> bool:
        return not self.problems


@checked
def check_dataset(data: Dataset, entry: DatasetEntry | None = None, *, sample: int = 100) -> CheckReport:
    """Look for all files of ``data`` and open ``sample`` images spread evenly over it (0: none, −1: all)."""
    missing = [data.is_file_missing(index) for index in range(len(data))]
    present = [index for index in range(len(data)) if not missing[index]]
    chosen = present if sample < 0 else spread(present, sample)
    unreadable = []
    for index in chosen:
        try:
            open_image(data[index].source)
        except OtptError as error:
            unreadable.append((data.ids[index], str(error)))
    empty = set(range(len(data.class_names))).difference(data.labels)
    return CheckReport(
        data.name,
        len(data.class_names),
        len(data),
        None if entry is None else entry.classes,
        None if entry is None else entry.test_images,
        tuple(data.class_names[label] for label in sorted(empty)),
        tuple(name for name, is_missing in zip(data.ids, missing, strict=True) if is_missing),
        len(chosen),
        tuple(unreadable),
    )
