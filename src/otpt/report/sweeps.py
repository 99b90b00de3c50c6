"""Variants of a method, as ``otpt sweep`` names them: ``o-tpt[lambda=18]``."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pandas as pd

_VARIANT = re.compile(r"(?P<base>.+)\[(?P<settings>[^\[\]]+=[^\[\]]+)\]")


def plain_methods(methods: Sequence[str]) -> list[str]:
    """Methods that are not variants of a sweep."""
    return [name for name in methods if not _VARIANT.fullmatch(name)]


def swept_settings(methods: Sequence[str]) -> pd.DataFrame:
    """Variants among methods: columns method, base, label, and one for each setting, sorted by their values.

    >>> swept_settings(["tpt", "o-tpt[lambda=18]", "o-tpt[lambda=2]"])[["base", "label", "lambda"]]
        base label  lambda
    1  o-tpt   λ=2       2
    0  o-tpt  λ=18      18
    """
    found = []
    for method in methods:
        if match := _VARIANT.fullmatch(method):
            settings = dict(setting.split("=", 1) for setting in match["settings"].split(","))
            label = match["settings"].replace("lambda=", "λ=")
            found.append({"method": method, "base": match["base"], "label": label, **settings})
    frame = pd.DataFrame(found, columns=None if found else ["method", "base", "label"])
    names = [name for name in frame if name not in {"method", "base", "label"}]
    for name in names:
        numbers = pd.to_numeric(frame[name], errors="coerce")
        if (numbers.notna() == frame[name].notna()).all():
            frame[name] = numbers
    return (
        frame.sort_values(
            ["base", *names], key=lambda own: own if own.name != "base" else own.map(list(dict.fromkeys(own)).index)
        )
        if names
        else frame
    )
