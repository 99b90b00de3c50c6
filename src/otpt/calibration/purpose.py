"""What a calibration was made for and what it is asked for: where they differ, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def difference(own: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """What the calibration was made for and what is asked, where they differ; "" where they do not."""
    if own["model"]["fingerprint"] != other["model"]["fingerprint"]:
        return f"the model {_model(own)}, not for {_model(other)}"
    if own["method"]["numbers"] != other["method"]["numbers"]:
        mine, asked = own["method"], other["method"]
        if mine["name"] != asked["name"]:
            return f"the method {mine['name']!r}, not for {asked['name']!r}"
        names = [*mine["numbers"], *(name for name in asked["numbers"] if name not in mine["numbers"])]
        name = next(each for each in names if mine["numbers"].get(each) != asked["numbers"].get(each))
        values = [each["numbers"].get(name) for each in (mine, asked)]
        return f"the method {mine['name']!r} with {name} = {values[0]!r}, not with {values[1]!r}"
    if own["classes"] != other["classes"]:
        return _classes(own["classes"], other["classes"])
    for key, words in (("prompt", "the prompt"), ("views", "the views"), ("official_precision", "official precision")):
        if own[key] != other[key]:
            return f"{words} {_named(own[key])}, not for {_named(other[key])}"
    return ""


def _model(facts: Mapping[str, Any]) -> str:
    return f"{facts['model']['name']!r} ({facts['model']['fingerprint'][:8]})"


def _named(value: Any) -> str:
    if isinstance(value, Mapping) and len({"words", "tokens"} & set(value)) == 2:
        tokens = "" if value["tokens"] is None else f" with {value['tokens']} tokens"
        return f"{value['name']!r}{tokens}{' with vectors of its own' if value.get('vectors') else ''}"
    return repr(value["name"] if isinstance(value, Mapping) and "name" in value else value)


def _classes(own: list[str], other: list[str]) -> str:
    if sorted(own) == sorted(other):
        return f"{len(own)} classes in another order, {own[0]!r} first, not {other[0]!r}"
    missing = next((name for name in own if name not in other), None)
    new = next((name for name in other if name not in own), None)
    words = f"{len(own)} classes" + (f" with {missing!r}" if missing is not None else "")
    return f"{words}, not for {len(other)} classes" + (f" with {new!r}" if new is not None else "")
