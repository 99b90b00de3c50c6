"""Cache of image features on disk, shared by runs with different methods, prompts, weights and class names.

The key contains everything that determines the features: backbone (weights, precision, compilation, device type),
preprocessing, view recipe, seed and image content. It does not contain the number of views: an entry with 64 views also
serves a run with one view. Other kinds of entries are gradients at an initial context, contexts that are expensive to
compute, and digests of image files, so that unchanged files are not read again.

An entry is a file with a checksum of key and content, followed by the content. It is written atomically, so processes
can share a cache. A corrupt entry is recomputed. When the cache exceeds its maximum size, the least recently used
entries are deleted.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from otpt.backbones import ImageEncoder
from otpt.errors import OtptError
from otpt.files import remove_leftovers, write_atomically
from otpt.views import ViewRecipe

DEFAULT_SIZE = 20 * 10**9
"""Default size in bytes; the 50,000 validation images of ImageNet need 7.0 GB (ViT-B/16, 64 views, with gradients)."""

KINDS = ("features", "gradients", "contexts", "digests")
"""Kinds of entries, also their folders and suffixes."""
_CHECKSUM = 32
_RECENT = 2 * 10**9
"""Time in nanoseconds within which a second change of a file may leave its modification time unchanged."""
_lock = threading.Lock()  # global, because objects with a lock cannot be pickled


def default_cache_folder() -> Path:
    """Return ``OTPT_CACHE``, or the platform's cache folder of the user."""
    if folder := os.environ.get("OTPT_CACHE"):
        return Path(folder).expanduser()
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "otpt" / "cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "otpt"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "otpt"


@dataclass(frozen=True)
class CacheInfo:
    """Numbers of features (``entries``), gradients and contexts in a cache, and its size in bytes."""

    folder: Path
    entries: int
    gradients: int
    bytes: int
    contexts: int = 0


class FeatureCache:
    """Thread-safe cache of arrays by kind and key.

    Args:
        folder: folder, created on the first write; :func:`default_cache_folder` by default.
        max_bytes: maximum size; may be exceeded by 5 % per writing process.
    """

    def __init__(self, folder: str | Path | None = None, *, max_bytes: int = DEFAULT_SIZE) -> None:
        if max_bytes < 1:
            raise OtptError(f"The size of the feature cache is {max_bytes} bytes; expected 1 or more.")
        self.folder = Path(folder).expanduser() if folder is not None else default_cache_folder()
        self.max_bytes = max_bytes
        self._unchecked_bytes = math.inf  # bytes written since the last check of the size
        self._writable = True

    def __repr__(self) -> str:
        return f"FeatureCache({str(self.folder)!r}, max_bytes={self.max_bytes})"

    def get(self, key: str, *, kind: str = "features") -> npt.NDArray[np.floating] | None:
        """Return the array of a key, or None if it is missing or corrupt."""
        data = self._read(kind, key)
        return None if data is None else np.load(io.BytesIO(data), allow_pickle=False)

    def put(self, key: str, values: npt.NDArray[np.floating], *, kind: str = "features") -> None:
        """Store an array."""
        body = io.BytesIO()
        np.save(body, np.ascontiguousarray(values), allow_pickle=False)
        self._write(kind, key, body.getvalue())

    def digest(self, key: str) -> str | None:
        """Return the digest of the image file with this :func:`file_key`, or None."""
        data = self._read("digests", key)
        return None if data is None else data.decode()

    def put_digest(self, key: str, digest: str) -> None:
        """Store the digest of an image file."""
        self._write("digests", key, digest.encode())

    def info(self) -> CacheInfo:
        """Return the number of entries and the size."""
        entries = list(self._entries())
        counts = [sum(path.suffix == f".{kind}" for _, _, path in entries) for kind in KINDS]
        return CacheInfo(self.folder, counts[0], counts[1], sum(size for _, size, _ in entries), counts[2])

    def clear(self) -> CacheInfo:
        """Delete all entries and return their counts."""
        before = self.info()
        for _, _, path in self._entries():
            with suppress(OSError):
                path.unlink()
        return before

    def shrink(self) -> None:
        """Delete the least recently used entries until the cache does not exceed its maximum size."""
        self._unchecked_bytes = 0
        remove_leftovers(self.folder)
        entries = sorted(self._entries())
        total = sum(size for _, size, _ in entries)
        for _, size, path in entries:
            if total <= self.max_bytes:
                break
            with suppress(OSError):
                path.unlink()
            total -= size

    def _read(self, kind: str, key: str) -> bytes | None:
        """Return the content of an entry and mark it as used."""
        path = self._path(kind, key)
        try:
            data = path.read_bytes()
        except OSError:
            return None
        checksum, content = data[:_CHECKSUM], data[_CHECKSUM:]
        if hashlib.sha256(key.encode() + content).digest() != checksum:
            return None
        with suppress(OSError):  # read-only cache
            os.utime(path)
        return content

    def _write(self, kind: str, key: str, content: bytes) -> None:
        """Write an entry; if the cache is not writable, warn once and stop writing."""
        if not self._writable:
            return
        checksum = hashlib.sha256(key.encode() + content).digest()
        try:
            write_atomically(self._path(kind, key), checksum + content, durable=False)
        except OtptError as error:
            with _lock:
                first, self._writable = self._writable, False
            if first:
                warnings.warn(f"Writing to the feature cache is disabled: {error}", stacklevel=3)
            return
        self._unchecked_bytes += len(content)
        if self._unchecked_bytes > self.max_bytes // 20:
            self.shrink()

    def _entries(self) -> Iterator[tuple[int, int, Path]]:
        """Yield (time of last use, bytes, path) of each entry."""
        for kind in KINDS:
            paths: list[Path] = []
            with suppress(OSError):  # folder not readable
                paths += (self.folder / kind).glob(f"*/*.{kind}")
            for path in paths:
                with suppress(OSError):  # deleted by another process
                    stat = path.stat()
                    yield stat.st_mtime_ns, stat.st_size, path

    def _path(self, kind: str, key: str) -> Path:
        return self.folder / kind / key[:2] / f"{key}.{kind}"


def feature_key(backbone: ImageEncoder, recipe: ViewRecipe, seed: int, features: str, image: str) -> str:
    """Return the cache key of the features of an image, 64 hexadecimal digits."""
    facts = {
        "backbone": backbone.fingerprint,
        "precision": backbone.precision,
        "compiled": backbone.compiled,
        "device": backbone.device.type,
        "preprocessing": backbone.preprocessing.facts(),
        "views": recipe.kind,
        "seed": seed,
        "features": features,
        "image": image,
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def file_key(source: object, *, upright: bool = True) -> str | None:
    """Return a digest of a file's path, size and modification times, as 64 hexadecimal digits.

    Images whose EXIF orientation is ignored have other keys than ``upright`` ones, because their pixels differ.

    Return None for images that are not files, and for files modified within the last two seconds.
    """
    if not isinstance(source, (str, Path)):
        return None
    try:
        path = Path(source).absolute()
        stat = path.stat()
    except (OSError, ValueError):
        return None
    if time.time_ns() - stat.st_mtime_ns < _RECENT:
        return None
    facts = f"{stat.st_size} {stat.st_mtime_ns} {stat.st_ctime_ns} {path}"
    if not upright:
        facts += "\nEXIF orientation ignored"
    return hashlib.sha256(facts.encode("utf-8", "surrogatepass")).hexdigest()
