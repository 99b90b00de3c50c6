"""Commands in forked processes that are killed or disturbed at a chosen file operation."""

from __future__ import annotations

import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SECONDS = 300
"""Time limit of one process; a case takes a second or two."""

_CHANGES = {"os.remove", "os.rename", "os.link", "os.mkdir", "os.truncate"}
_WRITE = os.O_WRONLY | os.O_RDWR | os.O_CREAT


@dataclass(frozen=True)
class Ended:
    """How a process ended: its exit code, or minus the signal, and what it printed."""

    code: int
    printed: str

    @property
    def one_sentence(self) -> bool:
        """Whether the command ended with a user's error rather than with a traceback."""
        return self.code == 2 and "Traceback" not in self.printed and bool(self.printed.strip())


def start(work: Callable[[], Any], printed: Path) -> int:
    """Fork a process that does the work and exits with its result; return its number."""
    sys.stdout.flush()
    sys.stderr.flush()
    printed.touch()  # the process may be killed before it opens the file
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # fork of a process with threads: none is at work
        child = os.fork()
    if child:
        return child
    code = 1
    try:
        signal.alarm(SECONDS)
        warnings.simplefilter("default")  # as outside of pytest
        with printed.open("wb") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        code = int(work() or 0)
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code & 255)


def wait(child: int, printed: Path) -> Ended:
    """Wait for a process."""
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code != -signal.SIGALRM, f"no end after {SECONDS} s: {printed.read_text(errors='replace')[-2000:]}"
    return Ended(code, printed.read_text(encoding="utf-8", errors="replace"))


def run(work: Callable[[], Any], printed: Path) -> Ended:
    """Do the work in a forked process."""
    return wait(start(work, printed), printed)


def at_write(folder: Path, number: int, act: Callable[[], None]) -> None:
    """In this process, act before the given write operation (opening for writing, renaming, linking …) in a folder."""
    left, below = [number], os.fspath(folder)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event != "open" and event not in _CHANGES:
            return
        path, mode, flags = (*arguments, None, None)[:3] if event == "open" else (arguments[0], "w", 0)
        writes = any(letter in (mode or "") for letter in "wax+") or bool((flags or 0) & _WRITE)
        if writes and isinstance(path, str | bytes | os.PathLike) and os.fsdecode(path).startswith(below):
            left[0] -= 1
            if left[0] == 0:
                act()

    sys.addaudithook(hook)
