"""Host phase of the prediction path: calibration and aggregation of each image."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from otpt.calibration import fixed_temperature, probabilities
from otpt.errors import OtptError
from otpt.methods.method import Method
from otpt.methods.state import Scores
from otpt.registry import AGGREGATIONS, CALIBRATIONS, CLEAN, NONE, Component, describe, reason

KEPT_INIT = "init-kept"
"""Flag of an image predicted with the initial prompt because its gradient was not finite."""

Available = Mapping[str, Any]
"""Function arguments by name (:data:`otpt.registry.AVAILABLE`)."""
Extras = Mapping[str, float]
"""Additional numbers of an image, stored as columns of the results."""

_SUM_TOLERANCE = 1e-3


@dataclass(frozen=True)
class Output:
    """Prediction of one image by one method.

    Attributes:
        probabilities: (C,) float64, summing to one.
        index: the predicted class.
        flags: such as :data:`KEPT_INIT`; usually empty.
        extras: additional columns of the results (``mean_cosine``, ``temperature`` …).
        logits: (C,) of the clean view before calibration; None if other views contribute.
    """

    probabilities: npt.NDArray[np.float64]
    index: int
    flags: tuple[str, ...] = ()
    extras: Extras = field(default_factory=dict)
    logits: Tensor | None = field(default=None, compare=False, repr=False)

    @classmethod
    def of_clean(
        cls, logits: Tensor, *, official: bool, flags: tuple[str, ...] = (), extras: Extras | None = None
    ) -> Output:
        """Make an output of the softmax of the clean view's logits (1, C); ``official`` as in :func:`probabilities`."""
        distribution = probabilities(logits, official=official)[0].double().numpy()
        return cls(distribution, int(distribution.argmax()), flags, extras or {})

    @property
    def confidence(self) -> float:
        """Largest probability."""
        return float(self.probabilities.max())


def finish(
    method: Method,
    before: Scores,
    now: Scores,
    available: Available,
    settings: Mapping[str, Any],
    *,
    tower: str,
    official: bool = False,
    name: str = "image",
    extras: Extras,
) -> Output:
    """Calibrate and aggregate the scores of one image at the init (``before``) and after the adaptation (``now``).

    Args:
        available: function arguments that are not computed here.
        settings: of the method's functions.
        tower: the backbone's kind of image tower, for published temperatures.
        official: round logits and softmax to float16 as the official scripts do.
        name: of the image, for messages.
    """
    adapted, zero_shot = now.logits, before.logits
    if method.needs_adapted_views:
        assert now.view_logits is not None
        assert before.view_logits is not None
        adapted, zero_shot = now.view_logits[0], before.view_logits[0]
    given = {**available, "adapted_text_features": now.text_features[0], "mean_cosine": float(now.mean_cosine[0])}
    if now.features is not None:  # features that depend on the context
        given["features"] = now.features[0]
    logits, more = adapted, {"mean_cosine": given["mean_cosine"], **extras}
    if official or method.calibrate != NONE:
        logits, own = calibrated(method, adapted, zero_shot, given, settings, tower=tower, official=official, name=name)
        more |= own
    if method.aggregate == CLEAN:
        found = _softmax(logits[:1])[0]
        # The class is the argmax before calibration: calibration keeps the order, but rounding may create ties.
        # The official scripts take the argmax of the rounded softmax, and custom functions may change the class.
        changes = official or bool(CALIBRATIONS[method.calibrate].digest)
        index = int((found if changes else now.logits[0]).argmax())
    else:
        uncalibrated = _half(adapted).float() if official else adapted
        given |= {"zero_shot": zero_shot, "uncalibrated": uncalibrated}
        given |= {"logits": logits, "probabilities": _softmax(logits)}
        shape = tuple(logits.shape[-1:])
        found, own = call_function(AGGREGATIONS[method.aggregate], "aggregation", given, settings, name, shape)
        total = float(found.sum())
        if bool((found < 0).any()) or not math.isclose(total, 1.0, abs_tol=_SUM_TOLERANCE):
            raise OtptError(
                f"The aggregation {method.aggregate!r} returned numbers from {float(found.min()):g} that sum to "
                f"{total:g} for the image {name!r}; expected probabilities of shape {shape}."
            )
        found = found / found.sum()
        more |= own
        index = int(found.double().argmax())
    return Output(
        np.asarray(found.double().numpy()),
        index,
        flags=(KEPT_INIT,) if now.skipped[0] else (),
        extras=more,
        logits=now.logits[0] if method.aggregate == CLEAN else None,
    )


def calibrated(
    method: Method,
    logits: Tensor,
    zero_shot: Tensor,
    available: Available,
    settings: Mapping[str, Any],
    *,
    tower: str = "vit",
    official: bool = False,
    name: str = "image",
) -> tuple[Tensor, Extras]:
    """Calibrate logits (V, C) given the zero-shot logits (V, C) and return them with extras; see :func:`finish`."""
    if official:
        logits, zero_shot = _half(logits), _half(zero_shot)
    if method.calibrate == NONE:
        return logits, {}
    if method.calibrate == "temperature":
        return logits / (method.temperature or fixed_temperature(tower)), {}
    if official:  # Robust-adapt stores float16 logits and rescales them in float32
        logits, zero_shot = logits.float(), zero_shot.float()
    own = {**available, "logits": logits, "zero_shot": zero_shot}
    return call_function(CALIBRATIONS[method.calibrate], "calibrator", own, settings, name, tuple(logits.shape))


def _softmax(logits: Tensor) -> Tensor:
    if not bool(logits.isfinite().all()):
        raise OtptError("expected finite logits, but got nan or infinity.")
    found = logits.softmax(dim=-1)  # in float16 for official precision
    return found.float() if found.dtype == torch.float16 else found


def _half(logits: Tensor) -> Tensor:
    half = logits.to(torch.float16)
    if not bool(torch.isfinite(half).all()):
        raise OtptError("expected logits within ±65504, the range of float16, but got a larger one.")
    return half


def call_function(
    value: Component,
    kind: str,
    available: Available,
    settings: Mapping[str, Any],
    name: str,
    shape: tuple[int, ...] | None,
) -> tuple[Any, Extras]:
    """Call a function for the image ``name``; return a finite tensor of ``shape``, or a bool if None, and extras."""
    try:
        found = value.call(available, settings)
    except Exception as error:
        if not value.digest:  # a built-in function
            raise
        inputs: dict[str, Any] = {key: available.get(key) for key in value.parameters}
        shapes = [f"{key} of shape {tuple(each.shape)}" for key, each in inputs.items() if hasattr(each, "shape")]
        seen = f", which has {', '.join(shapes)}" if shapes else ""
        raise OtptError(f"The {kind} {value.name!r} failed on the image {name!r}{seen}: {reason(error)}.") from error
    extras: Extras = {}
    if isinstance(found, tuple) and len(found) == 2 and isinstance(found[1], Mapping):
        try:
            found, extras = found[0], {key: float(number) for key, number in found[1].items()}
        except (TypeError, ValueError):
            raise OtptError(
                f"The {kind} {value.name!r} returned extras that are not numbers for the image {name!r}; expected a "
                "tensor and {name: number}."
            ) from None
    returned, is_tensor = describe(found), isinstance(found, Tensor)
    if shape is None and (isinstance(found, (bool, np.bool_)) or (is_tensor and found.numel() == 1)):
        return bool(found), extras
    if is_tensor and tuple(found.shape) == shape:
        if bool(found.isfinite().all()):
            return found, extras
        returned = "nan or infinity"
    expected = "True or False" if shape is None else f"a finite tensor of shape {shape}"
    raise OtptError(f"The {kind} {value.name!r} returned {returned} for the image {name!r}; expected {expected}.")
