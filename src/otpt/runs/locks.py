"""Who does what: locks of the operating system, so that a dead process holds nothing.

Each lock of a run is one byte of the file ``locks``, locked while a process works on what it stands for. When the
process ends, however it ends, its locks are gone and others take over. Where a file system has no locks, every lock is
granted: two processes then repeat each other's work, and still write the same bytes.
"""

from __future__ import annotations

import errno
import os
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from otpt.errors import OtptError

if sys.platform == "win32":  # pragma: no cover
    import msvcrt
else:
    import fcntl

_TAKEN = {errno.EACCES, errno.EAGAIN, errno.EDEADLK}
_POLL_SECONDS = 0.05


class LockFile:
    """Locks of the operating system on bytes of a file. Another object with these methods may stand in its place."""

    def __init__(self, path: Path) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise OtptError(f"Cannot write {str(path)!r}: {error.strerror or error}; choose another folder.") from None

    def lock(self, number: int) -> None:
        """Lock a byte; ``OSError`` if another process has it, or where there are no locks."""
        _lock(self._file, number)

    def unlock(self, number: int) -> None:
        """Let it go."""
        _unlock(self._file, number)

    def close(self) -> None:
        """Let all go."""
        os.close(self._file)


class Locks:
    """Locks of one process on one run; a context manager. What is taken twice is to be released twice."""

    def __init__(self, file: Path | LockFile) -> None:
        self._file = LockFile(file) if isinstance(file, Path) else file
        self._held: Counter[int] = Counter()

    def __enter__(self) -> Locks:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        self._held.clear()

    def take(self, number: int) -> bool:
        """Take lock ``number``; False if a living process has it."""
        if not self._held[number]:
            try:
                self._file.lock(number)
            except OSError as error:
                if error.errno in _TAKEN:
                    return False
        self._held[number] += 1
        return True

    def wait_for(self, number: int) -> None:
        """Take lock ``number``, as soon as no other process has it."""
        while not self.take(number):
            time.sleep(_POLL_SECONDS)

    def release(self, number: int) -> None:
        """Give a lock back."""
        if not self._held[number]:
            return
        self._held[number] -= 1
        if not self._held[number]:
            with suppress(OSError):
                self._file.unlock(number)


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
