"""Where the configurations of two runs differ, in words."""

from __future__ import annotations

from typing import Any


def differences(stored: Any, given: Any, where: str = "") -> list[str]:
    """Where two configurations differ, in words; the name that a user gave to the same weights does not count."""
    if where == "backbone.name" or stored == given:
        return []
    if isinstance(stored, dict) and isinstance(given, dict):
        keys = [*stored, *(key for key in given if key not in stored)]
        found = (differences(stored.get(k), given.get(k), _below(where, str(k))) for k in keys)
        return [each for part in found for each in part]
    if isinstance(stored, list) and isinstance(given, list) and len(stored) == len(given):
        found = (differences(a, b, f"{where}[{i}]") for i, (a, b) in enumerate(zip(stored, given, strict=True)))
        return [each for part in found for each in part]
    return [f"{where} is {_short(stored)} there and {_short(given)} now"]


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
