"""Lazily listed images without labels from local and remote sources.

| word | images |
|---|---|
| ``photo.jpg``, ``https://…/photo.jpg``, ``s3://bucket/photo.jpg`` | one |
| ``photos/``, ``s3://bucket/photos`` | all below a folder, sorted |
| ``photos/*/1*.jpg`` | the matches of a pattern, sorted; also folders, shards and tables |
| ``@list.txt`` | a file with one path or address per line |
| ``x-{000..009}.tar``, ``x.tar.gz`` | the members of tar shards (WebDataset), in their order |
| ``x.parquet``, ``x.arrow``, ``x.csv`` | the rows of a table with a column of bytes, paths or addresses |
| ``hf:owner/name@configuration`` | a split of a Hugging Face data set |
| ``emoji/food``, ``dtd`` | a registered data set, by :func:`otpt.data.open_source` |

Addresses (``s3://``, ``gs://``, ``hf://`` …) are read by fsspec.
"""

from __future__ import annotations

import csv
import glob
import importlib
import io
import os
import re
import sys
import tarfile
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property, partial
from itertools import chain, count
from types import MappingProxyType
from typing import IO, NamedTuple, Protocol, TypeVar, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]
from fsspec.core import url_to_fs
from pyarrow import parquet

from otpt.data.dataset import Dataset, NoSuchSplit
from otpt.errors import OtptError
from otpt.folders import IMAGE_SUFFIXES, images_below, sort_names
from otpt.images import ImageFeatures, ImageSource, LocalFile, NamedImage, is_url

STANDARD_INPUT = "<stdin>"
TABLES = (".parquet", ".arrow", ".feather", ".csv", ".tsv")
IMAGE_COLUMNS = ("image", "img", "bytes", "jpg", "png", "path", "file", "filename", "file_name", "url")
"""Columns of tables that hold images, paths or addresses, the first one that is there counts."""
HUGGING_FACE_FILES = frozenset(("state.json", "dataset_dict.json", "dataset_info.json"))
"""Files in the folder of a saved Hugging Face data set."""
ID_COLUMNS = ("id", "key", "__key__", "image_id")
FEATURE = "feature"
"""Name of the column of image features in a table."""

_ROWS = 64  # of a table that are in memory
_MOST_SHARDS = 100_000
_CHECKED = 64  # addresses that are looked up before a model is loaded
_REFUSED = ("credential", "forbidden", "denied", "permission", "unauthorized", "accesskey", "profile")
_T = TypeVar("_T")


class FileSystem(Protocol):
    """File system of fsspec, as far as it is used here and by writers of predictions."""

    def exists(self, path: str) -> bool: ...

    def isdir(self, path: str) -> bool: ...

    def isfile(self, path: str) -> bool: ...

    def glob(self, path: str) -> list[str]: ...

    def walk(self, path: str) -> Iterator[tuple[str, list[str], list[str]]]: ...

    def ls(self, path: str, detail: bool = True) -> list[str]: ...

    def unstrip_protocol(self, name: str) -> str: ...

    def open(self, path: str, mode: str = "rb") -> AbstractContextManager[IO[bytes]]: ...

    def cat_file(self, path: str) -> bytes: ...

    def pipe_file(self, path: str, value: bytes) -> None: ...

    def put_file(self, lpath: str, rpath: str) -> None: ...

    def makedirs(self, path: str, exist_ok: bool = False) -> None: ...

    def mv(self, path1: str, path2: str) -> None: ...

    def rm_file(self, path: str) -> None: ...


class HubTable(Protocol):
    """Split of a Hugging Face data set, as far as it is used here."""

    @property
    def features(self) -> Mapping[str, object] | None: ...

    def __iter__(self) -> Iterator[Mapping[str, object]]: ...

    @overload
    def __getitem__(self, key: int, /) -> Mapping[str, object]: ...

    @overload
    def __getitem__(self, key: str, /) -> Sequence[object]: ...

    def select_columns(self, column_names: list[str]) -> HubTable: ...

    def cast_column(self, column: str, feature: object) -> HubTable: ...


class SourceError(OtptError):
    """Raised if a storage, rather than a single image, cannot be read."""


class Unknown(NamedTuple):
    """A number that cannot be known without reading all images.

    Attributes:
        reason: why, such as "x.tar.gz is compressed".
    """

    reason: str


class FeatureRow(NamedTuple):
    """A row of a table of features: (D,), or None and why there is none."""

    id: str
    feature: npt.NDArray[np.floating] | None
    error: str | None

    def read(self) -> ImageFeatures:
        """Return the feature in place of an image, or raise ``OtptError`` if there is none."""
        if self.feature is None:
            raise OtptError(f"The row {self.id!r} has no feature ({self.error or 'it is empty'}).")
        return ImageFeatures(self.feature[None].astype(np.float32))


class Source:
    """Iterable of the images named by words; each iteration starts at the first image.

    Args:
        words: see the module.
        column: of tables, that holds the images; a known name by default.
        split: of Hugging Face data sets.
        datasets: data sets by the word that stands for their images.
    """

    def __init__(
        self,
        words: Sequence[str],
        *,
        column: str | None = None,
        split: str = "test",
        datasets: Mapping[str, Dataset] = MappingProxyType({}),
    ) -> None:
        if words.count(STANDARD_INPUT) > 1:
            raise OtptError("Standard input (-) was given twice, but it contains one image; remove one of them.")
        self._words = [table for word in words for table in _tables_of(os.path.expanduser(word))]
        self._column, self._split = column, split
        self.datasets = datasets
        addresses = [word for word in self._words if is_remote(word)]
        for word in [] if self.has_features else self._words:  # fail early
            if word not in addresses[_CHECKED:] and next(self._items(word, check=True), None) is None:
                refuse_saved(word)
                raise OtptError(f"{word!r} holds no images ({', '.join(sorted(IMAGE_SUFFIXES))}).")

    def __iter__(self) -> Iterator[NamedImage | FeatureRow]:
        """Iterate over the images, or the rows of tables with features."""
        return self._features() if self.has_features else chain.from_iterable(map(self._items, self._words))

    def __repr__(self) -> str:
        return f"Source({', '.join(map(repr, self._words)):.200})"

    def __str__(self) -> str:
        return ", ".join(self._words)

    @property
    def words(self) -> tuple[str, ...]:
        """Words that name the images."""
        return tuple(self._words)

    @property
    def is_remote(self) -> bool:
        """Whether images are read over a network, where more of them should be read ahead."""
        return any(is_remote(word) or word.startswith("@") for word in self._words)

    @property
    def reads_standard_input(self) -> bool:
        """Whether an image comes from the standard input of this process."""
        return STANDARD_INPUT in self._words

    @cached_property
    def has_features(self) -> bool:
        """Whether these are tables with a column of features instead of images."""
        first = self._words[0]
        return _suffix(first) in (".parquet", ".arrow", ".feather") and FEATURE in table_columns(first)

    @property
    def metadata(self) -> dict[str, str]:
        """The metadata of the first table."""
        metadata = next(_batches(self._words[0])).schema.metadata or {}
        return {key.decode(): value.decode("utf-8", "replace") for key, value in metadata.items()}

    def _features(self) -> Iterator[FeatureRow]:
        for word in self._words:
            if _suffix(word) not in TABLES or FEATURE not in table_columns(word):
                raise OtptError(f"{word!r} is no table with a column {FEATURE!r}; predict images separately.")
            numbers = count()
            for batch in _batches(word):
                names = batch.schema.names
                ids = batch.column("id").to_pylist() if "id" in names else [f"{word}#{next(numbers)}" for _ in batch]
                errors = batch.column("error").to_pylist() if "error" in names else [None] * len(batch)
                for name, value, error in zip(ids, batch.column(FEATURE), errors, strict=True):
                    yield _feature_row(str(name), np.asarray(value.values) if value.is_valid else None, error)

    def count(self) -> int | Unknown:
        """Return the number of images or features, or why it is unknown without reading them all."""
        total = 0
        for word in self._words:
            number = self._count(word)
            if isinstance(number, Unknown):
                return number
            total += number
        return total

    def _count(self, word: str, *, listed: bool = False) -> int | Unknown:
        """Count the images of a word, as :meth:`_items` yields them."""
        inside: Iterable[str] = ()
        if word in self.datasets:
            return len(self.datasets[word])
        if word.startswith("hf:") and not word.startswith("hf://"):
            return count_hub_rows(word, self._split)
        if word.startswith("@"):
            inside = _lines(word[1:])
        elif is_shards(word):
            return _count_members([word] if _exists(word) else list_shards(word))
        elif is_table(word):
            return count_rows(word)
        elif not listed and is_pattern(word) and not _exists(word):
            inside = _matches(word)
        else:
            return sum(1 for _ in self._items(word, listed=listed))
        total = 0
        for part in inside:
            number = self._count(part, listed=word.startswith("@"))
            if isinstance(number, Unknown):
                return number
            total += number
        return total

    def _items(self, word: str, *, check: bool = False, listed: bool = False) -> Iterator[NamedImage]:
        """Yield the images of a word; ``listed`` words are not looked up."""
        if word in self.datasets:
            dataset = self.datasets[word]
            yield from (NamedImage(f"{word}/{dataset.ids[i]}", dataset.reader(i)) for i in range(len(dataset)))
        elif word == STANDARD_INPUT:
            yield NamedImage(word, sys.stdin.buffer.read)
        elif word.startswith("hf:") and not word.startswith("hf://"):
            yield from _hugging_face(word, self._split, self._column)
        elif word.startswith("@"):
            for line in _lines(word[1:]):
                yield from self._items(line, listed=True)
        elif is_shards(word):
            for shard in [word] if _exists(word) else list_shards(word):
                yield from (NamedImage(f"{shard}/{name}", read) for name, read in tar_members(shard))
        elif is_table(word):
            yield from _rows(word, self._column)
        elif listed or (is_url(word) and not word.endswith("/")):
            yield _one(word)
        elif is_pattern(word) and not _exists(word):
            for match in _matches(word):
                yield from self._items(match)
        elif _is_folder(word):
            below = _remote_images(word) if is_remote(word) else images_below(word)
            yield from (_one(name if is_remote(word) else os.path.join(word, name)) for name in below)
        elif check and not _exists(word):
            raise OtptError(f"There is no image or folder {word!r}; check the path.")
        elif check and _suffix(word) == ".npz":
            raise OtptError(
                f"{word!r} is a file of labelled features, which only 'otpt evaluate' and 'otpt calibrate' take; "
                "'otpt predict' takes the Parquet files of 'otpt embed'."
            )
        else:
            yield _one(word)


def _feature_row(name: str, feature: npt.NDArray[np.floating] | None, error: str | None) -> FeatureRow:
    """Return a row of a table, whose feature is left out if it has no direction."""
    if feature is not None and not (np.isfinite(feature).all() and feature.any()):
        return FeatureRow(name, None, f"The feature of {name!r} is NaN or zero.")
    return FeatureRow(name, feature, error)


def parts_of_table(folder: str) -> list[str]:
    """Return the Parquet parts in a local folder without images, as ``otpt embed`` writes them, sorted."""
    if not os.path.isdir(folder) or next(images_below(folder), None) is not None:
        return []
    return sorted(glob.glob(os.path.join(glob.escape(folder), "*.parquet")))


def _tables_of(word: str) -> list[str]:
    """Return the parts of features in a folder, or the word itself."""
    parts = parts_of_table(word)
    return parts if parts and FEATURE in table_columns(parts[0]) else [word]


def refuse_saved(folder: str) -> None:
    """Raise an :class:`OtptError` for the folder of a saved Hugging Face data set, which needs a prefix."""
    if os.path.isdir(folder) and not HUGGING_FACE_FILES.isdisjoint(os.listdir(folder)):
        raise OtptError(f"{folder!r} is a saved data set of Hugging Face; write hf:{folder}.")


def is_remote(word: str) -> bool:
    """Return whether a word is an address such as ``s3://bucket/name``."""
    return re.match(r"[a-z0-9+.-]+://", word, re.IGNORECASE) is not None


def file_system(address: str) -> tuple[FileSystem, str]:
    """Return the fsspec file system of an address or a local path, and the path on it."""
    with reading(address):  # an unknown protocol, a missing package, a malformed address, missing credentials
        fs, path = url_to_fs(address, use_listings_cache=False)
    return fs, path


def read_address(address: str) -> bytes:
    """Return the bytes of a file at an address; thread-safe."""
    fs, path = file_system(address)
    with reading(address):
        return fs.cat_file(path)


@contextmanager
def reading(address: str) -> Iterator[None]:
    """Turn the errors of file systems and tables into one sentence about the address."""
    try:
        yield
    except OtptError:
        raise
    except FileNotFoundError:
        raise OtptError(f"There is no file {address!r}; check the path.") from None
    except ImportError as error:
        raise OtptError(f"{address!r} needs a package ({error}); pip install 'otpt[remote]'.") from None
    except Exception as error:  # each file system has its own
        reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        refused = any(word in f"{type(error).__name__} {reason}".lower() for word in _REFUSED)
        remedy = "check the credentials of this storage" if refused and is_remote(address) else "check it and try again"
        raise SourceError(f"Cannot read {address!r}: {reason}; {remedy}.") from None


def _one(word: str) -> NamedImage:
    """Return a single file; http(s) addresses and local files use the common reader."""
    if is_remote(word) and not is_url(word):
        return NamedImage(word, partial(read_address, word))
    return NamedImage(word, partial(_constant, word) if is_url(word) else LocalFile(word))


def _constant(value: _T) -> _T:
    return value


def _range(path: str, offset: int, size: int) -> bytes:
    with reading(path), open(path, "rb") as file:
        file.seek(offset)
        data = file.read(size)
    if len(data) < size:
        raise SourceError(f"The tar file {path!r} is cut off; copy it again.")
    return data


def _suffix(word: str) -> str:
    return os.path.splitext(word.partition("?")[0] if is_url(word) else word)[1].lower()


def is_pattern(word: str) -> bool:
    """Return whether a word has wildcards."""
    return not is_url(word) and glob.has_magic(word)


def is_table(word: str) -> bool:
    """Return whether a word is the path or address of a table."""
    return _suffix(word) in TABLES and not is_pattern(word)


def _exists(word: str) -> bool:
    if not is_remote(word):
        return os.path.lexists(word)
    fs, path = file_system(word)
    with reading(word):
        return fs.exists(path)


def _is_folder(word: str) -> bool:
    if not is_remote(word):
        return os.path.isdir(word)
    fs, path = file_system(word)
    with reading(word):
        return fs.isdir(path)


def _matches(word: str) -> Iterator[str]:
    """Yield the sorted files and folders that match a pattern."""
    if not is_remote(word):
        yield from sort_names(glob.iglob(word, recursive=True))
        return
    fs, path = file_system(word)
    with reading(word):
        matches = fs.glob(path)
    yield from map(fs.unstrip_protocol, sorted(matches))


def _remote_images(folder: str) -> Iterator[str]:
    fs, path = file_system(folder)
    with reading(folder):
        for where, _, files in fs.walk(path):
            for name in sorted(files):
                if _suffix(name) in IMAGE_SUFFIXES:
                    yield fs.unstrip_protocol(f"{where}/{name}")


@contextmanager
def _open_binary(address: str) -> Iterator[IO[bytes]]:
    fs, path = file_system(address)
    with reading(address), fs.open(path, "rb") as file:
        yield file


def _lines(address: str) -> Iterator[str]:
    """Yield the lines of a list; paths are relative to its folder if the first one exists there."""
    folder = None
    with _open_binary(address) as file, io.TextIOWrapper(file, "utf-8-sig", "surrogateescape") as text:
        for name in filter(None, map(str.strip, text)):
            if folder is None:
                inside = is_remote(address) or os.path.lexists(os.path.join(os.path.dirname(address), name))
                folder = os.path.dirname(address) if inside else ""
            yield _beside(folder, name)


def _beside(folder: str, name: str) -> str:
    return name if os.path.isabs(name) or is_remote(name) else os.path.join(folder, name)


def list_shards(word: str) -> list[str]:
    """Return the tar files of a pattern or of braces."""
    shards = list(_matches(word)) if is_pattern(word) else expand_braces(word)
    missing = [] if is_remote(word) else [shard for shard in shards if not os.path.exists(shard)]
    if missing or not shards:
        raise OtptError(f"There is no tar file {(missing or [word])[0]!r}; check the path.")
    return shards


def is_shards(spec: str) -> bool:
    """Return whether a spec names tar files."""
    return spec.lower().endswith((".tar", ".tar.gz", ".tgz"))


def expand_braces(spec: str) -> list[str]:
    """Expand ``x-{08..11}.tar`` to x-08.tar … x-11.tar, and ``{a,b}`` to a and b.

    >>> expand_braces("x-{8..10}.tar")
    ['x-8.tar', 'x-9.tar', 'x-10.tar']
    """
    match = re.search(r"\{([^{}]*)\}", spec)
    if match is None:
        return [spec]
    parts = match[1].split(",")
    if numbers := re.fullmatch(r"(\d+)\.\.(\d+)", match[1]):
        first, last = int(numbers[1]), int(numbers[2])
        if not first <= last < first + _MOST_SHARDS:
            raise OtptError(f"{spec!r} names no shards, or more than {_MOST_SHARDS:,}; expected {{first..last}}.")
        width = len(numbers[1]) if numbers[1].startswith("0") else 0
        parts = [f"{number:0{width}d}" for number in range(first, last + 1)]
    rest = expand_braces(spec[match.end() :])
    if len(parts) * len(rest) > _MOST_SHARDS:
        raise OtptError(f"{spec!r} names {len(parts) * len(rest):,} shards; expected at most {_MOST_SHARDS:,}.")
    return [f"{spec[: match.start()]}{part}{end}" for part in parts for end in rest]


def tar_members(shard: str, suffixes: Container[str] = IMAGE_SUFFIXES) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """Yield name and content of the files in a tar file with one of these suffixes.

    A local file without compression is read by offsets when the content is needed, others from start to end.
    """
    with _open_binary(shard) as file, tarfile.open(fileobj=file, mode="r:*") as archive:
        by_offset = not is_remote(shard) and archive.fileobj is file
        while (member := archive.next()) is not None:
            archive.members.clear()  # type: ignore[attr-defined]  # else it remembers them all
            if member.isfile() and _suffix(member.name) in suffixes:
                if by_offset and not member.issparse():
                    yield member.name, partial(_range, shard, member.offset_data, member.size)
                elif (content := archive.extractfile(member)) is not None:
                    yield member.name, partial(_constant, content.read())
        # A damaged header ends the iteration like the two empty blocks of a whole file.
        assert archive.fileobj is not None
        archive.fileobj.seek(archive.offset)
        block = archive.fileobj.read(tarfile.BLOCKSIZE)
        if len(block) < tarfile.BLOCKSIZE or any(block):
            raise tarfile.ReadError(f"it is damaged or cut off at byte {archive.offset}")


def _count_members(shards: Sequence[str]) -> int | Unknown:
    """Count the images in tar files, by the headers of local ones without compression."""
    for shard in shards:
        if is_remote(shard):
            return Unknown(f"{shard} is remote, and tar files have no index")
        with _open_binary(shard) as file:
            if not tarfile.is_tarfile(file) or _is_compressed(file):
                return Unknown(f"{shard} is compressed")
    return sum(1 for shard in shards for _ in tar_members(shard))


def _is_compressed(file: IO[bytes]) -> bool:
    file.seek(0)
    return file.read(512)[257:262] != b"ustar"


def count_rows(address: str) -> int | Unknown:
    """Count the rows of a table, by its footer if it has one; a remote Arrow file has none."""
    suffix = _suffix(address)
    if suffix == ".parquet":
        with _open_binary(address) as file:
            return int(parquet.ParquetFile(file, pre_buffer=False).metadata.num_rows)
    if suffix in (".csv", ".tsv"):
        return sum(1 for _ in table_rows(address))
    if is_remote(address):
        return Unknown(f"{address} is remote, and Arrow files do not say their number of rows")
    return sum(len(batch) for batch in _batches(address))


def table_columns(address: str) -> list[str]:
    """Return the columns of a Parquet or Arrow file, or none if it is missing."""
    first = None if is_pattern(address) or not _exists(address) else next(_batches(address), None)
    return [] if first is None else [_column_name(name) for name in first.schema.names]


def holds_contents(address: str, column: str | None = None) -> bool:
    """Return whether the images of a Parquet or Arrow file are bytes rather than paths."""
    batch = next(_batches(address), None)
    if batch is None:
        return False
    names = [_column_name(name) for name in batch.schema.names]
    kind = batch.schema.types[names.index(image_column(names, column, address))]
    return not (pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _batches(address: str) -> Iterator[pa.RecordBatch]:
    """Yield record batches of a few rows of a Parquet or Arrow file, one at a time in memory."""
    with _open_binary(address) as file:
        if _suffix(address) == ".parquet":
            yield from parquet.ParquetFile(file, pre_buffer=False).iter_batches(_ROWS)
            return
        try:
            reader = pa.ipc.open_stream(file)
        except pa.ArrowInvalid:
            file.seek(0)
            opened = pa.ipc.open_file(file)
            reader = map(opened.get_batch, range(opened.num_record_batches))
        for batch in reader:
            yield from (batch.slice(start, _ROWS) for start in range(0, len(batch), _ROWS))


def table_rows(address: str) -> Iterator[Mapping[str, object]]:
    """Yield the rows of a table; names of columns are in lower case, cells of CSV files are texts without blanks."""
    if _suffix(address) in (".csv", ".tsv"):
        with _open_binary(address) as file, io.TextIOWrapper(file, "utf-8-sig", newline="") as text:
            head = text.readline()
            tabs = _suffix(address) == ".tsv" or ("\t" in head and "," not in head)  # open_clip's CSVs have tabs
            for row in csv.DictReader(chain([head], text), delimiter="\t" if tabs else ","):
                yield {_column_name(name): (cell or "").strip() for name, cell in row.items() if name is not None}
        return
    for batch in _batches(address):
        for row in batch.to_pylist():
            yield {_column_name(name): cell for name, cell in row.items()}


def _column_name(name: str) -> str:
    return name.strip().lower()


def image_column(columns: Iterable[str], column: str | None, table: str) -> str:
    """Return the column of images: the given one, or the first known name.

    Args:
        columns: columns of the table, in lower case.
        column: name of the column, if it was given.
        table: name of the table in errors.
    """
    columns = list(columns)
    chosen = _column_name(column) if column else next((name for name in IMAGE_COLUMNS if name in columns), "")
    if chosen not in columns:
        raise OtptError(
            f"{table!r} has the columns {', '.join(map(repr, columns)) or 'none'}; name the one that holds the images "
            "with --column."
        )
    return chosen


def _rows(address: str, column: str | None) -> Iterator[NamedImage]:
    """Yield the images of a table's rows."""
    for number, row in enumerate(table_rows(address)):
        images = image_column(row, column, address)
        yield row_image(row, images, f"{address}#{number}", os.path.dirname(address))


def row_image(row: Mapping[str, object], column: str | None, name: str, folder: str) -> NamedImage:
    """Return the image of a row: bytes, a path or address, or both in Hugging Face's format."""
    column = column or image_column(row, None, name.rpartition("#")[0] or name)
    image_id = next((str(row[key]) for key in ID_COLUMNS if row.get(key) not in (None, "")), None)
    value = row[column]
    if isinstance(value, Mapping):
        value = undecoded_image(value)
    if isinstance(value, str) and value:
        return NamedImage(image_id or value, _one(_beside(folder, slashed(value))).read)
    if isinstance(value, bytes):
        return NamedImage(image_id or name, partial(_constant, value))
    return NamedImage(image_id or name, partial(_no_image, name, column, value))


def slashed(path: str) -> str:
    """Return a path in a table with slashes; only a path without any may have been written on Windows."""
    return path if "/" in path else path.replace("\\", "/")


def undecoded_image(cell: object) -> str | bytes | None:
    """Return the bytes or the path in a cell of Hugging Face's format, {"bytes": …, "path": …}; None without."""
    if not isinstance(cell, Mapping):
        return None
    image: str | bytes | None = cell.get("bytes") or cell.get("path")
    return image


def _no_image(name: str, column: str, value: object) -> ImageSource:
    raise OtptError(f"{name} has {value!r:.100} in the column {column!r}; expected bytes, a path or an address.")


def hub_table(name: str, split: str, *, streaming: bool = False) -> HubTable:
    """Load a split of a Hugging Face data set; with ``streaming`` its rows are read lazily."""
    try:
        library = importlib.import_module("datasets")
    except ImportError:
        raise OtptError(f"hf:{name} needs the package datasets: pip install 'otpt[hf]'") from None
    path, _, configuration = name.partition("@")
    folder = os.path.expanduser(path)
    is_folder = bool(path) and os.path.isdir(folder)
    try:
        if is_folder and {"state.json", "dataset_dict.json"} & set(os.listdir(folder)):
            table = library.load_from_disk(folder)
            if hasattr(table, "keys") and split not in table:
                raise ValueError(f"Unknown split {split!r}; available: {', '.join(table)}")
            return table[split] if hasattr(table, "keys") else table
        source = folder if is_folder else path
        return library.load_dataset(source, configuration or None, split=split, streaming=streaming)
    except Exception as error:  # the package raises errors of many other packages
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        kind = NoSuchSplit if reason.startswith(("Unknown split", "Bad split")) else OtptError
        hint = f" A folder of class folders is read without hf:, as {path!r}." if is_folder else ""
        raise kind(f"The data set hf:{name}, split {split!r}, cannot be loaded: {reason}.{hint}") from None


def count_hub_rows(word: str, split: str) -> int | Unknown:
    """Return the number of rows of a Hugging Face data set, as far as it is published."""
    table = hub_table(word.removeprefix("hf:"), split, streaming=True)
    if isinstance(table, Sized):
        return len(table)
    splits = getattr(getattr(table, "info", None), "splits", None) or {}
    published = getattr(splits.get(split), "num_examples", None)
    return int(published) if published else Unknown(f"{word} does not say how many rows the split {split!r} has")


def undecoded(table: HubTable, column: str) -> HubTable:
    """Return the table with undecoded files in an Image column; :mod:`otpt.images` decodes them."""
    library = importlib.import_module("datasets")
    return table.cast_column(column, library.Image(decode=False))


def hub_class_names(table: HubTable, column: str) -> tuple[str, ...] | None:
    """Return the class names of a column of type ClassLabel, or None for another type."""
    feature = (table.features or {}).get(column)
    if type(feature).__name__ != "ClassLabel" or not hasattr(feature, "names"):
        return None
    return tuple(feature.names)


def _hugging_face(word: str, split: str, column: str | None) -> Iterator[NamedImage]:
    """Yield the rows of a Hugging Face data set lazily."""
    table = hub_table(word.removeprefix("hf:"), split, streaming=True)
    features = table.features or {}
    images = column or next((name for name, kind in features.items() if type(kind).__name__ == "Image"), None)
    if images is not None and type(features.get(images)).__name__ == "Image":
        table = undecoded(table, images)
    for number, row in enumerate(table):
        yield row_image(row, images, f"{word}#{split}/{number}", "")
