"""Calling functions of the axes. What goes wrong in a user's own function becomes one sentence that names it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from otpt.errors import OtptError
from otpt.methods.prompt_tuning.config import TuningConfig
from otpt.registry import OBJECTIVES, Component, describe, reason

Available = Mapping[str, Callable[[], Any]]
"""What a function may ask for by the names of its parameters, computed when it does."""

Extras = Mapping[str, float]
"""Further numbers of an image, which become columns of the results."""


def call_function(
    value: Component, kind: str, available: Available, settings: Mapping[str, float], shape: tuple[int, ...], name: str
) -> tuple[Tensor, Extras]:
    """What a function of an axis returns for the image ``name``: a finite tensor of this shape, and extras."""
    found, extras = _with_extras(_call(value, kind, available, settings, name), value, kind, name)
    if not isinstance(found, Tensor) or tuple(found.shape) != shape:
        raise OtptError(
            f"The {kind} {value.name!r} returned {describe(found)} for the image {name!r}; expected a tensor of shape "
            f"{shape}."
        )
    if not bool(found.isfinite().all()):
        raise OtptError(
            f"The {kind} {value.name!r} returned nan or infinity in a tensor of shape {shape} for the image {name!r}."
        )
    return found, extras


@dataclass(frozen=True)
class GateAnswer:
    """Whether a method adapts an image, and what the gate says beside it."""

    is_open: bool = True
    extras: Extras = field(default_factory=dict)


def call_gate(value: Component, available: Available, settings: Mapping[str, float], name: str) -> GateAnswer:
    """What a gate says of the image ``name``."""
    found, extras = _with_extras(_call(value, "gate", available, settings, name), value, "gate", name)
    if isinstance(found, (bool, np.bool_)) or (isinstance(found, Tensor) and found.numel() == 1):
        return GateAnswer(bool(found), extras)
    raise OtptError(
        f"The gate {value.name!r} returned {describe(found)} for the image {name!r}; expected True or False."
    )


def _with_extras(found: Any, value: Component, kind: str, name: str) -> tuple[Any, Extras]:
    if not (isinstance(found, tuple) and len(found) == 2 and isinstance(found[1], Mapping)):
        return found, {}
    try:
        return found[0], {key: float(number) for key, number in found[1].items()}
    except (TypeError, ValueError):
        raise OtptError(
            f"The {kind} {value.name!r} returned extras that are not numbers for the image {name!r}; expected a tensor "
            "and {name: number}."
        ) from None


def _call(value: Component, kind: str, available: Available, settings: Mapping[str, float], name: str) -> Any:
    try:
        return value.call(available, settings)
    except Exception as error:
        if not value.digest:
            raise
        shapes = ", ".join(
            f"{key} of shape {tuple(each.shape)}"
            for key, each in ((key, available[key]()) for key in value.parameters if key in available)
            if hasattr(each, "shape")
        )
        seen = f", which has {shapes}" if shapes else ""
        raise OtptError(f"The {kind} {value.name!r} failed on the image {name!r}{seen}: {reason(error)}.") from error


@contextmanager
def naming_images(names: Sequence[str], configs: Sequence[TuningConfig]) -> Iterator[None]:
    """Says on which image a user's objective failed; objectives themselves see no names."""
    try:
        yield
    except OtptError as error:
        if not any(OBJECTIVES[each].digest for config in configs for each, _ in config.weights):
            raise
        where = f"The image was {names[0]!r}" if len(names) == 1 else f"The images were {names[0]!r} to {names[-1]!r}"
        raise OtptError(f"{error} {where}.") from error
