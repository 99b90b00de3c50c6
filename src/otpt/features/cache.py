"""Image features on disk: encoded once, used by every later run with other methods, prompts, weights or class names.

The key is what the features depend on: backbone (weights, precision, compiled or not, kind of device), preprocessing,
view recipe, seed and the image's content. The number of views is not in it: view v is the same however many there are,
so an entry with 64 views also serves a run that needs one. Entries of other kinds are gradients at an initial context,
contexts that take long to make, and digests of image files, which a warm run then need not read.

An entry is one file: a checksum of key and content, then the array in NumPy's format. It is written under another name
and renamed, so several processes may share a cache; a damaged entry is recomputed. The least recently used entries are
deleted when the cache exceeds its bound.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import sys
import threading
import time
import warnings
from collections.abc import Sequence
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
    """``OTPT_CACHE``, or the user's cache folder by the platform's custom."""
    if given := os.environ.get("OTPT_CACHE"):
        return Path(given).expanduser()
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "otpt" / "cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "otpt"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "otpt"


@dataclass(frozen=True)
class CacheInfo:
    """Content of a cache: images' features, gradients, the bytes of all, and contexts."""

    folder: Path
    entries: int
    gradients: int
    bytes: int
    contexts: int = 0


class FeatureCache:
    """Arrays by kind and key; any thread may read and write.

    Args:
        folder: created when first written to.
        max_bytes: bound of its size; exceeded by a twentieth at most for each process that writes.
    """

    def __init__(self, folder: str | Path | None = None, *, max_bytes: int = DEFAULT_SIZE) -> None:
        if max_bytes < 1:
            raise OtptError(f"The size of the feature cache is {max_bytes} bytes; expected 1 or more.")
        self.folder = Path(folder).expanduser() if folder is not None else default_cache_folder()
        self.max_bytes = max_bytes
        self._since_check: int | None = None
        self._writable = True

    def get(self, key: str, *, kind: str = "features") -> npt.NDArray[np.floating] | None:
        """The array of a key, or None if there is none or it is damaged."""
        path = self._path(kind, key)
        try:
            data = path.read_bytes()
        except OSError:
            return None
        values = _decode(data, key)
        if values is not None:
            with suppress(OSError):  # a read-only cache is still a cache
                os.utime(path)
        return values

    def put(self, key: str, values: npt.NDArray[np.floating], *, kind: str = "features") -> None:
        """Store an array."""
        self._write(kind, key, _encode(values, key))

    def digest(self, key: str) -> str | None:
        """The digest of an image file that looked like ``key`` (:func:`file_key`) when it was read."""
        try:
            return self._path("digests", key).read_text(encoding="ascii")
        except (OSError, ValueError):
            return None

    def put_digest(self, key: str, digest: str) -> None:
        """Store the digest of an image file."""
        self._write("digests", key, digest.encode())

    def _write(self, kind: str, key: str, data: bytes) -> None:
        """Write an entry. A cache that cannot be written is reported once and then left alone."""
        if not self._writable:
            return
        try:
            write_atomically(self._path(kind, key), data, durable=False)
        except OtptError as error:
            with _lock:
                reported, self._writable = not self._writable, False
            if not reported:
                warnings.warn(f"The feature cache is no longer written: {error}", stacklevel=3)
            return
        with _lock:
            checked = self._since_check is not None
            written = self._since_check = (self._since_check or 0) + len(data)
        if not checked or written > self.max_bytes // 20:
            self.shrink()

    def info(self) -> CacheInfo:
        """Entries and bytes, now."""
        return self._info(self._entries())

    def clear(self) -> CacheInfo:
        """Delete all entries; returns what there was."""
        removed = []
        for entry in self._entries():
            with suppress(OSError):
                entry[2].unlink()
                removed.append(entry)
        return self._info(removed)

    def shrink(self) -> None:
        """Delete the least recently used entries until the size is within its bound."""
        self._since_check = 0
        remove_leftovers(self.folder)
        entries = sorted(self._entries())
        total = sum(size for _, size, _ in entries)
        for _, size, path in entries:
            if total <= self.max_bytes:
                break
            with suppress(OSError):
                path.unlink()
            total -= size

    def _entries(self) -> list[tuple[int, int, Path]]:
        """(time of last use, bytes, file) of each entry."""
        found = []
        for kind in KINDS:
            paths: list[Path] = []
            with suppress(OSError):  # a folder that cannot be listed now
                paths += (self.folder / kind).glob(f"*/*.{kind}")
            for path in paths:
                with suppress(OSError):  # another process may just have deleted it
                    stat = path.stat()
                    found.append((stat.st_mtime_ns, stat.st_size, path))
        return found

    def _info(self, entries: Sequence[tuple[int, int, Path]]) -> CacheInfo:
        counts = [sum(path.suffix == f".{kind}" for _, _, path in entries) for kind in KINDS]
        return CacheInfo(self.folder, counts[0], counts[1], sum(size for _, size, _ in entries), counts[2])

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


def _encode(values: npt.NDArray[np.floating], key: str) -> bytes:
    body = io.BytesIO()
    np.save(body, np.ascontiguousarray(values), allow_pickle=False)
    return hashlib.sha256(key.encode() + body.getvalue()).digest() + body.getvalue()


def _decode(data: bytes, key: str) -> npt.NDArray[np.floating] | None:
    checksum, body = data[:_CHECKSUM], data[_CHECKSUM:]
    if hashlib.sha256(key.encode() + body).digest() != checksum:
        return None
    try:
        values: npt.NDArray[np.floating] = np.load(io.BytesIO(body), allow_pickle=False)
    except ValueError:
        return None
    return values if values.ndim == 2 and values.dtype.kind == "f" else None


def file_key(source: Any) -> str | None:
    """64 hexadecimal digits of what a file looks like from outside: path, size, and times of its last changes.

    None for images that are not files, and for a file that was changed within the last two seconds, when a second
    change could go unnoticed.
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
