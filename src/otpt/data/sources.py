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

Addresses (``s3://``, ``gs://``, ``hf://`` …) are read by fsspec. Names are sorted in pieces on the disk where there are
many, so that ten million files take no more memory than a thousand.
"""

from __future__ import annotations

import csv
import glob
import heapq
import importlib
import io
import os
import re
import sys
import tarfile
import tempfile
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from itertools import chain, count, islice
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from otpt.data.dataset import IMAGE_SUFFIXES, NoSuchSplit
from otpt.errors import OtptError, cannot_read
from otpt.images import ImageSource, NamedImage, is_url

STANDARD_INPUT = "<stdin>"
TABLES = (".parquet", ".arrow", ".feather", ".csv", ".tsv")
IMAGE_COLUMNS = ("image", "img", "bytes", "jpg", "png", "path", "file", "filename", "file_name", "url")
ID_COLUMNS = ("id", "key", "__key__", "image_id")
FEATURE = "feature"
"""Name of the column of image features in a table."""

_AT_ONCE = 500_000  # names that are sorted in memory
_ROWS = 64  # of a table that are in memory
_MOST_SHARDS = 100_000
_CHECKED = 64  # addresses that are looked up before a model is loaded
_REFUSED = ("credential", "forbidden", "denied", "permission", "unauthorized", "accesskey", "profile")


class SourceError(OtptError):
    """Raised if a storage, rather than a single image, cannot be read."""


class FeatureRow(NamedTuple):
    """A row of a table of features: (D,), or None and why there is none."""

    id: str
    feature: npt.NDArray[np.floating] | None
    error: str | None


class Source:
    """Iterable of the images named by words; each iteration starts at the first image.

    Args:
        words: see the module.
        column: of tables, that holds the images; a known name by default.
        split: of Hugging Face data sets.
    """

    def __init__(self, words: Sequence[str], *, column: str | None = None, split: str = "test") -> None:
        if words.count(STANDARD_INPUT) > 1:
            raise OtptError("Standard input (-) was given twice, but it contains one image; remove one of them.")
        self._words = [os.path.expanduser(word) for word in words]
        self._column, self._split = column, split
        addresses = [word for word in self._words if is_remote(word)]
        for word in [] if self.has_features else self._words:  # fail early
            if word not in addresses[_CHECKED:] and next(self._items(word, check=True), None) is None:
                raise OtptError(f"{word!r} holds no images ({', '.join(sorted(IMAGE_SUFFIXES))}).")

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the images, or the rows of tables with features."""
        return self._features() if self.has_features else chain.from_iterable(map(self._items, self._words))

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
        found = next(_batches(self._words[0])).schema.metadata or {}
        return {key.decode(): value.decode("utf-8", "replace") for key, value in found.items()}

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
                    yield FeatureRow(str(name), np.asarray(value.values) if value.is_valid else None, error)

    def count(self) -> int | None:
        """Return the number of images, or None if it is unknown without reading them."""
        total = 0
        for word in self._words:
            if is_shards(word) or word.startswith("hf:") or _suffix(word) in TABLES:
                return None
            total += sum(1 for _ in self._items(word))
        return total

    def _items(self, word: str, *, check: bool = False, listed: bool = False) -> Iterator[NamedImage]:
        """Yield the images of a word; ``listed`` words are not looked up."""
        if word == STANDARD_INPUT:
            yield NamedImage(word, sys.stdin.buffer.read)
        elif word.startswith("hf:") and not word.startswith("hf://"):
            yield from _hugging_face(word, self._split, self._column)
        elif word.startswith("@"):
            for line in _lines(word[1:]):
                yield from self._items(line, listed=True)
        elif is_shards(word):
            for shard in [word] if _exists(word) else _shards(word):
                yield from (NamedImage(f"{shard}/{name}", read) for name, read in tar_members(shard))
        elif _suffix(word) in TABLES and not _is_pattern(word):
            yield from _rows(word, self._column)
        elif listed or (is_url(word) and not word.endswith("/")):
            yield _one(word)
        elif _is_pattern(word) and not _exists(word):
            for match in _matches(word):
                yield from self._items(match)
        elif _is_folder(word):
            below = _remote_images(word) if is_remote(word) else images_below(word)
            yield from (_one(name if is_remote(word) else os.path.join(word, name)) for name in below)
        elif check and not _exists(word):
            raise OtptError(f"There is no image or folder {word!r}; check the path.")
        else:
            yield _one(word)


def open_source(*words: str, column: str | None = None, split: str = "test") -> Source:
    """Open folders, patterns, lists, shards, tables, data sets and addresses of images; see the module.

    >>> next(iter(open_source("photos/"))).id  # doctest: +SKIP
    'photos/cat.jpg'
    """
    return Source([str(word) for word in words], column=column, split=split)


def is_remote(word: str) -> bool:
    """Return whether a word is an address such as ``s3://bucket/name``."""
    return re.match(r"[a-z0-9+.-]+://", word, re.IGNORECASE) is not None


def file_system(address: str) -> tuple[Any, str]:
    """Return the fsspec file system of an address or a local path, and the path on it."""
    from fsspec.core import url_to_fs

    with reading(address):  # an unknown protocol, a missing package, a malformed address, missing credentials
        found: tuple[Any, str] = url_to_fs(address, use_listings_cache=False)
    return found


def read_address(address: str) -> bytes:
    """Return the bytes of a file at an address; thread-safe."""
    fs, path = file_system(address)
    with reading(address):
        data: bytes = fs.cat_file(path)
    return data


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
        refused = any(each in f"{type(error).__name__} {reason}".lower() for each in _REFUSED)
        remedy = "check the credentials of this storage" if refused and is_remote(address) else "check it and try again"
        raise SourceError(f"Cannot read {address!r}: {reason}; {remedy}.") from None


def sort_names(names: Iterable[str], at_once: int = _AT_ONCE) -> Iterator[str]:
    """Yield sorted names; more than ``at_once`` names are sorted externally in temporary files."""
    names = iter(names)
    piece = sorted(islice(names, at_once))
    if len(piece) < at_once:
        yield from piece
        return
    files = []
    while piece:
        file = tempfile.TemporaryFile("w+", encoding="utf-8", errors="surrogateescape", newline="\n")  # noqa: SIM115
        file.writelines(name.replace("\n", "\0") + "\n" for name in piece)  # names have no zero bytes
        file.seek(0)
        files.append(file)
        piece = sorted(islice(names, at_once))
    yield from heapq.merge(*map(_names, files))


def _names(file: IO[str]) -> Iterator[str]:
    with file:
        for line in file:
            yield line[:-1].replace("\0", "\n")


def _one(word: str) -> NamedImage:
    """Return a single file; http(s) addresses and local files use the common reader."""
    if is_remote(word) and not is_url(word):
        return NamedImage(word, partial(read_address, word))
    return NamedImage(word, partial(_given, word))


def _given(value: Any) -> Any:
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


def _is_pattern(word: str) -> bool:
    return not is_url(word) and glob.has_magic(word)


def _exists(word: str) -> bool:
    return _ask("exists", word) if is_remote(word) else os.path.lexists(word)


def _is_folder(word: str) -> bool:
    return _ask("isdir", word) if is_remote(word) else os.path.isdir(word)


def _ask(question: str, address: str) -> bool:
    fs, path = file_system(address)
    with reading(address):
        return bool(getattr(fs, question)(path))


def _matches(word: str) -> Iterator[str]:
    """Yield the sorted files and folders that match a pattern."""
    if not is_remote(word):
        yield from sort_names(glob.iglob(word, recursive=True))
        return
    fs, path = file_system(word)
    with reading(word):
        found = fs.glob(path)
    yield from (fs.unstrip_protocol(each) for each in sorted(found))


def _remote_images(folder: str) -> Iterator[str]:
    fs, path = file_system(folder)
    with reading(folder):
        for where, _, files in fs.walk(path):
            for name in sorted(files):
                if _suffix(name) in IMAGE_SUFFIXES:
                    yield fs.unstrip_protocol(f"{where}/{name}")


def images_below(folder: str | Path, *, follow_links: bool = False, below: str = "") -> Iterator[str]:
    """Yield the sorted paths of image files below a local folder, relative to it."""
    try:
        for name in sort_names(_entries(os.path.join(folder, below), follow_links)):
            if name.endswith("/"):
                yield from images_below(folder, follow_links=follow_links, below=below + name)
            else:
                yield below + name
    except OSError as error:
        raise cannot_read("folder", folder, error) from None


def _entries(folder: str, follow_links: bool) -> Iterator[str]:
    """Yield the names of images, and of folders with a trailing slash."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.is_dir(follow_symlinks=follow_links):
                yield f"{entry.name}/"
            elif _suffix(entry.name) in IMAGE_SUFFIXES and entry.is_file():
                yield entry.name


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


def _shards(word: str) -> list[str]:
    found = list(_matches(word)) if _is_pattern(word) else expand_braces(word)
    missing = [] if is_remote(word) else [each for each in found if not os.path.exists(each)]
    if missing or not found:
        raise OtptError(f"There is no tar file {(missing or [word])[0]!r}; check the path.")
    return found


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
                    yield member.name, partial(_given, content.read())
        # A damaged header ends the iteration like the two empty blocks of a whole file.
        assert archive.fileobj is not None
        archive.fileobj.seek(archive.offset)
        block = archive.fileobj.read(tarfile.BLOCKSIZE)
        if len(block) < tarfile.BLOCKSIZE or any(block):
            raise tarfile.ReadError(f"it is damaged or cut off at byte {archive.offset}")


def table_columns(address: str) -> list[str]:
    """Return the columns of a Parquet or Arrow file, or none if it is missing."""
    first = None if _is_pattern(address) or not _exists(address) else next(_batches(address), None)
    return [] if first is None else list(first.schema.names)


def _batches(address: str) -> Iterator[Any]:
    """Record batches of a few rows of a Parquet or Arrow file, one at a time in memory."""
    import pyarrow as pa  # type: ignore[import-untyped]
    from pyarrow import parquet

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


def _table_rows(address: str) -> Iterator[Mapping[str, Any]]:
    if _suffix(address) in (".csv", ".tsv"):
        with _open_binary(address) as file, io.TextIOWrapper(file, "utf-8-sig", newline="") as text:
            yield from csv.DictReader(text, delimiter="\t" if _suffix(address) == ".tsv" else ",")
        return
    for batch in _batches(address):
        yield from batch.to_pylist()


def _rows(address: str, column: str | None) -> Iterator[NamedImage]:
    """Yield the images of a table's rows."""
    for number, row in enumerate(_table_rows(address)):
        yield _row_image(row, column, f"{address}#{number}", os.path.dirname(address))


def _row_image(row: Mapping[str, Any], column: str | None, name: str, folder: str) -> NamedImage:
    """Return the image of a row: bytes, a path or address, or both in Hugging Face's format."""
    column = column or next((each for each in IMAGE_COLUMNS if each in row), "")
    if column not in row:
        raise OtptError(
            f"{name.rpartition('#')[0] or name!r} has the columns {', '.join(map(str, row))}; name the one that holds "
            "the images with --column."
        )
    key = next((str(row[each]) for each in ID_COLUMNS if row.get(each) not in (None, "")), None)
    value = row[column]
    if isinstance(value, Mapping):
        value = value.get("bytes") or value.get("path")
    if isinstance(value, str) and value:
        return NamedImage(key or value, _one(_beside(folder, value)).read)
    if isinstance(value, bytes):
        return NamedImage(key or name, partial(_given, value))
    return NamedImage(key or name, partial(_no_image, name, column, value))


def _no_image(name: str, column: str, value: Any) -> ImageSource:
    raise OtptError(f"{name} has {value!r:.100} in the column {column!r}; expected bytes, a path or an address.")


def hub_table(name: str, split: str, *, streaming: bool = False) -> Any:
    """Load a split of a Hugging Face data set; with ``streaming`` its rows are read lazily."""
    try:
        library: Any = importlib.import_module("datasets")
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


def undecoded(table: Any, column: str) -> Any:
    """Return the table with undecoded files in an Image column; :mod:`otpt.images` decodes them."""
    library: Any = importlib.import_module("datasets")
    return table.cast_column(column, library.Image(decode=False))


def _hugging_face(word: str, split: str, column: str | None) -> Iterator[NamedImage]:
    """Yield the rows of a Hugging Face data set lazily."""
    table = hub_table(word.removeprefix("hf:"), split, streaming=True)
    features = table.features or {}
    images = column or next((name for name, kind in features.items() if type(kind).__name__ == "Image"), None)
    if images is not None and type(features.get(images)).__name__ == "Image":
        table = undecoded(table, images)
    for number, row in enumerate(table):
        yield _row_image(row, images, f"{word}#{split}/{number}", "")
