"""Where the configurations of two runs differ, in words."""

from __future__ import annotations

from typing import Any


def differences(stored: Any, given: Any, where: str = "") -> list[str]:
    """Where two configurations differ, in words; the name that a user gave to the same weights does not count."""
    if where == "backbone.name" or stored == given:
        return []
    if isinstance(stored, dict) and isinstance(given, dict):
        pairs = {_below(where, str(key)): (stored.get(key), given.get(key)) for key in {**stored, **given}}
    elif isinstance(stored, list) and isinstance(given, list) and len(stored) == len(given):
        pairs = {f"{where}[{i}]": pair for i, pair in enumerate(zip(stored, given, strict=True))}
    else:
        return [f"{where} is {_short(stored)} there and {_short(given)} now"]
    return [each for place, (one, other) in pairs.items() for each in differences(one, other, place)]


def _below(where: str, key: str) -> str:
    if not where:
        return key
    return f"{where} {key}" if where.endswith(":") else f"{where}.{key}"


def _short(value: object) -> str:
    if isinstance(value, dict) and "name" in value:
        value = value["name"]
    if isinstance(value, list):
        value = [each["name"] if isinstance(each, dict) and "name" in each else each for each in value]
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "…"
