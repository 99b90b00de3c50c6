"""Custom labelled data: class folders, tables, WebDataset shards, Hugging Face and other libraries' data sets."""

from __future__ import annotations

import operator
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, SupportsIndex, TypedDict, cast

import numpy as np
import pandas as pd

from otpt.arguments import checked
from otpt.data.classes import ClassList, find_class_list
from otpt.data.dataset import DEFAULT_PROMPT, Conventions, Dataset, FilesBelow
from otpt.data.registered import shortened
from otpt.data.sources import (
    HubTable,
    expand_braces,
    hub_class_names,
    hub_table,
    image_column,
    is_pattern,
    is_remote,
    list_shards,
    refuse_saved,
    slashed,
    tar_members,
    undecoded,
    undecoded_image,
)
from otpt.errors import OtptError, cannot_read
from otpt.files import parse_json
from otpt.folders import IMAGE_SUFFIXES, LABELS, class_names, labelled_images
from otpt.images import ImageSource
from otpt.labels import read_label_sets

TABLE_SUFFIXES = (".csv", ".tsv", ".parquet")
YES_OR_NO = {"yes": True, "no": False, "true": True, "false": False, "1": True, "0": False, "y": True, "n": False}
"""Labels of a single class, in lower case."""
_LABEL_SUFFIXES = (".cls", ".txt", ".json")
_MOST_LABEL_BYTES = 1 << 20
_JSON_KEYS = ("label", "cls", "class", "class_name")


def own_dataset(
    name: str,
    classes: ClassList,
    ids: Sequence[str],
    labels: Sequence[int],
    images: Callable[[int], ImageSource],
    *,
    origin: str | None,
) -> Dataset:
    """Return a data set with the family, AugMix and prompt of its class list, or the defaults."""
    conventions = Conventions(
        family=classes.family or "fine-grained",
        augmix=True if classes.augmix is None else classes.augmix,
        prompt=classes.prompt or DEFAULT_PROMPT,
        classes_from=classes.taken_from,
    )
    return Dataset(name, classes.names, ids, labels, images, conventions=conventions, origin=origin)


def origin_of(path: str | Path) -> str:
    """Return the absolute path, recorded as the origin of user data."""
    return Path(os.path.abspath(Path(os.path.expanduser(path)))).as_posix()


def name_of(folder: Path) -> str:
    """Return the name of a folder as it was written: that of a link, not of its target."""
    return Path(os.path.abspath(os.path.expanduser(folder))).name


def resolve_labels(
    labels: Sequence[str], classes: ClassList | None, origin: str, *, numbers: bool = True
) -> tuple[ClassList, tuple[int, ...]]:
    """Return the class list and the labels (N,) as indices into it.

    With a class list, labels are its folders or its names, where case and underscores matter only if they distinguish
    names; otherwise numbers from 0, if allowed. Without one, the labels are the class names in alphabetical order;
    numbers alone are refused, since they are not class names.
    """
    if classes is None:
        if all(label.isdecimal() for label in labels):
            raise OtptError(
                f"{origin}: the labels are numbers ({shortened(dict.fromkeys(labels), 3)}) without class names; "
                "give a file of class names, one per line in label order: --classes @FILE (classes= in Python)."
            )
        names = tuple(sorted(set(labels)))
        classes = ClassList(names, names, taken_from="labels")
    for form in (str, _plain):
        for keys in (classes.folders, classes.names):
            index = {form(key): label for label, key in enumerate(keys)}
            if all(form(label) in index for label in labels):
                return classes, tuple(index[form(label)] for label in labels)
    if numbers and all(label.isdecimal() for label in labels):
        return classes, tuple(int(label.lstrip("0")[:20] or "0") for label in labels)
    listed = {_plain(key) for key in (*classes.folders, *classes.names)}
    strange = dict.fromkeys(label for label in labels if _plain(label) not in listed) or dict.fromkeys(labels)
    raise OtptError(f"{origin}: the class list of {len(classes)} does not name {shortened(map(repr, strange))}.")


def _plain(name: str) -> str:
    return name.replace("_", " ").casefold()


def image_folder(folder: Path, classes: ClassList | None = None) -> Dataset:
    """Read images in ``folder/CLASS/…/image.jpg``, or in a flat folder with ``labels.csv`` (columns file and label).

    The label order is that of the class list (``classes``, or ``classes.txt`` in the folder), else alphabetical.
    """
    refuse_saved(str(folder))
    if os.path.isfile(folder / LABELS):
        return table_dataset(folder / LABELS, None, classes, name=name_of(folder))
    present = class_names(folder)
    listed = classes or find_class_list(folder) or ClassList(present, present, taken_from="folders")
    labels = listed.index()
    strange = [name for name in present if name not in labels]
    if strange:
        raise OtptError(
            f"The folder {str(folder)!r} holds classes that the class list of {len(listed)} does not name: "
            f"{shortened(strange)}; add them to the list or take them out of the folder."
        )
    images = labelled_images(folder, {name: label for name, label in labels.items() if name in present})
    files = tuple(file for file, _ in images)
    image_labels = [label for _, label in images]
    name = name_of(folder)
    return own_dataset(name, listed, files, image_labels, FilesBelow(folder, files), origin=origin_of(folder))


def table_dataset(
    file: Path,
    root: Path | None = None,
    classes: ClassList | None = None,
    *,
    name: str | None = None,
    column: str | None = None,
) -> Dataset:
    """Read a CSV or Parquet table with the columns path (or another known name) and label, optionally id.

    Paths are relative to the table's folder, or to the data root if they exist there.
    """
    table, paths = _read_paths(file, "label", column)
    if not paths:
        raise OtptError(f"The table {str(file)!r} is empty; expected one row per image.")
    columns = {key: table[key].tolist() for key in ("label", "id") if key in table}
    for key, values in {"path": paths, **columns}.items():
        if "" in values:
            raise OtptError(f"The table {str(file)!r} has no {key} in data row {values.index('') + 1}.")
    class_list = classes or find_class_list(file.parent)
    if class_list is not None and len(class_list) == 1:
        return label_table(file, class_list, column)
    listed, labels = resolve_labels(columns["label"], class_list, f"The table {str(file)!r}")
    folder = file.parent
    if root is not None and not os.path.exists(folder / paths[0]):
        folder = Path(os.path.expanduser(root))
    ids = columns.get("id") or [_relative(path, folder) for path in paths]
    return own_dataset(name or file.stem, listed, ids, labels, FilesBelow(folder, paths), origin=origin_of(file))


@checked
def label_table(file: Path, classes: ClassList | None = None, column: str | None = None) -> Dataset:
    """Read a CSV or Parquet table with the columns path (or file) and labels, separated by semicolons.

    A cell without labels is allowed. Without a class list, the labels are the class names, in alphabetical order. With
    a list of one class, the column may also be ``label``, with yes or no, true or false, 1 or 0.
    """
    file = Path(file)
    if file.suffix.lower() not in TABLE_SUFFIXES:
        raise OtptError(
            "Several labels per image, or yes and no for a single class, are read from "
            f"{', '.join(TABLE_SUFFIXES)} tables with the columns path and labels, not from {str(file)!r}."
        )
    table, paths = _read_paths(file, "labels", column, single=classes is not None and len(classes) == 1)
    rows: Sequence[object]
    if "labels" in table:
        named = [[label.strip() for label in cell.split(";") if label.strip()] for cell in table["labels"]]
        names = tuple(sorted({label for row in named for label in row}))
        rows = named
    else:
        assert classes is not None
        names = classes.names
        rows = _read_answers(table["label"].tolist(), names[0], file)
    listed = classes or ClassList(names, names, taken_from="labels")
    if not listed.names:
        raise OtptError(f"The table {str(file)!r} has no label; name the classes with --classes.")
    label_sets = [tuple(np.flatnonzero(present).tolist()) for present in read_label_sets(rows, listed.names)]
    first_labels = [labels[0] if labels else 0 for labels in label_sets]
    images = FilesBelow(file.parent, paths)
    dataset = own_dataset(file.stem, listed, paths, first_labels, images, origin=origin_of(file))
    dataset.label_sets = label_sets
    return dataset


def _read_answers(cells: Sequence[str], name: str, file: Path) -> list[bool]:
    """Convert the labels (N,) of a single class, yes or no, to booleans; the name of the class is a yes."""
    answers = {**YES_OR_NO, name.casefold(): True}
    strange = [cell for cell in cells if cell.casefold() not in answers]
    if strange:
        raise OtptError(
            f"The table {str(file)!r} has the label {strange[0]!r}, and {name!r} is the only class; expected yes or no "
            "(or true or false, 1 or 0)."
        )
    return [answers[cell.casefold()] for cell in cells]


def _read_paths(
    file: Path, label: str, column: str | None, *, single: bool = False
) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """Read a table with a column of labels; also the paths of its images. A ``single`` class may have ``label``."""
    table = read_table(file)
    if label not in table and not (single and "label" in table):
        raise OtptError(
            f"The table {str(file)!r} has the columns {', '.join(map(repr, table.columns)) or 'none'}; expected 'path' "
            f"(or 'file') and {label!r}. Rename the columns; with several labels per image, use --multi-label."
        )
    path = image_column(table.columns, column, str(file))
    return table, tuple(slashed(name) for name in table[path])


def read_table(file: Path) -> pd.DataFrame:
    """Read a CSV, TSV or Parquet table as strings, its columns in lower case."""
    try:
        if file.suffix.lower() == ".parquet":
            table = pd.read_parquet(file)
            table = table.astype(object).where(table.notna(), "").astype(str)
        else:
            with file.open(encoding="utf-8-sig") as lines:
                head = lines.readline()
            tabs = file.suffix.lower() == ".tsv" or ("\t" in head and "," not in head)  # open_clip's CSVs have tabs
            table = pd.read_csv(
                file, sep="\t" if tabs else ",", dtype=str, keep_default_na=False, encoding="utf-8-sig", index_col=False
            )
            table = table.fillna("").apply(lambda column: column.str.strip())
    except Exception as error:  # pyarrow and pandas raise nearly anything for a damaged file
        raise cannot_read("table", file, error) from None
    table.columns = [str(name).strip().lower() for name in table.columns]
    return table


def _relative(path: str, folder: Path) -> str:
    """Return an id relative to the folder of the table if possible."""
    file = Path(path)
    if file.is_absolute() and file.is_relative_to(folder.resolve()):
        return file.relative_to(folder.resolve()).as_posix()
    return file.as_posix()


@dataclass(frozen=True)
class ReaderTable:
    """Image ``i`` is returned by ``readers[i]()``."""

    readers: tuple[Callable[[], ImageSource], ...]

    def __call__(self, index: int) -> ImageSource:
        return self.readers[index]()


def shard_dataset(spec: str, root: Path | None = None, classes: ClassList | None = None) -> Dataset:
    """Read WebDataset shards, with ``{000..009}`` and ``{a,b}`` expanded.

    Images of local shards are read by offset when needed; those of compressed or remote shards stay in memory.

    A sample is the members of one name up to the first dot: ``0001.jpg`` and ``0001.cls`` (a number), ``0001.txt``
    (a class name) or ``0001.json`` (``{"label": …}``).
    """
    shards = list_shards(os.path.expanduser(spec)) if is_pattern(spec) else expand_braces(os.path.expanduser(spec))
    if root is not None and not is_remote(spec) and not os.path.exists(shards[0]):
        shards = [str(Path(os.path.expanduser(root)) / shard) for shard in shards]
    missing = [] if is_remote(spec) else [shard for shard in shards if not os.path.isfile(shard)]
    if missing:
        raise OtptError(f"{spec!r} are not all tar files (missing: {shortened(missing)}); check the path.")
    samples = [(f"{os.path.basename(shard)}/{key}", *sample) for shard in shards for key, sample in _samples(shard)]
    if not samples:
        raise OtptError(f"The shards {spec!r} hold no images.")
    ids, readers, labels = zip(*samples, strict=True)
    class_list = classes or (None if is_remote(spec) else find_class_list(Path(shards[0]).parent))
    listed, resolved = resolve_labels(labels, class_list, f"The shards {spec!r}")
    file_name = re.sub(r"\.(tar|tar\.gz|tgz)$", "", os.path.basename(spec), flags=re.IGNORECASE)
    name = re.sub(r"[-_.]*(\{[^}]*\})[-_.]*", "", file_name).rstrip(".") or "shards"
    origin = spec if is_remote(spec) else origin_of(Path(shards[0]).parent / os.path.basename(spec))
    return own_dataset(name, listed, ids, resolved, ReaderTable(readers), origin=origin)


def _samples(shard: str) -> Iterator[tuple[str, tuple[Callable[[], bytes], str]]]:
    """Yield key, image and label of each sample of a shard."""
    images: dict[str, Callable[[], bytes]] = {}
    labels: dict[tuple[str, str], Callable[[], bytes]] = {}
    for name, read in tar_members(shard, IMAGE_SUFFIXES.union(_LABEL_SUFFIXES)):
        folder, slash, file = name.rpartition("/")
        stem, _, suffix = file.partition(".")
        key, ending = folder + slash + stem, f".{suffix.lower()}"
        if ending in _LABEL_SUFFIXES:
            labels[key, ending] = read
        elif ending in IMAGE_SUFFIXES:
            if key in images:
                raise OtptError(f"In the shard {shard!r}, {key!r} has two images; expected one per sample.")
            images[key] = read
    for key, image in images.items():
        ending = next((suffix for suffix in _LABEL_SUFFIXES if (key, suffix) in labels), "")
        if not ending:
            raise OtptError(f"In the shard {shard!r}, {key!r} has no label; expected {key}.cls, .txt or .json.")
        try:
            yield key, (image, _label(labels[key, ending](), ending))
        except ValueError as error:
            raise OtptError(
                f"In the shard {shard!r}, {key + ending} holds no label ({error}); expected text, or JSON with 'label'."
            ) from None


def _label(content: bytes, ending: str) -> str:
    if len(content) > _MOST_LABEL_BYTES:
        raise ValueError(f"it has {len(content):,} bytes")
    text = content.decode("utf-8").strip()
    if ending == ".json":
        text = _json_label(parse_json(text))
    if not text:
        raise ValueError("it is empty")
    return text


def _json_label(values: object) -> str:
    """Return the label of a sample that has more values."""
    if not isinstance(values, Mapping):
        raise ValueError("it is no JSON object")
    return str(next((values[key] for key in _JSON_KEYS if key in values), "")).strip()


@dataclass(frozen=True)
class RowsOf:
    """Function from ``i`` to the bytes or file in row ``i`` of an undecoded column."""

    table: HubTable
    column: str

    def __call__(self, index: int) -> ImageSource:
        cell = self.table[index][self.column]
        source = undecoded_image(cell)
        if source is None:
            raise OtptError(f"Row {index} has no image in the column {self.column!r}.")
        return source


def hub_dataset(name: str, *, split: str = "test", classes: ClassList | None = None) -> Dataset:
    """Load a split of ``owner/name``, ``owner/name@configuration`` or a folder with the ``datasets`` library."""
    folder = os.path.expanduser(name.partition("@")[0])
    origin = f"hf:{origin_of(folder)}" if folder and os.path.isdir(folder) else f"hf:{name}"
    return hugging_face_dataset(hub_table(name, split), f"hf:{name}", split=split, classes=classes, origin=origin)


def hugging_face_dataset(
    table: HubTable, name: str, *, split: str = "test", classes: ClassList | None = None, origin: str | None = None
) -> Dataset:
    """Convert a ``datasets.Dataset`` with a column of type Image and one of type ClassLabel or named ``label``."""
    kinds = {column: type(feature).__name__ for column, feature in (table.features or {}).items()}
    images = next((column for column, kind in kinds.items() if kind == "Image"), None)
    column = next((column for column, kind in kinds.items() if kind == "ClassLabel"), "label")
    if images is None or column not in kinds:
        described = ", ".join(f"{column} ({kind})" for column, kind in kinds.items())
        raise OtptError(f"{name} has the columns {described}; expected one of type Image and one of type ClassLabel.")
    values = list(table[column])
    unlabelled = next((row for row, value in enumerate(values) if value in (None, -1)), None)
    if unlabelled is not None:
        raise OtptError(f"{name}, split {split!r}, has no label in row {unlabelled}; use a labelled split.")
    listed, labels = _hub_labels(values, hub_class_names(table, column), classes, name)
    ids = [f"{split}/{row}" for row in range(len(labels))]
    images_only = undecoded(table.select_columns([images]), images)
    return own_dataset(name, listed, ids, labels, RowsOf(images_only, images), origin=origin)


def _hub_labels(
    values: Sequence[object], names: tuple[str, ...] | None, classes: ClassList | None, origin: str
) -> tuple[ClassList, tuple[int, ...]]:
    """Return the class list and the labels (N,) of a column.

    Args:
        values: values (N,) of the column.
        names: class names of the column's type ClassLabel, None for another type.
        classes: class list of the user.
        origin: name of the data set in errors.
    """
    numbers = tuple(operator.index(value) for value in values if isinstance(value, SupportsIndex))
    is_numbered = len(numbers) == len(values)
    if names is not None and is_numbered:
        if classes is None:
            return ClassList(names, names), numbers
        places = _places(names, classes, origin)
        return classes, tuple(places[number] for number in numbers)
    if classes is not None and is_numbered:
        return classes, numbers
    return resolve_labels([str(value) for value in values], classes, origin)


def _places(names: Sequence[str], listed: ClassList, origin: str) -> Sequence[int]:
    """Return the position (C,) of each class of the data set in a class list.

    A list of the same names may have another order; one of the same length with only new names renames the classes.
    """
    keys = {_plain(key) for key in (*listed.folders, *listed.names)}
    if len(listed) == len(names) and keys.isdisjoint(map(_plain, names)):
        return range(len(names))
    return resolve_labels(names, listed, origin, numbers=False)[1]


class LabelledItem(TypedDict):
    """Item of a data set that names its parts."""

    image: ImageSource
    label: int


class LabelledItems(Protocol):
    """Data set of another library: items (image, label) or {"image": …, "label": …}."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> LabelledItem | tuple[ImageSource, int]: ...


@dataclass(frozen=True)
class ItemsOf:
    """Image ``i`` of a data set whose items are (image, label) or {"image": …, "label": …}."""

    data: LabelledItems

    def __call__(self, index: int) -> ImageSource:
        item = self.data[index]
        return item["image"] if isinstance(item, dict) else item[0]


@checked
def as_dataset(data: object, name: str | None = None) -> Dataset:
    """Accept data sets of other libraries: ``ImageFolder``, ``datasets.Dataset``, a ``DataLoader`` or its data set.

    Class names are taken from the features, or from ``classes``; labels from ``samples``, ``targets``, or the items.
    """
    if isinstance(data, Dataset):
        return data
    if hasattr(data, "dataset") and hasattr(data, "batch_size"):  # a DataLoader
        return as_dataset(data.dataset, name)
    name = name or type(data).__name__
    if isinstance(data, dict) and data:  # a DatasetDict
        splits = ", ".join(map(repr, data))
        example = "test" if "test" in data else next(iter(data))
        raise OtptError(f"{name} holds the splits {splits}; expected one of them, such as data[{example!r}].")
    if hasattr(data, "features") and hasattr(data, "select_columns"):
        split = str(getattr(data, "split", None) or "test")
        title = getattr(getattr(data, "info", None), "dataset_name", None) or name
        return hugging_face_dataset(cast(HubTable, data), title, split=split)
    classes = getattr(data, "classes", None)
    if classes is None or not hasattr(data, "__len__") or not hasattr(data, "__getitem__"):
        raise OtptError(
            f"{name} cannot be evaluated; expected a data set with classes and items (image, label), or an "
            "otpt.data.Dataset."
        )
    names = tuple(map(str, classes))
    class_list = ClassList(names, names)
    samples = getattr(data, "samples", None)
    if samples and isinstance(samples[0][0], (str, Path)):  # ImageFolder: files rather than transformed images
        root = Path(getattr(data, "root", "."))
        files = tuple(_relative(str(Path(path).absolute()), root) for path, _ in samples)
        labels = [label for _, label in samples]
        images = FilesBelow(root, files)
        return own_dataset(name_of(root), class_list, files, labels, images, origin=origin_of(root))
    items = cast(LabelledItems, data)
    targets = getattr(data, "targets", None)
    labels = _item_labels(items) if targets is None else list(targets)
    ids = [str(index) for index in range(len(items))]
    return own_dataset(name, class_list, ids, labels, ItemsOf(items), origin=None)


def _item_labels(data: LabelledItems) -> list[int]:
    """Read the label of every item."""
    labels = []
    for index in range(len(data)):
        item = data[index]
        labels.append(item["label"] if isinstance(item, dict) else item[1])
    return labels
