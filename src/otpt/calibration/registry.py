"""Calibrations by name: functions that rescale logits (…, C), given the zero-shot logits of the same views."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from otpt.functions import Value, register, values

_Function = TypeVar("_Function", bound=Callable[..., Any])

CALIBRATIONS = values(Value("none"), Value("temperature"), Value("sals", "otpt.calibration.rescaling:sals"))
"""All calibrations, ours and those that were registered."""


def calibration(function: _Function) -> _Function:
    """Register a function of ``logits`` and, if it likes, ``zero_shot``, both (…, C), that gives logits."""
    register("calibration", CALIBRATIONS, function, ("logits", "zero_shot"))
    return function
