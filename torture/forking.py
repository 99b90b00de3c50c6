"""Cases in forked processes: the model is loaded once, a case costs a tenth of a second; and nothing is left of it.

The process that forks adopts the orphans of its children, so that it sees when one goes on alone.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from otpt.errors import OtptError

_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of prctl(2)
_POLL = 0.003  # seconds
PATIENCE = 120.0
"""Seconds after which a case counts as hanging; a case takes less than one."""
REFUSED, INTERRUPTED, TRACEBACK = 2, 130, 1


@dataclass(frozen=True)
class Ended:
    """How the processes of a case ended.

    Attributes:
        codes: of each process that was started, in order: the exit code, or minus the signal; None if it hung.
        orphans: further processes that still ran when the last one of these had ended, and did not end by themselves.
        said: what they wrote.
    """

    codes: tuple[int | None, ...]
    orphans: int
    said: str

    @property
    def hung(self) -> bool:
        """Whether one had to be ended."""
        return None in self.codes

    @property
    def sentence(self) -> str:
        """The last line."""
        lines = self.said.strip().splitlines()
        return lines[-1] if lines else ""


def adopt_orphans() -> None:
    """Grandchildren whose parent dies become children of this process."""
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)


def start(work: Callable[[], object], said: Path, *, group: int = 0) -> int:
    """A forked process that does ``work``, in a process group of its own or in ``group``; its number."""
    child = os.fork()
    if child:
        with suppress(OSError):  # it was faster
            os.setpgid(child, group or child)
        return child
    code = TRACEBACK
    try:
        os.setpgid(0, group)
        file = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        os.dup2(file, 1)
        os.dup2(file, 2)
        signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell may have set aside
        try:
            work()
            code = 0
        except OtptError as error:
            os.write(2, f"otpt: {error}\n".encode())
            code = REFUSED
        except KeyboardInterrupt:
            code = INTERRUPTED
        except BaseException:
            os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(code)


def end(children: Sequence[int], said: Path, *, patience: float = PATIENCE) -> Ended:
    """Wait for processes of one group (the first one's); what does not end in time is killed."""
    group, codes = children[0], dict[int, int | None]()
    finished = _reap(group, set(children), codes, patience)
    started_all = all(child in codes for child in children)
    if started_all:  # workers end with the process that started them, within a moment
        finished = _reap(group, None, codes, patience)
    orphans = 0
    if not finished:
        orphans = int(started_all)
        os.killpg(group, signal.SIGKILL)
        _reap(group, None, {}, patience)
    text = said.read_text(encoding="utf-8", errors="replace") if said.exists() else ""
    said.unlink(missing_ok=True)
    return Ended(tuple(codes.get(child) for child in children), orphans, text)


def _reap(group: int, wanted: set[int] | None, codes: dict[int, int | None], patience: float) -> bool:
    """Collect the ended processes of a group, until all ``wanted`` ones or all there are have ended. False if late."""
    until = time.monotonic() + patience
    while wanted is None or not wanted <= set(codes):
        try:
            child, status = os.waitpid(-group, os.WNOHANG)
        except ChildProcessError:
            return True
        if child:
            codes[child] = os.waitstatus_to_exitcode(status)
        elif time.monotonic() > until:
            return False
        else:
            time.sleep(_POLL)
    return True
