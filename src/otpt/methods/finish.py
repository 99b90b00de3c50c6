"""From logits to an output, image by image on the host: calibrate, then aggregate.

What goes wrong in a user's own function of an axis becomes one sentence that names it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from otpt.calibration import fixed_temperature, probabilities
from otpt.errors import OtptError
from otpt.methods.method import Method
from otpt.methods.output import KEPT_INIT, Output
from otpt.registry import AGGREGATIONS, CALIBRATIONS, CLEAN, NONE, Component, describe, reason

Available = Mapping[str, Callable[[], Any]]
"""What a function may ask for by the names of its parameters, computed when it does."""

Extras = Mapping[str, float]
"""Further numbers of an image, which become columns of the results."""

_SUM_TOLERANCE = 1e-3


class ImageScores(NamedTuple):
    """One image under a prompt, on the host.

    Attributes:
        logits: (1, C) of the clean view.
        view_logits: (V, C) of all views, the clean one first.
        features: (V, D) of all views.
        text_features: (C, D).
        mean_cosine: between text features of different classes; nan without any.
        skipped: whether a gradient was not finite, so that the image kept the initial prompt.
    """

    logits: Tensor
    view_logits: Tensor | None
    features: Tensor | None
    text_features: Tensor | None
    mean_cosine: float = math.nan
    skipped: bool = False


def finish(
    method: Method,
    now: ImageScores,
    before: ImageScores,
    available: Available,
    settings: Mapping[str, float],
    *,
    tower: str,
    official: bool,
    name: str,
    extras: Extras,
) -> Output:
    """The output of an image as an adaptation left it (``now``) and at the init (``before``).

    Args:
        available: what functions may ask for by the names of their parameters.
        settings: of the method's functions.
        tower: the backbone's kind of image tower, for published temperatures.
        official: round logits and softmax to float16 as the official scripts do.
        name: of the image, for messages.
        extras: numbers that are known already.
    """
    available = {
        **available,
        "adapted_text_features": lambda: now.text_features,
        "mean_cosine": lambda: now.mean_cosine,
    }
    all_views = method.aggregate != CLEAN or CALIBRATIONS[method.calibrate].views
    given, zero_shot = (now.view_logits, before.view_logits) if all_views else (now.logits, before.logits)
    assert given is not None
    assert zero_shot is not None
    logits, more = calibrated(method, given, zero_shot, available, settings, tower=tower, official=official, name=name)
    if method.aggregate == CLEAN:
        distribution = _softmax(logits[:1])
        # The class comes from the logits before calibration, which keeps their order while rounding may make ties of
        # near-ties. The official scripts do take it from their rounded softmax, and a user's function may change it.
        changes = official or bool(CALIBRATIONS[method.calibrate].digest)
        index = int((distribution if changes else now.logits).argmax(dim=1))
        found = distribution[0]
    else:
        available = {
            **available,
            "zero_shot": lambda: zero_shot,
            "uncalibrated": lambda: _half(given).float() if official else given,
        }
        found, own = _aggregate(method, logits, available, settings, name)
        more, index = {**more, **own}, int(found.double().argmax())
    return Output(
        np.asarray(found.double().numpy()),
        index,
        flags=(KEPT_INIT,) if now.skipped else (),
        extras={**extras, **more},
        logits=now.logits[0] if method.aggregate == CLEAN else None,
    )


def calibrated(
    method: Method,
    logits: Tensor,
    zero_shot: Tensor,
    available: Available,
    settings: Mapping[str, float],
    *,
    tower: str = "vit",
    official: bool = False,
    name: str = "image",
) -> tuple[Tensor, Extras]:
    """Rescaled logits (V, C) of (V, C), given the zero-shot ones (V, C); and extras. See :func:`finish`."""
    if official:
        logits, zero_shot = _half(logits), _half(zero_shot)
    if method.calibrate == NONE:
        return logits, {}
    if method.calibrate == "temperature":
        return logits / (method.temperature or fixed_temperature(tower)), {}
    if official:  # Robust-adapt keeps float16 logits, and rescales them in float32
        logits, zero_shot = logits.float(), zero_shot.float()
    own = {**available, "logits": lambda: logits, "zero_shot": lambda: zero_shot}
    return call_function(CALIBRATIONS[method.calibrate], "calibrator", own, settings, tuple(logits.shape), name)


def _aggregate(
    method: Method, logits: Tensor, available: Available, settings: Mapping[str, float], name: str
) -> tuple[Tensor, Extras]:
    """Probabilities (C,) by a function of all views."""
    value = AGGREGATIONS[method.aggregate]
    own: Available = {**available, "logits": lambda: logits, "probabilities": lambda: _softmax(logits)}
    found, extras = call_function(value, "aggregation", own, settings, tuple(logits.shape[-1:]), name)
    total = float(found.sum())
    if bool((found < 0).any()) or not math.isclose(total, 1.0, abs_tol=_SUM_TOLERANCE):
        raise OtptError(
            f"The aggregation {value.name!r} returned numbers from {float(found.min()):g} that sum to {total:g} "
            f"for the image {name!r}; expected probabilities of shape {tuple(found.shape)}."
        )
    return found / found.sum(), extras


def _softmax(logits: Tensor) -> Tensor:
    """Half precision (official) is computed by torch's own float16 kernel, and returned as float32."""
    return probabilities(logits, official=logits.dtype == torch.float16)


def _half(logits: Tensor) -> Tensor:
    half = logits.to(torch.float16)
    if not bool(torch.isfinite(half).all()):
        raise OtptError("expected logits within ±65504, what float16 holds, but got a larger one.")
    return half


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
