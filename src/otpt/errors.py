"""What the user is told when something given cannot be used.

Every message is one sentence or two: what was given, what was expected, what to do. The command line prints it
and ends with exit code 2; in Python it is a ``ValueError`` like any other.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class OtptError(ValueError):
    """An input that cannot be used: an image, a class name, a backbone, a method, an option."""


def unknown(kind: str, given: str, available: Iterable[str]) -> OtptError:
    """An error for a name that is not in a registry, with the nearest names and the whole list.

    >>> str(unknown("method", "otp", ["tpt", "o-tpt"]))
    "Unknown method 'otp'. Did you mean: tpt, o-tpt? Available: tpt, o-tpt."
    """
    names = list(available)
    near = difflib.get_close_matches(given.lower(), names, n=3, cutoff=0.5)
    hint = f" Did you mean: {', '.join(near)}?" if near else ""
    return OtptError(f"Unknown {kind} {given!r}.{hint} Available: {', '.join(names)}.")
