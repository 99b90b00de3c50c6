"""From adapted logits to outputs: calibrate, then aggregate."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from otpt.calibration import fixed_temperature, probabilities
from otpt.calibration.registry import CALIBRATIONS
from otpt.errors import OtptError
from otpt.methods.axes import AGGREGATIONS, CLEAN, NONE
from otpt.methods.calling import Available, call_function
from otpt.methods.method import Method
from otpt.methods.output import KEPT_INIT, Adapted, Output

_SUM_TOLERANCE = 1e-3


def finish(
    method: Method,
    adapted: Adapted,
    initial: Adapted,
    *,
    tower: str,
    official: bool,
    available: Callable[[int], Available],
    names: list[str],
) -> list[Output]:
    """The outputs of B images.

    Args:
        tower: the backbone's kind of image tower, for published temperatures.
        official: round logits and softmax to float16 as the official scripts do.
        available: position → what a function of that image may ask for (features, texts …).
        names: of the images, for messages.
    """
    if method.aggregate == CLEAN:
        calibrated = _calibrate_all(method, adapted.logits, initial.logits, tower, official, names)
        shares = _softmax(calibrated)
        # From the logits: calibration keeps their order, but rounding may make ties of near-ties. The official scripts
        # do take the label from their rounded softmax.
        best = (shares if official or CALIBRATIONS[method.calibrate].digest else adapted.logits).argmax(dim=1)
        rows, indices = shares.double().cpu().numpy(), best.tolist()
    else:
        made = [_aggregate(method, adapted, initial, i, tower, official, available(i), n) for i, n in enumerate(names)]
        stacked = torch.stack(made).double().cpu()
        rows, indices = stacked.numpy(), stacked.argmax(dim=1).tolist()
    skipped = adapted.skipped.tolist()
    extras = {name: values.tolist() for name, values in adapted.extras.items()}
    return [
        Output(
            row,
            index,
            flags=(KEPT_INIT,) if skipped[i] else (),
            extras={name: float(values[i]) for name, values in extras.items()},
            logits=adapted.logits[i] if method.aggregate == CLEAN else None,
        )
        for i, (row, index) in enumerate(zip(rows, indices, strict=True))
    ]


def _softmax(logits: Tensor) -> Tensor:
    """Half precision (official) is computed by torch's own float16 kernel, and handed on as float32."""
    return probabilities(logits, official=logits.dtype == torch.float16)


def _calibrate_all(
    method: Method, logits: Tensor, zero_shot: Tensor, tower: str, official: bool, names: list[str]
) -> Tensor:
    """Of the clean views (B, C); a user's function sees one image at a time, so that none depends on its neighbours."""
    if not CALIBRATIONS[method.calibrate].digest:
        return _calibrate(method, logits, zero_shot, tower, official, names[0])
    rows = zip(logits.split(1), zero_shot.split(1), names, strict=True)
    return torch.cat([_calibrate(method, own, initial, tower, official, name) for own, initial, name in rows])


def _calibrate(method: Method, logits: Tensor, zero_shot: Tensor, tower: str, official: bool, name: str) -> Tensor:
    """Rescaled logits (…, C) of (…, C); with ``official`` of logits that were rounded to float16 first."""
    if official:
        logits, zero_shot = _half(logits), _half(zero_shot)
    if method.calibrate == NONE:
        return logits
    if method.calibrate == "temperature":
        return logits / (method.temperature or fixed_temperature(tower))
    if official:  # Robust-adapt keeps float16 logits, and rescales them in float32
        logits, zero_shot = logits.float(), zero_shot.float()
    available = {"logits": lambda: logits, "zero_shot": lambda: zero_shot}
    return call_function(CALIBRATIONS[method.calibrate], "calibration", available, tuple(logits.shape), name)


def _half(logits: Tensor) -> Tensor:
    half = logits.to(torch.float16)
    if not bool(torch.isfinite(half).all()):
        raise OtptError("expected logits within ±65504, what float16 holds, but got a larger one.")
    return half


def _aggregate(
    method: Method,
    adapted: Adapted,
    initial: Adapted,
    i: int,
    tower: str,
    official: bool,
    available: Available,
    name: str,
) -> Tensor:
    value = AGGREGATIONS[method.aggregate]
    zero_shot = initial.view_logits(i)
    logits = _calibrate(method, adapted.view_logits(i), zero_shot, tower, official, name)
    own = {"logits": lambda: logits, "zero_shot": lambda: zero_shot, "probabilities": lambda: _softmax(logits)}
    found = call_function(value, "aggregation", {**available, **own}, tuple(logits.shape[-1:]), name)
    total = float(found.sum())
    if bool((found < 0).any()) or not math.isclose(total, 1.0, abs_tol=_SUM_TOLERANCE):
        raise OtptError(
            f"The aggregation {value.name!r} returned numbers from {float(found.min()):g} that sum to {total:g} for "
            f"the image {name!r}; expected probabilities of shape {tuple(found.shape)}."
        )
    return found / found.sum()
