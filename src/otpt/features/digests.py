"""Which content an image file had when it was last read: a warm run need not read it again to find its features.

For each shard of a data set, and each kind of digest, one small file keeps (path, size, time of change, time of the
change of its entry in the file system) → digest. The last one cannot be set back, as programs that copy or unpack files
do with the other. An image whose file looks different now is read again; so is one that was changed within the last
seconds, when a second change could hide.
"""

from __future__ import annotations

import hashlib
import json
import time
from contextlib import suppress
from pathlib import Path

from otpt.errors import OtptError
from otpt.files import parse_json, write_atomically
from otpt.images import KEYS, ImageSource

_RACY_NANOSECONDS = 2 * 10**9

FileState = tuple[str, int, int, int]
"""Absolute path, size in bytes, times of the last change of its content and of its entry, in nanoseconds."""


def file_state(source: ImageSource) -> FileState | None:
    """What a file looks like from outside; None for images that are not files."""
    if not isinstance(source, (str, Path)):
        return None
    try:
        stat = Path(source).stat()
        return str(Path(source).absolute()), stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns
    except (OSError, ValueError):
        return None


class ShardDigests:
    """Digests of the images of one shard: ``size`` images from ``first`` on, fewer in the last one.

    ``view_key`` says what they are digests of (:data:`otpt.images.KEYS`).
    """

    def __init__(self, cache: Path, dataset: str, first: int, size: int, view_key: str = KEYS[0]) -> None:
        key = hashlib.sha256(f"{dataset} {first} {size} {view_key}".encode()).hexdigest()[:40]
        self._path = cache / "images" / f"{key}.json"
        self._known: dict[str, tuple[int, int, int, str]] = {}
        self._changed = False
        with suppress(OSError, ValueError, TypeError):
            rows = parse_json(self._path.read_text(encoding="utf-8"))
            self._known = {
                str(path): (int(size), int(changed), int(entry), str(digest))
                for path, size, changed, entry, digest in rows
            }

    def find(self, state: FileState | None) -> str | None:
        """The digest of a file that still looks as it did."""
        if state is None or state[0] not in self._known:
            return None
        *looks, digest = self._known[state[0]]
        return digest if tuple(looks) == state[1:] else None

    def remember(self, state: FileState | None, digest: str) -> None:
        """Note what a file held that looked like ``state`` before it was read."""
        if state is None or time.time_ns() - state[2] < _RACY_NANOSECONDS or self.find(state) == digest:
            return
        self._known[state[0]] = (*state[1:], digest)
        self._changed = True

    def save(self) -> None:
        """Write what is new; if that fails, the next run only reads the images again."""
        if self._changed:
            self._changed = False
            rows = sorted([path, *rest] for path, rest in self._known.items())
            with suppress(OtptError):
                write_atomically(self._path, json.dumps(rows).encode(), durable=False)
