"""Image features on disk: encoded once, reused by later runs with other methods, prompts, weights or class names.

The key covers all that the features depend on: backbone (weights, precision, compiled or not, kind of device),
preprocessing, view recipe, seed and the image's content. It leaves out the number of views: view v is the same for any
number, so an entry with 64 views also serves a run that needs one. Entries of other kinds are gradients at an initial
context, contexts that are expensive to compute, and digests of image files, which spare a warm run reading them.

An entry is one file: a checksum of key and content, then the content. It is written under a temporary name and renamed,
so several processes may share a cache; a damaged entry is recomputed. The least recently used entries are deleted when
the cache exceeds its bound.
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
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from otpt.errors import OtptError
from otpt.files import remove_leftovers, write_atomically

if TYPE_CHECKING:
    from otpt.backbones import Backbone
    from otpt.views import ViewRecipe

DEFAULT_SIZE = 20 * 10**9
"""Bytes; ImageNet's 50,000 test images take 7.0 GB with 64 views of ViT-B/16 and their gradients."""

KINDS = ("features", "gradients", "contexts", "digests")
"""Kinds of entries: their folder and their suffix."""
_CHECKSUM = 32
_RECENT = 2 * 10**9
"""Nanoseconds after a change of a file in which a second change could go unnoticed."""
_lock = threading.Lock()  # of all caches: an object that holds a lock cannot be sent to other processes


def default_cache_folder() -> Path:
    """``OTPT_CACHE``, or the platform's cache folder of the user."""
    if given := os.environ.get("OTPT_CACHE"):
        return Path(given).expanduser()
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "otpt" / "cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "otpt"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "otpt"


@dataclass(frozen=True)
class CacheInfo:
    """Number of entries with features, gradients and contexts, and the bytes of all entries."""

    folder: Path
    entries: int
    gradients: int
    bytes: int
    contexts: int = 0


class FeatureCache:
    """Arrays by kind and key; thread-safe.

    Args:
        folder: created at the first write.
        max_bytes: bound of its size; exceeded by a twentieth at most for each process that writes.
    """

    def __init__(self, folder: str | Path | None = None, *, max_bytes: int = DEFAULT_SIZE) -> None:
        if max_bytes < 1:
            raise OtptError(f"The size of the feature cache is {max_bytes} bytes; expected 1 or more.")
        self.folder = Path(folder).expanduser() if folder is not None else default_cache_folder()
        self.max_bytes = max_bytes
        self._unchecked_bytes = math.inf  # written since the last check of the bound
        self._writable = True

    def get(self, key: str, *, kind: str = "features") -> npt.NDArray[np.floating] | None:
        """Return the array of a key, or None if it is missing or damaged."""
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
        """Count entries and bytes."""
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
        """Delete the least recently used entries until the size is within its bound."""
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
        with suppress(OSError):  # a read-only cache is still a cache
            os.utime(path)
        return content

    def _write(self, kind: str, key: str, content: bytes) -> None:
        """Write an entry; warn once if the cache is not writable, then leave it alone."""
        if not self._writable:
            return
        checksum = hashlib.sha256(key.encode() + content).digest()
        try:
            write_atomically(self._path(kind, key), checksum + content, durable=False)
        except OtptError as error:
            with _lock:
                first, self._writable = self._writable, False
            if first:
                warnings.warn(f"The feature cache is no longer written: {error}", stacklevel=3)
            return
        self._unchecked_bytes += len(content)
        if self._unchecked_bytes > self.max_bytes // 20:
            self.shrink()

    def _entries(self) -> Iterator[tuple[int, int, Path]]:
        """(time of last use, bytes, file) of each entry."""
        for kind in KINDS:
            paths: list[Path] = []
            with suppress(OSError):  # a folder that cannot be listed now
                paths += (self.folder / kind).glob(f"*/*.{kind}")
            for path in paths:
                with suppress(OSError):  # another process may just have deleted it
                    stat = path.stat()
                    yield stat.st_mtime_ns, stat.st_size, path

    def _path(self, kind: str, key: str) -> Path:
        return self.folder / kind / key[:2] / f"{key}.{kind}"


def feature_key(backbone: Backbone, recipe: ViewRecipe, seed: int, features: str, image: str) -> str:
    """64 hexadecimal digits of all that the features of an image depend on."""
    facts = {
        "backbone": backbone.fingerprint,
        "precision": backbone.precision,
        "compiled": backbone.compiled,
        "device": backbone.device.type,
        "preprocessing": asdict(backbone.preprocessing),
        "views": recipe.kind,
        "seed": seed,
        "features": features,
        "image": image,
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def file_key(source: Any) -> str | None:
    """64 hexadecimal digits of a file's path, size and times of its last changes.

    None for images that are not files, and for a file that changed within the last two seconds.
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
    return hashlib.sha256(facts.encode("utf-8", "surrogatepass")).hexdigest()
