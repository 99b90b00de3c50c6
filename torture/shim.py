"""The fault injection of ``shim.c``: compiled when it is needed, loaded before everything else, told what to do."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from enum import IntEnum, IntFlag
from pathlib import Path

SOURCE = Path(__file__).with_name("shim.c")
_WHERE = "OTPT_TORTURE_SHIM"


class Action(IntEnum):
    """What happens at the chosen call; as in ``shim.c``."""

    COUNT = 0
    SIGNAL = 1
    FAIL_ONCE = 2
    FAIL_FROM = 3
    TORN = 4
    JUMP = 5


class Calls(IntFlag):
    """Which calls are counted: those that write (open, write, fsync, rename, link, unlink, mkdir, utime) or read."""

    WRITES = 1
    READS = 2


def compiler() -> str | None:
    """A C compiler, if there is one."""
    return shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


def build(folder: Path) -> Path:
    """Compile the library into ``folder``."""
    library = folder / "shim.so"
    command = [compiler() or "cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE), "-ldl"]
    subprocess.run(command, check=True, capture_output=True)
    return library


def environment(library: Path) -> dict[str, str]:
    """Of a process that is to have the library."""
    return {**os.environ, "LD_PRELOAD": str(library), _WHERE: str(library), "OMP_NUM_THREADS": "1"}


class Shim:
    """The library in this process, which was started with :func:`environment`."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(os.environ[_WHERE])
        self._library.torture_calls.restype = ctypes.c_long
        self._library.torture_last.restype = ctypes.c_char_p
        self._library.torture_arm.argtypes = [ctypes.c_char_p, ctypes.c_long, *4 * [ctypes.c_int]]

    def arm(
        self,
        folder: Path,
        action: Action = Action.COUNT,
        *,
        at: int = 0,
        value: int = 0,
        calls: Calls = Calls.WRITES,
        whole_group: bool = False,
    ) -> None:
        """From now on, count the calls under ``folder``, of this process and those it forks; act at call ``at``.

        ``value``: the signal, the error's number, or the seconds by which the clock jumps.
        """
        self._library.torture_arm(str(folder).encode(), at, int(action), value, int(calls), int(whole_group))

    def imitate(self, *, no_links: bool = False, coarse_seconds: int = 0, hidden_milliseconds: int = 0) -> None:
        """A file system without hard links, with coarse times, or that shows new files of others late; after arm."""
        self._library.torture_file_system(int(no_links), coarse_seconds, hidden_milliseconds)

    @property
    def calls(self) -> int:
        """How many there were since :meth:`arm`."""
        return int(self._library.torture_calls())

    @property
    def last(self) -> str:
        """The call at which it acted."""
        return bytes(self._library.torture_last()).decode(errors="replace").strip()
