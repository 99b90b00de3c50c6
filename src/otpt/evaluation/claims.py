"""Who does which part: locks of the operating system, so that a dead process holds nothing.

Each part of a run is one byte of the file ``claims.lock``, locked while a process works on the part. When the process
ends, however it ends, its locks are gone and others take the part over. Where a file system has no locks, every claim
is granted: two processes then repeat each other's work, and still write the same bytes.
"""

from __future__ import annotations

import errno
import os
import sys
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from otpt.errors import OtptError

if sys.platform == "win32":  # pragma: no cover
    import msvcrt
else:
    import fcntl

_TAKEN = {errno.EACCES, errno.EAGAIN, errno.EDEADLK}


class Claims:
    """Claims of one process on the parts of one run; a context manager."""

    def __init__(self, path: Path) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise OtptError(f"Cannot write {str(path)!r}: {error.strerror or error}; choose another folder.") from None
        self._held: set[int] = set()

    def __enter__(self) -> Claims:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._file)  # and with it all locks
        self._held.clear()

    def take(self, number: int) -> bool:
        """Claim part ``number``; False if a living process has it."""
        if number in self._held:
            return True
        try:
            _lock(self._file, number)
        except OSError as error:
            if error.errno in _TAKEN:
                return False
        self._held.add(number)
        return True

    def release(self, number: int) -> None:
        """Give the claim up, the part being written."""
        if number in self._held:
            self._held.discard(number)
            with suppress(OSError):
                _unlock(self._file, number)


if sys.platform == "win32":  # pragma: no cover

    def _lock(file: int, number: int) -> None:
        os.lseek(file, number, os.SEEK_SET)
        msvcrt.locking(file, msvcrt.LK_NBLCK, 1)

    def _unlock(file: int, number: int) -> None:
        os.lseek(file, number, os.SEEK_SET)
        msvcrt.locking(file, msvcrt.LK_UNLCK, 1)

else:

    def _lock(file: int, number: int) -> None:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, number)

    def _unlock(file: int, number: int) -> None:
        fcntl.lockf(file, fcntl.LOCK_UN, 1, number)
