"""The command line.

otpt predict cat.jpg --classes cat dog "red panda" --methods o-tpt
otpt evaluate emoji/food --methods zero-shot o-tpt
otpt --help
"""

from __future__ import annotations

import atexit
import io
import os
import signal
import sys
import threading
from collections.abc import Sequence
from types import FrameType

from otpt._version import __version__
from otpt.cli.commands import run
from otpt.cli.terminal import Stopped, say

_GRACE_SECONDS = 0.2
"""Time for threads that still compute to finish after a signal."""
_REPEAT_SECONDS = 1.0
"""Time after which a signal is repeated, in case its exception was lost."""
_stopped: list[int] = []
"""Signals that this process has received."""
_exit_codes: list[int] = []
"""Exit code of a command that a signal has stopped."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code.

    Args:
        arguments: words of the command line; None means ``sys.argv``, and signals are handled too.

    Returns:
        0, 2 for input that cannot be used, 3 for an incomplete result, 130 after Ctrl-C, 143 after SIGTERM.
    """
    if arguments is not None:
        return _run(list(arguments))
    atexit.register(_exit_after_signal)  # the first to be registered, and so the last to be called
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup and `&` in scripts set it
            signal.signal(number, _stop)
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")  # names of files may hold any bytes
    try:
        code = _run(sys.argv[1:])
        _repeat(0)
    except Stopped as stopped:  # repeated at the very end
        code = _report_stop(str(stopped))
    if _stopped:
        _exit_codes.append(code)
        timer = threading.Timer(_GRACE_SECONDS, _exit_after_signal)
        timer.daemon = True
        timer.start()
    return code


def _exit_after_signal() -> None:
    """End the process after a signal, without waiting for threads and the release of all objects."""
    if _exit_codes:
        sys.stdout.flush()
        os._exit(_exit_codes[0])


def _run(words: list[str]) -> int:
    if words == ["--version"]:
        print(f"otpt {__version__}")
        return 0
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # looking for them takes a tenth of a second
    try:
        return run(words)
    except KeyboardInterrupt as stopped:
        return _report_stop(str(stopped))
    except BrokenPipeError:  # the reader of our output has gone, as in `otpt … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception:
        if _stopped:  # a library turned the interrupt into an error of its own
            return _report_stop()
        raise


def _stop(number: int, _frame: FrameType | None) -> None:
    _stopped.append(number)
    signal.signal(number, signal.SIG_DFL)  # a second one ends at once
    _repeat(_REPEAT_SECONDS)
    raise Stopped


def _repeat(seconds: float) -> None:
    """Call :func:`_stop_again` every so many seconds; 0 for no more.

    Python drops an exception that is raised in a destructor or in a callback of a C library, and so may drop a signal.
    """
    if hasattr(signal, "setitimer"):  # not on Windows
        signal.signal(signal.SIGALRM, _stop_again)
        signal.setitimer(signal.ITIMER_REAL, seconds, seconds)


def _stop_again(_number: int, _frame: FrameType | None) -> None:
    """Raise again, unless an exception is being handled: then the command is on its way to the end."""
    if sys.exc_info()[0] is None:
        raise Stopped


def _report_stop(message: str = "") -> int:
    _repeat(0)
    say(f"stopped{message}")
    return 128 + (_stopped[0] if _stopped else signal.SIGINT)
