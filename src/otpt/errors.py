"""Errors for users: an input that cannot be used.

Every message is one or two sentences: the value, what was expected, what to do. The command line prints it
and ends with exit code 2; in Python it is a ``ValueError`` like any other.
"""

from __future__ import annotations

import difflib
import errno
import unicodedata
from collections.abc import Iterable

_LONGEST, _END = 2000, 600  # characters of a message, and how many of them are its end


class OtptError(ValueError):
    """An input that cannot be used: an image, a class name, a backbone, a method, an option.

    The message is always one printable line: control and bidirectional characters of quoted input are escaped, and
    very long messages are abbreviated in the middle.

    >>> str(OtptError("The class '\\x1b[2J' is blank."))
    "The class '\\\\x1b[2J' is blank."
    """

    def __init__(self, message: str = "") -> None:
        text = _without_middle(str(message))
        if not text.isprintable():
            text = _without_middle("".join(_escaped(letter) for letter in text))
        super().__init__(text)


def _without_middle(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - _END]} … {text[-_END:]}"


def _escaped(letter: str) -> str:
    """Escape control characters, line separators, surrogates and bidirectional marks."""
    if unicodedata.category(letter) in ("Cc", "Cf", "Cs", "Zl", "Zp") and letter not in _JOINERS:
        return letter.encode("unicode_escape").decode("ascii")
    return letter


_JOINERS = ("\u200c", "\u200d")  # used in Persian, Indic scripts and emoji; they only affect the next letter


def unknown(kind: str, given: str, available: Iterable[str]) -> OtptError:
    """Return an error for an unknown name, with the nearest names and the whole list.

    >>> str(unknown("method", "otp", ["tpt", "o-tpt"]))
    "Unknown method 'otp'. Did you mean: tpt, o-tpt? Available: tpt, o-tpt."
    """
    names = list(available)
    near = difflib.get_close_matches(given.lower(), names, n=3, cutoff=0.5)
    hint = f" Did you mean: {', '.join(near)}?" if near else ""
    return OtptError(f"Unknown {kind} {given!r}.{hint} Available: {', '.join(names)}.")


_REMEDIES = {
    errno.ENOENT: "check the path",
    errno.ENOTDIR: "check the path",
    errno.ENAMETOOLONG: "check the path",
    errno.ELOOP: "check the links on the path",
    errno.EISDIR: "give a file, not a folder",
    errno.EACCES: "check its permissions",
    errno.EPERM: "check its permissions",
    errno.EMFILE: "close other files, or raise 'ulimit -n'",
    errno.ENFILE: "close other programs",
}


def cannot_read(what: str, path: object, error: Exception) -> OtptError:
    """Return an error for an unreadable or damaged file or folder, with a remedy; a ``UnicodeError`` means "not UTF-8".

    >>> str(cannot_read("class list", "pets", IsADirectoryError(errno.EISDIR, "Is a directory")))
    "Cannot read the class list 'pets': Is a directory; give a file, not a folder."
    """
    if isinstance(error, OSError):
        reason, remedy = error.strerror or str(error), _REMEDIES.get(error.errno or 0, "check the disk, and try again")
    elif isinstance(error, UnicodeError):
        reason, remedy = "it is not UTF-8 text", "save it as UTF-8"
    else:  # what a library reports of a damaged file
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        remedy = "check the path and the file"
    return OtptError(f"Cannot read the {what} {str(path)!r}: {reason}; {remedy}.")
