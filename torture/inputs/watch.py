"""What a case does to the machine, seen through Python's audit events.

Reported are: a file that is opened for writing, renamed or deleted outside the case's folder; anything that is opened
in the folder of decoys beside it; a process that is started; a connection to anything but this machine; a name that a
pickle looks up. Libraries in C++ or Rust (Arrow, safetensors, torch's zip reader) open files without such events: for
those the decoys and the working folder are compared with what they were.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

_CHANGES = {
    "os.remove": 1, "os.rename": 2, "os.rmdir": 1, "os.mkdir": 1, "os.link": 2, "os.symlink": 2, "os.truncate": 1,
    "os.chmod": 1, "os.chown": 1, "os.utime": 1, "os.setxattr": 1, "shutil.rmtree": 1, "shutil.move": 2,
    "shutil.copyfile": 2, "shutil.unpack_archive": 2, "tempfile.mkstemp": 1, "tempfile.mkdtemp": 1,
}  # fmt: skip
"""Events that change files, and how many of their arguments are paths."""

_NEVER = (
    "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.forkpty", "os.startfile", "pty.spawn",
    "subprocess.Popen", "pickle.find_class", "webbrowser.open", "socket.bind", "socket.sendto", "smtplib.connect",
)  # fmt: skip
_LOCAL = ("127.0.0.1", "::1", "localhost")
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_ALWAYS = ("/dev/null",)


class Watch:
    """Listens while ``armed``; one for a process, since an audit hook cannot be taken out again.

    Args:
        outside: the folder of decoys.
    """

    def __init__(self, outside: Path) -> None:
        self._outside = os.fspath(outside)
        self._given = ""
        self._seen: list[str] = []
        self.armed = False
        sys.addaudithook(self._hear)

    def begin(self, given: Path) -> None:
        """Listen to a case whose files are below ``given``."""
        self._given, self._seen, self.armed = os.fspath(given), [], True

    def end(self) -> list[str]:
        """What was forbidden, in words."""
        self.armed = False
        return list(dict.fromkeys(self._seen))

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.armed:
            return
        if event == "open":
            self._opened(*arguments[:3])
        elif event in _CHANGES:
            for path in arguments[: _CHANGES[event]]:
                self._path(path, event, writing=True)
        elif event in _NEVER:
            self._seen.append(f"{event} {arguments!r}"[:200])
        elif event in ("socket.connect", "socket.getaddrinfo"):
            place = arguments[1] if event == "socket.connect" else arguments
            host = place[0] if isinstance(place, tuple) else place
            if isinstance(host, bytes):
                host = host.decode("latin-1")
            if host not in _LOCAL:
                self._seen.append(f"{event} {host!r}")
        elif event in ("os.listdir", "os.scandir"):
            self._path(arguments[0], event, writing=False)

    def _opened(self, path: Any, mode: Any, flags: Any) -> None:
        text = mode if isinstance(mode, str) else ""
        writing = any(letter in text for letter in "wax+") or bool(isinstance(flags, int) and flags & _WRITING)
        self._path(path, "open for writing" if writing else "open", writing=writing)

    def _path(self, path: Any, event: str, *, writing: bool) -> None:
        if not isinstance(path, (str, bytes, os.PathLike)):
            return  # a file descriptor: it was heard of when it was opened
        whole = os.path.normpath(os.path.join(os.getcwd(), os.fsdecode(path)))
        if _below(whole, self._outside) or (writing and not _below(whole, self._given) and whole not in _ALWAYS):
            self._seen.append(f"{event} {whole!r}")


def _below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder + os.sep)
