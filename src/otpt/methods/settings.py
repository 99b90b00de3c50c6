"""Settings of the functions that a method is made of: numbers with a name, such as SoC's delta."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from otpt.errors import OtptError
from otpt.methods.names.toml import methods_table

FAMILIES = ("fine-grained", "shift")
"""Families of data sets, on which weights may depend."""
OTHERS = "others"
"""In a table of numbers by data set: the one for all other data sets."""

Setting = float | Mapping[str, float]
"""One number; one for each family of data sets; or one for each of some data sets, and one for "others"."""


def setting_for(setting: Setting, family: str, dataset: str) -> float:
    """The number of a setting for a data set; one that is not listed takes that of its family, then of the others."""
    if not isinstance(setting, Mapping):
        return float(setting)
    return float(setting.get(dataset, setting.get(family, setting.get(OTHERS, math.nan))))


def listed_datasets(settings: Iterable[Setting]) -> set[str]:
    """The data sets that settings have numbers for."""
    names = {name for setting in settings if isinstance(setting, Mapping) for name in setting}
    return names - {*FAMILIES, OTHERS}


def check_setting(method: str, name: str, setting: Setting, bounds: Mapping[str, Any]) -> None:
    """``OtptError`` unless there is a number for any data set, and all are finite and within the bounds."""
    numbers = setting if isinstance(setting, Mapping) else {"": setting}
    if isinstance(setting, Mapping) and OTHERS not in setting and not set(FAMILIES) <= set(setting):
        raise OtptError(
            f"Method {method!r}: {name} has numbers for {sorted(setting)}; expected one for each of {list(FAMILIES)}, "
            f"one for {OTHERS!r} beside those of data sets, or one number."
        )
    for value in numbers.values():
        if not math.isfinite(value) or not _within(value, bounds):
            raise OtptError(f"Method {method!r}: {name} is {value:g}; expected {_expected(bounds)}.")


def _within(value: float, bounds: Mapping[str, Any]) -> bool:
    inside = bounds.get("from", -math.inf) <= value <= bounds.get("to", math.inf)
    strictly = bounds.get("above", -math.inf) < value < bounds.get("below", math.inf)
    return inside and strictly and (not bounds.get("whole") or value == int(value))


def _expected(bounds: Mapping[str, Any]) -> str:
    words = {"above": "above {:g}", "from": "{:g} or more", "below": "below {:g}", "to": "at most {:g}"}
    kind = "a whole number" if bounds.get("whole") else "a finite number"
    return ", ".join([kind, *(words[key].format(bound) for key, bound in bounds.items() if key in words)])


def setting_bounds() -> Mapping[str, Mapping[str, Any]]:
    """By name, the bounds and the meaning of the settings of our own functions, from ``methods.toml``."""
    found: Mapping[str, Mapping[str, Any]] = methods_table()["settings"]
    return found
