"""Whether the content of a calibration file has the form that its reader expects."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from otpt.calibration.conformal.scores import SETS
from otpt.calibration.maps.registry import CalibrationMap


def fault_in(content: Mapping[str, Any]) -> str:
    """What is wrong with the content of a file whose checksum is right, in words; "" if nothing is."""
    for name, fits in _PARTS.items():
        if name not in content:
            return f"it has no {name!r}"
        if not fits(content[name]):
            return f"its {name!r} has another form than expected"
    if len(content["confidences"]) != len(content["correct"]):
        return "its confidences and its correct predictions differ in number"
    return _fault_in_map(content["map"], len(content["for"]["classes"]))


def _fault_in_map(given: Mapping[str, Any], classes: int) -> str:
    """The map must give probabilities: it is tried on two rows."""
    rows = np.full((2, classes), 1 / classes)
    rows[1] = np.arange(1, classes + 1) / (classes * (classes + 1) / 2)
    try:
        with np.errstate(all="ignore"):
            found = CalibrationMap(given["kind"], given["parameters"])(rows)
    except Exception as error:  # parameters of any kind may be in the file
        return f"its map cannot be applied ({type(error).__name__}: {' '.join(str(error).split()).rstrip('.')[:200]})"
    fine = (
        found.shape == rows.shape and bool(np.isfinite(found).all()) and bool((abs(found.sum(axis=1) - 1) < 1e-3).all())
    )
    return "" if fine else "its map does not give probabilities"


def _facts(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and _has(value.get("model"), name=str, fingerprint=str)
        and _has(value.get("method"), name=str, numbers=dict)
        and _list(value.get("classes"), lambda each: isinstance(each, str))
        and len(value["classes"]) > 1
        and all(key in value for key in ("prompt", "views", "official_precision"))
    )


def _bins(value: Any) -> bool:
    keys = ("counts", "confidence", "accuracy")
    return _table(
        value,
        lambda own: (
            _has(own, counts=list, confidence=list, accuracy=list)
            and len({len(own[key]) for key in keys}) == 1
            and bool(own["counts"])
            and all(_list(own[key], _is_known) for key in keys)
            and all(_is_number(each) and 0 <= each < 2**53 for each in own["counts"])
        ),
    )


def _conformal(value: Any) -> bool:
    return (
        _has(value, raps=dict, scores=dict)
        and all(_is_number(value["raps"].get(key)) for key in ("penalty", "free_ranks"))
        and set(value["scores"]) >= set(SETS)
        and _table(value["scores"], lambda own: _table(own, _numbers) and all(key.isdecimal() for key in own))
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e300  # nor is nan


def _is_known(value: Any) -> bool:
    return value is None or _is_number(value)


def _numbers(value: Any) -> bool:
    return _list(value, _is_number)


def _list(value: Any, each: Callable[[Any], bool]) -> bool:
    return isinstance(value, list) and all(each(item) for item in value)


def _table(value: Any, each: Callable[[Any], bool]) -> bool:
    return isinstance(value, dict) and all(each(item) for item in value.values())


def _has(value: Any, **kinds: type) -> bool:
    return isinstance(value, dict) and all(isinstance(value.get(key), kind) for key, kind in kinds.items())


_PARTS: Mapping[str, Callable[[Any], bool]] = {
    "for": _facts,
    "origin": lambda value: isinstance(value, dict),
    "labels": lambda value: isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**53,
    "map": lambda value: _has(value, kind=str, parameters=dict),
    "cross_validation": lambda value: _table(value, _is_number),
    "reliability": lambda value: _table(value, lambda own: _table(own, lambda each: _list(each, _is_known))),
    "bins": _bins,
    "conformal": _conformal,
    "confidences": _numbers,
    "correct": lambda value: isinstance(value, str) and set(value) <= {"0", "1"},
}
