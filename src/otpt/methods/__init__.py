"""Named methods: objectives with weights, the optimiser's numbers, calibration; as data."""

from __future__ import annotations

from otpt.methods.method import CALIBRATIONS, FAMILIES, STARTS, Method
from otpt.methods.registry import builtin_methods, get_method, get_methods, load_methods

__all__ = [
    "CALIBRATIONS",
    "FAMILIES",
    "STARTS",
    "Method",
    "builtin_methods",
    "get_method",
    "get_methods",
    "load_methods",
]
