"""Ctrl-C: one line, exit code 130, nothing lost; at any moment, also while torch is being imported.

During work the signal is a ``KeyboardInterrupt``, so that files, threads and worker processes are closed in good order.
During an import it is not: libraries turn it into errors of their own there, or lose it, and there is nothing to close.
A second Ctrl-C ends at once.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import NoReturn

STOPPED = 130
_SHOW_CURSOR = "\x1b[?25h"  # which progress bars hide


class _State:
    """Of this process: whether it answers SIGINT, whether it was asked to stop, whether it has said that it does."""

    listening = asked = told = False


def listen() -> None:
    """From now on, answer SIGINT as above; unless the caller has it ignored, as ``nohup`` and ``&`` in scripts do."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        _State.listening = True
        signal.signal(signal.SIGINT, _interrupt)
        sys.unraisablehook = _unraisable


def asked() -> bool:
    """Whether Ctrl-C was pressed: what follows from it is no failure."""
    return _State.asked


def tell_stopped(more: str = "") -> int:
    """Say that we stop, once; the exit code."""
    if not _State.told:
        _State.told = _State.listening  # called as a function, main() may be stopped many times
        print(f"otpt: stopped{more}", file=sys.stderr, flush=True)
    return STOPPED


def finished(code: object) -> None:
    """The command has ended. What is left is the interpreter's, and a Ctrl-C only cuts it short."""
    if not _State.listening:
        return
    number = code if isinstance(code, int) else int(code is not None)
    signal.signal(signal.SIGINT, lambda *_: _leave(number))
    if code == STOPPED:
        atexit._run_exitfuncs()
        _leave(STOPPED)  # waiting for threads would finish what was to be stopped
    atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)  # after the threads have ended, nothing waits


def _interrupt(_number: int, frame: FrameType | None) -> None:
    again, _State.asked = _State.asked, True
    if again or _importing(frame):
        _stop_at_once()
    raise KeyboardInterrupt


def _importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def _unraisable(problem: sys.UnraisableHookArgs) -> None:
    """An interrupt inside a callback that cannot raise is not lost."""
    if isinstance(problem.exc_value, KeyboardInterrupt):
        _stop_at_once()
    sys.__unraisablehook__(problem)


def _stop_at_once() -> NoReturn:
    if "multiprocessing.process" in sys.modules:
        from multiprocessing.process import active_children

        for process in active_children():
            process.terminate()  # at any moment: what they write is whole or not there
    cursor = _SHOW_CURSOR if os.isatty(2) else ""
    os.write(2, (cursor if _State.told else f"{cursor}otpt: stopped\n").encode())  # print() may be what was interrupted
    _leave(STOPPED)


def _leave(code: int) -> NoReturn:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, RuntimeError, ValueError):  # closed, or in the middle of a print()
            stream.flush()
    os._exit(code)
