"""Variants of a method, as ``otpt sweep`` names them: ``o-tpt[lambda=18]``."""

from __future__ import annotations

import re
from collections.abc import Sequence

_VARIANT = re.compile(r"(?P<base>.+)\[(?P<settings>[^\[\]]+=[^\[\]]+)\]")


def variant(method: str) -> tuple[str, str] | None:
    """The method and the settings of a variant; None for a plain method.

    >>> variant("o-tpt[lambda=18]"), variant("o-tpt")
    (('o-tpt', 'lambda=18'), None)
    """
    match = _VARIANT.fullmatch(method)
    return None if match is None else (match["base"], match["settings"])


def swept(methods: Sequence[str]) -> dict[str, list[tuple[str, str]]]:
    """Of each swept method, its (settings, name) in order of the numbers; λ is written as the letter.

    >>> swept(["tpt", "o-tpt[lambda=18]", "o-tpt[lambda=2]"])
    {'o-tpt': [('λ=2', 'o-tpt[lambda=2]'), ('λ=18', 'o-tpt[lambda=18]')]}
    """
    found: dict[str, list[tuple[str, str]]] = {}
    for method in methods:
        if (parts := variant(method)) is not None:
            found.setdefault(parts[0], []).append((parts[1].replace("lambda=", "λ="), method))
    return {base: sorted(values, key=lambda each: _numbers(each[0])) for base, values in found.items()}


def _numbers(settings: str) -> tuple[float, ...]:
    """The values of the settings, for sorting; words count as nothing, so they keep their order."""
    found = []
    for setting in settings.split(","):
        try:
            found.append(float(setting.partition("=")[2]))
        except ValueError:
            found.append(0.0)
    return tuple(found)
