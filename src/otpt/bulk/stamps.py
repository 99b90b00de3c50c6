"""Size and modification time of image files, four bytes per image, to notice changed images when a job continues.

The file ``NAME.job.stamps`` holds a checksum per image, in the order of the rows; 0 for an image of which only the name
is known: remote ones, members of shards, rows of tables and objects in memory. A million images take 4 MB.
"""

from __future__ import annotations

import os
import struct
import zlib

import numpy as np
import numpy.typing as npt

from otpt.bulk.storage import Storage
from otpt.images import LocalFile

_TYPE = np.dtype("<u4")


def stamp_of(image: object) -> int:
    """Return the stamp of an image that is a local file, as it is now; 0 for others.

    Args:
        image: :class:`~otpt.images.NamedImage`, or anything else.
    """
    read = getattr(image, "read", None)
    if not isinstance(read, LocalFile):
        return 0
    size = modified = -1  # of a missing file
    try:
        status = os.stat(read.path)
        size = status.st_size
        modified = status.st_mtime_ns
    except (OSError, ValueError):
        pass
    return zlib.crc32(struct.pack("<qq", size, modified)) or 1


class StampFile:
    """Stamps of the images of an output.

    A local file grows with the rows; a remote one is written at the end, so that a kill leaves the names alone.

    Args:
        storage: where the output is.
        path: path of the file.
    """

    def __init__(self, storage: Storage, path: str) -> None:
        self._storage = storage
        self._path = path
        self._size = 0  # images in the file
        self._content = bytearray()  # of a remote file
        self._waiting: list[int] = []

    def restore(self, done: int) -> npt.NDArray[np.uint32]:
        """Return the stamps of the first ``done`` images, and cut off the others; none if none are known."""
        if not self._storage.fs.isfile(self._path):
            return np.zeros(0, _TYPE)
        content = self._storage.fs.cat_file(self._path)
        self._size = min(len(content) // _TYPE.itemsize, done)
        content = content[: self._size * _TYPE.itemsize]
        if self._size == 0:
            self._storage.remove(self._path)
        elif self._storage.remote:
            self._content[:] = content
        else:
            os.truncate(self._path, len(content))
        return np.frombuffer(content, _TYPE)

    def add(self, stamp: int) -> None:
        """Add the stamp of the next image."""
        self._waiting.append(stamp)

    def flush(self, done: int) -> None:
        """Write the waiting stamps, of the images after the first ``done``; no file without any stamp."""
        waiting = np.array(self._waiting, _TYPE)
        self._waiting = []
        if self._size == 0 and not waiting.any():
            return
        content = bytes(_TYPE.itemsize * (done - self._size)) + waiting.tobytes()
        self._size = done + len(waiting)
        if self._storage.remote:
            self._content += content
        else:
            self._storage.append(self._path, content)

    def close(self) -> None:
        """Write a remote file."""
        if self._content:
            self._storage.write(self._path, bytes(self._content))
            self._content.clear()
