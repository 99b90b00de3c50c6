"""Calibrations by name: functions that rescale logits (…, C), given the zero-shot logits of the same views."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from otpt.functions import Value, register, values

_Function = TypeVar("_Function", bound=Callable[..., Any])

CALIBRATIONS = values(
    Value("none"),
    Value("temperature"),
    Value("sals", "otpt.calibration.rescaling:sals"),
    Value("cots", "otpt.calibration.cots:cots", views=True, settings=("strong_ratio",)),
    Value("cor", "otpt.calibration.cots:cor"),
    Value("dac", "otpt.calibration.dac:dac", views=True, settings=("dac_neighbours",)),
    Value("dac-base", "otpt.calibration.dac:dac_base", only={"init": ("coop",)}, settings=("dac_neighbours",)),
)
"""All calibrations, ours and those that were registered."""


AVAILABLE = ("logits", "zero_shot", "features", "text_features", "adapted_text_features", "mean_cosine", "logit_scale")


def calibration(function: _Function | None = None, *, views: bool = False) -> Any:
    """Register a function of ``logits`` and, if it likes, ``zero_shot``, both (…, C), that gives logits (a decorator).

    With ``views`` it sees all views of one image, (V, C) with the clean view first, and may ask for what an aggregation
    may ask for; without, it is called for whatever is needed, which may be the clean view alone.
    """

    def register_it(function: _Function) -> _Function:
        available = AVAILABLE if views else AVAILABLE[:2]
        register("calibration", CALIBRATIONS, function, available, views=views)
        return function

    return register_it if function is None else register_it(function)
