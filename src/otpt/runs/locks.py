"""Who does what: locks of the operating system, so that a dead process holds nothing.

Each lock of a run is one byte of the file ``locks``, locked while a process works on what it stands for. When the
process ends, however it ends, its locks are gone and others take over. Where a file system has no locks, every lock is
granted: two processes then repeat each other's work, and still write the same bytes.

To the operating system all threads of a process are one: it grants them the same lock, and takes all of them back when
any of them closes the file. So a process opens the file of a run once, and keeps for itself which of its threads has
which lock.
"""

from __future__ import annotations

import errno
import os
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
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
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)

    def lock(self, number: int) -> None:
        """Lock a byte; ``OSError`` if another process has it, or where there are no locks."""
        if sys.platform == "win32":  # pragma: no cover
            os.lseek(self._file, number, os.SEEK_SET)
            msvcrt.locking(self._file, msvcrt.LK_NBLCK, 1)
        else:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, number)

    def unlock(self, number: int) -> None:
        """Release it."""
        if sys.platform == "win32":  # pragma: no cover
            os.lseek(self._file, number, os.SEEK_SET)
            msvcrt.locking(self._file, msvcrt.LK_UNLCK, 1)
        else:
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, number)

    def close(self) -> None:
        """Release all."""
        os.close(self._file)


@dataclass
class _Opened:
    """The file of a run's locks in this process: which :class:`Locks` have which of them."""

    file: LockFile
    holders: dict[int, Locks] = field(default_factory=dict)
    users: int = 0


_opened: dict[tuple[int, Path], _Opened] = {}
"""By process and path: a forked copy inherits the table, but not the locks."""
_books = threading.Lock()


def _open(key: tuple[int, Path], path: Path) -> _Opened:
    """The file of this path, opened once in a process."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _books:
            if key not in _opened:
                _opened[key] = _Opened(LockFile(path))
            _opened[key].users += 1
            return _opened[key]
    except OSError as error:
        raise OtptError(f"Cannot write {str(path)!r}: {error.strerror or error}; choose another folder.") from None


class Locks:
    """Locks of one thread on one run; a context manager. What is taken twice is to be released twice."""

    def __init__(self, file: Path | LockFile) -> None:
        self._key: tuple[int, Path] | None = None
        if isinstance(file, Path):
            self._key = os.getpid(), file.parent.resolve() / file.name
            self._shared = _open(self._key, file)
        else:
            self._shared = _Opened(file, users=1)
        self._held: Counter[int] = Counter()

    def __enter__(self) -> Locks:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with _books:
            for number in [number for number, holder in self._shared.holders.items() if holder is self]:
                self._give_back(number)
            self._held.clear()
            self._shared.users -= 1
            if not self._shared.users:
                if self._key is not None:
                    del _opened[self._key]
                self._shared.file.close()

    def take(self, number: int) -> bool:
        """Take lock ``number``; False if a living process, or another thread of this one, has it."""
        if not self._held[number]:
            with _books:
                if number in self._shared.holders:
                    return False
                try:
                    self._shared.file.lock(number)
                except OSError as error:
                    if error.errno in _TAKEN:
                        return False
                self._shared.holders[number] = self
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
            with _books:
                self._give_back(number)

    def _give_back(self, number: int) -> None:
        del self._shared.holders[number]
        with suppress(OSError):
            self._shared.file.unlock(number)
