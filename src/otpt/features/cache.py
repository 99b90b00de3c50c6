"""Image features on disk: encoded once, used by every later run with other methods, prompts, weights or class names.

The key is what the features depend on: backbone (weights, precision, compiled or not, kind of device), preprocessing,
view recipe, seed and the image's content. The number of views is not in it: view v is the same however many there are,
so an entry with 64 views also serves a run that needs one.

Beside the features it keeps gradients: what the first backward pass through the text tower gave for an image, under a
key of the features and the text side (see :mod:`otpt.methods.prompt_tuning.gradient_cache`). And contexts that took
long to make for a class list (see :mod:`otpt.methods.fpp`).

An entry is one file: a line of JSON (key, shape, type, checksum of these and the numbers), then the numbers. It is
written under another name and renamed, so several processes may share a cache; an entry that is damaged, or not that of
its name, is reported, quarantined (only the last one is kept) and recomputed. The least recently used entries are
deleted when the cache exceeds its bound.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from otpt.errors import OtptError
from otpt.files import parse_json, remove_leftovers, write_atomically

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from otpt.backbones import Backbone
    from otpt.views import ViewRecipe

DEFAULT_SIZE = 20 * 10**9
"""Bytes; ImageNet's 50,000 test images take 7.0 GB with 64 views of ViT-B/16 and their gradients."""

_KINDS = _FEATURES, _GRADIENTS, _CONTEXTS = "features", "gradients", "contexts"
"""Kinds of entries: their folder and their suffix."""
_TYPES = ("float16", "float32", "float64")
_books = threading.Lock()  # of all caches: an object that holds a lock could not be sent to other processes


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
    """What a cache holds: images' features, gradients, the bytes of all, and contexts."""

    folder: Path
    entries: int
    gradients: int
    bytes: int
    contexts: int = 0


class FeatureCache:
    """Features by key, and gradients beside them; any thread may read and write.

    Args:
        folder: made when first written to.
        max_bytes: bound of its size; exceeded by a twentieth at most for each process that writes.
    """

    def __init__(self, folder: str | Path | None = None, *, max_bytes: int = DEFAULT_SIZE) -> None:
        if max_bytes < 1:
            raise OtptError(f"The size of the feature cache is {max_bytes} bytes; expected 1 or more.")
        self.folder = Path(folder).expanduser() if folder is not None else default_cache_folder()
        self.max_bytes = max_bytes
        self._since_check: int | None = None
        self._writable = True

    def get(self, key: str, views: int) -> npt.NDArray[np.floating] | None:
        """The features (``views``, D) of a key, or None."""
        features = self._read(self._path(_FEATURES, key), rows=views)
        return None if features is None else features[:views]

    def put(self, key: str, features: npt.NDArray[np.floating]) -> None:
        """Keep features (V, D). A cache that cannot be written is reported once and then left alone."""
        self._write(self._path(_FEATURES, key), features)

    def get_gradient(self, key: str) -> npt.NDArray[np.floating] | None:
        """The gradient (n, W) of a key, or None."""
        return self._read(self._path(_GRADIENTS, key), rows=1)

    def put_gradient(self, key: str, gradient: npt.NDArray[np.floating]) -> None:
        """Keep a gradient (n, W)."""
        self._write(self._path(_GRADIENTS, key), gradient)

    def get_context(self, key: str) -> npt.NDArray[np.floating] | None:
        """The context (n, W) of a key, or None."""
        return self._read(self._path(_CONTEXTS, key), rows=1)

    def put_context(self, key: str, context: npt.NDArray[np.floating]) -> None:
        """Keep a context (n, W)."""
        self._write(self._path(_CONTEXTS, key), context)

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
        for other in (*(self.folder / "images").glob("*.json"), *map(self._aside, _KINDS)):
            with suppress(OSError):
                other.unlink()
        return self._info(removed)

    def shrink(self) -> None:
        """Delete the least recently used entries until the bound is kept."""
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

    def _read(self, path: Path, *, rows: int) -> npt.NDArray[np.floating] | None:
        """The numbers of an entry, or None if it is not there, damaged, or has fewer rows."""
        try:
            data = path.read_bytes()
        except OSError:
            return None
        if _is_earlier(data):
            return None
        values = _decode(data, path.stem)
        if values is None:
            self._quarantine(path)
            return None
        if len(values) < rows:
            return None
        with suppress(OSError):  # a cache that may only be read is still a cache
            os.utime(path)
        return values

    def _quarantine(self, path: Path) -> None:
        """Report a damaged entry and keep the last one of each kind: enough to look at, and bounded."""
        aside = self._aside(path.suffix.removeprefix("."))
        try:
            path.replace(aside)
        except FileNotFoundError:  # another process was first
            return
        except OSError as error:
            kept = f"it cannot be moved aside ({error.strerror or error})"
        else:
            kept = f"the last one is kept as {str(aside)!r}"
        warnings.warn(f"The feature cache held damaged entries, which are recomputed; {kept}.", stacklevel=4)

    def _write(self, path: Path, values: npt.NDArray[np.floating]) -> None:
        if not self._writable:
            return
        data = _encode(values, path.stem)
        try:
            write_atomically(path, data, durable=False)
        except OtptError as error:
            with _books:
                said, self._writable = not self._writable, False
            if not said:
                warnings.warn(f"The feature cache is no longer written: {error}", stacklevel=3)
            return
        with _books:
            checked = self._since_check is not None
            written = self._since_check = (self._since_check or 0) + len(data)
        if not checked or written > self.max_bytes // 20:
            self.shrink()

    def _entries(self) -> list[tuple[int, int, Path]]:
        """(time of last use, bytes, file) of each entry."""
        found = []
        for kind in _KINDS:
            paths: list[Path] = []
            with suppress(OSError):  # a folder that cannot be listed now
                paths += (self.folder / kind).glob(f"*/*.{kind}")
            for path in paths:
                with suppress(OSError):  # another process may just have deleted it
                    stat = path.stat()
                    found.append((stat.st_mtime_ns, stat.st_size, path))
        return found

    def _info(self, entries: Sequence[tuple[int, int, Path]]) -> CacheInfo:
        counts = [sum(path.suffix == f".{kind}" for _, _, path in entries) for kind in _KINDS]
        return CacheInfo(self.folder, counts[0], counts[1], sum(size for _, size, _ in entries), counts[2])

    def _aside(self, kind: str) -> Path:
        return self.folder / f"damaged.{kind}"

    def _path(self, kind: str, key: str) -> Path:
        return self.folder / kind / key[:2] / f"{key}.{kind}"


def feature_key(backbone: Backbone, recipe: ViewRecipe, seed: int, features: str, image: str) -> str:
    """64 hexadecimal digits of all that the features of an image depend on."""
    facts = {
        "backbone": backbone.fingerprint,
        "precision": backbone.precision,
        **({"compiled": True} if backbone.compiled else {}),  # left out, keys of earlier versions hold
        "device": backbone.device.type,
        "preprocessing": asdict(backbone.preprocessing),
        "views": recipe.kind,
        "seed": seed,
        "features": features,
        "image": image,
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _encode(values: npt.NDArray[np.floating], key: str) -> bytes:
    import numpy as np

    body = np.ascontiguousarray(values).tobytes()
    facts = {"key": key, "shape": list(values.shape), "type": values.dtype.name}
    return json.dumps({**facts, "checksum": _checksum(facts, body)}).encode() + b"\n" + body


def _decode(data: bytes, key: str) -> npt.NDArray[np.floating] | None:
    """The numbers, or None if the entry is damaged or another one."""
    import numpy as np

    head, newline, body = data.partition(b"\n")
    try:
        facts = parse_json(head.decode())
        checksum = facts.pop("checksum")
        rows, width = facts["shape"]
        if not newline or facts["type"] not in _TYPES or facts["key"] != key or checksum != _checksum(facts, body):
            return None
        return np.frombuffer(body, facts["type"]).reshape(rows, width)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _checksum(facts: dict[str, object], body: bytes) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode() + b"\n" + body).hexdigest()


def _is_earlier(data: bytes) -> bool:
    """An entry of an earlier version, whose checksum leaves out the shape: not used, and replaced without a word."""
    return data.startswith(b'{"shape": [') and b'"sha256": "' in data[:200]
