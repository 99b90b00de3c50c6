"""Names that a user asks for, and those that there are. Light: the command line checks names before it reads a run."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from otpt.errors import unknown


def check_names(kind: str, names: Iterable[str] | None, known: Collection[str]) -> None:
    """:class:`OtptError` for the first of the names that is not known; None asks for nothing."""
    for name in names or ():
        if name not in known:
            raise unknown(kind, name, known)
