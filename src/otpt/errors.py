"""Exception class for user errors.

Every message is one or two sentences: the value, the expectation, the remedy. The command line prints the message and
exits with code 2; in Python it is a ``ValueError``.
"""

from __future__ import annotations

import difflib
import errno
from collections.abc import Iterable

from otpt.escapes import one_line

_MAX_LENGTH, _TAIL = 2000, 600  # characters of a message, and of its end if it is abbreviated


class OtptError(ValueError):
    """Invalid input: an image, a class name, a backbone, a method, an option.

    The message is always a single printable line: control and bidirectional characters are escaped, and long messages
    are abbreviated in the middle.

    >>> str(OtptError("The class '\\x1b[2J' is blank."))
    "The class '\\\\x1b[2J' is blank."
    """

    def __init__(self, message: str = "") -> None:
        super().__init__(_abbreviate(one_line(_abbreviate(str(message)))))


def _abbreviate(text: str) -> str:
    return text if len(text) <= _MAX_LENGTH else f"{text[: _MAX_LENGTH - _TAIL]} … {text[-_TAIL:]}"


def unknown(kind: str, given: str, available: Iterable[str]) -> OtptError:
    """Return an error for an unknown name, with suggestions and all available names.

    >>> str(unknown("method", "otp", ["tpt", "o-tpt"]))
    "Unknown method 'otp'. Did you mean: tpt, o-tpt? Available: tpt, o-tpt."
    """
    names = list(available)
    close = difflib.get_close_matches(given.lower(), names, n=3, cutoff=0.5)
    hint = f" Did you mean: {', '.join(close)}?" if close else ""
    return OtptError(f"Unknown {kind} {given!r}.{hint} Available: {', '.join(names)}.")


def describe_error(error: BaseException) -> str:
    """Describe an exception of somebody else's code: its type and the first line of its message.

    >>> describe_error(KeyError("name"))
    "KeyError: 'name'"
    """
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0].rstrip('.')}" if lines else type(error).__name__


_REMEDIES = {
    errno.ENOENT: "check the path",
    errno.ENOTDIR: "check the path",
    errno.ENAMETOOLONG: "check the path",
    errno.ELOOP: "check the links on the path",
    errno.EISDIR: "pass a file, not a folder",
    errno.EACCES: "check its permissions",
    errno.EPERM: "check its permissions",
    errno.EMFILE: "close other files, or raise 'ulimit -n'",
    errno.ENFILE: "close other programs",
}


def cannot_read(what: str, path: object, error: Exception) -> OtptError:
    """Return an error for an unreadable or corrupt file or folder, with a remedy.

    >>> str(cannot_read("class list", "pets", IsADirectoryError(errno.EISDIR, "Is a directory")))
    "Cannot read the class list 'pets': Is a directory; pass a file, not a folder."
    """
    if isinstance(error, OSError):
        reason, remedy = error.strerror or str(error), _REMEDIES.get(error.errno or 0, "check the disk, and try again")
    elif isinstance(error, UnicodeError):
        reason, remedy = "it is not UTF-8 text", "save it as UTF-8"
    else:  # a library's error about a corrupt file
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        remedy = "check the path and the file"
    return OtptError(f"Cannot read the {what} {str(path)!r}: {reason}; {remedy}.")
