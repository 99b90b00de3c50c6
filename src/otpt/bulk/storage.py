"""Files of an output on a local disk or on storage of fsspec."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from otpt.data.sources import FileSystem, file_system, is_remote
from otpt.errors import OtptError
from otpt.files import write_atomically


class Storage:
    """File system of an output, and the operations that change it; a kill between any two of them loses no row.

    Args:
        path: local path or address of the output.

    Attributes:
        path: path as given.
        file: path on the file system.
        fs: file system of fsspec.
        remote: whether the output is at an address; files there cannot grow.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.remote = is_remote(path)
        self.fs: FileSystem
        self.fs, self.file = file_system(path)

    def names(self, folder: str) -> list[str]:
        """Return the sorted paths of a folder; none if it is missing."""
        if not self.fs.isdir(folder):
            return []
        return sorted(str(name) for name in self.fs.ls(folder, detail=False))

    def write(self, path: str, data: bytes) -> None:
        """Write a whole file."""
        if self.remote:
            self.fs.pipe_file(path, data)
        else:
            write_atomically(Path(path), data)

    def append(self, path: str, data: bytes) -> int:
        """Append to a local file, wait until the bytes are on the disk, and return its size."""
        with open(path, "ab") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            return file.tell()

    def move(self, path: str, target: str) -> None:
        """Move a file into a folder, which is created."""
        self.fs.makedirs(os.path.dirname(target), exist_ok=True)
        self.fs.mv(path, target)

    def publish(self, scratch: str, path: str) -> None:
        """Put a finished file of the scratch folder in its place."""
        if self.remote:
            self.fs.put_file(scratch, path)
        else:
            os.replace(scratch, path)

    def remove(self, *paths: str) -> None:
        """Remove files that exist; never a folder, which may hold files of others."""
        for path in paths:
            with suppress(FileNotFoundError):
                self.fs.rm_file(path)

    def remove_empty(self, folder: str) -> None:
        """Remove a folder if it is empty; object stores have no empty folders."""
        if not self.remote:
            with suppress(OSError):
                os.rmdir(folder)

    @contextmanager
    def scratch(self) -> Iterator[str]:
        """Provide a temporary local folder, on the same disk as a local output."""
        folder = None if self.remote else os.path.dirname(os.path.abspath(self.path))
        with tempfile.TemporaryDirectory(prefix=".joining-", dir=folder) as scratch:
            yield scratch

    @contextmanager
    def errors_in_words(self) -> Iterator[None]:
        """Turn errors of the storage into one sentence."""
        try:
            yield
        except OtptError:
            raise
        except Exception as error:  # each remote storage has its own errors
            reason = " ".join(str(getattr(error, "strerror", None) or error or type(error).__name__).split())
            raise OtptError(
                f"Cannot write {self.path!r}: {reason}; finished rows stay, and the same command continues."
            ) from None
