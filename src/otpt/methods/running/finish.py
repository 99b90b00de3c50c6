"""From adapted logits to outputs: calibrate, then aggregate."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from otpt.calibration import fixed_temperature, probabilities
from otpt.errors import OtptError
from otpt.methods.method import Method
from otpt.methods.output import KEPT_INIT, Adapted, Output
from otpt.methods.running.calling import Available, Extras, call_function
from otpt.registry import AGGREGATIONS, CALIBRATIONS, CLEAN, NONE, Component
from otpt.threads import in_threads

_SUM_TOLERANCE = 1e-3


def finish(
    method: Method,
    adapted: Adapted,
    initial: Adapted,
    *,
    tower: str,
    official: bool,
    available: Callable[[int], Available],
    settings: Mapping[str, float],
    names: Sequence[str],
) -> list[Output]:
    """The outputs of B images, whose logits are on the host.

    Args:
        tower: the backbone's kind of image tower, for published temperatures.
        official: round logits and softmax to float16 as the official scripts do.
        available: position → what a function of that image may ask for (features, texts …).
        settings: of the method's functions.
        names: of the images, for messages.
    """
    finisher = _Finisher(method, adapted, initial, tower, official, available, settings, names)
    calibration = CALIBRATIONS[method.calibrate]
    if method.aggregate == CLEAN:
        logits, more = finisher.calibrate_each() if _one_by_one(calibration) else finisher.calibrate_together()
        rows, indices = _clean(logits, adapted.logits, official=official, own=bool(calibration.digest))
    else:
        made = in_threads(finisher.aggregate, range(len(names)))
        more = [extras for _, extras in made]
        stacked = torch.stack([distribution for distribution, _ in made]).double()
        rows, indices = stacked.numpy(), stacked.argmax(dim=1).tolist()
    skipped = adapted.skipped.tolist()
    extras = {name: values.tolist() for name, values in adapted.extras.items()}
    return [
        Output(
            row,
            index,
            flags=(KEPT_INIT,) if skipped[i] else (),
            extras={**{name: float(values[i]) for name, values in extras.items()}, **more[i]},
            logits=adapted.logits[i] if method.aggregate == CLEAN else None,
        )
        for i, (row, index) in enumerate(zip(rows, indices, strict=True))
    ]


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
    """Rescaled logits (…, C) of (…, C), given the zero-shot ones (…, C) and what is ``available``; and extras.

    The further arguments are those of :func:`finish`, ``name`` for messages. With ``official`` logits are rounded to
    float16 first.
    """
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


def _one_by_one(calibration: Component) -> bool:
    """Whether a calibration is called for each image; one of ours that looks at logits alone takes all together."""
    if calibration.digest or calibration.views or calibration.function is None:
        return calibration.function is not None
    return not {"logits", "zero_shot"}.issuperset(calibration.parameters)


def _clean(calibrated: Tensor, logits: Tensor, *, official: bool, own: bool) -> tuple[Any, list[int]]:
    """Probabilities (B, C) of the clean views, and the predicted classes.

    The class comes from the logits before calibration, which keeps their order while rounding may make ties of
    near-ties. The official scripts do take it from their rounded softmax, and a user's own function may change it.
    """
    distribution = _softmax(calibrated)
    best = (distribution if official or own else logits).argmax(dim=1)
    return distribution.double().numpy(), best.tolist()


def _softmax(logits: Tensor) -> Tensor:
    """Half precision (official) is computed by torch's own float16 kernel, and handed on as float32."""
    return probabilities(logits, official=logits.dtype == torch.float16)


def _half(logits: Tensor) -> Tensor:
    half = logits.to(torch.float16)
    if not bool(torch.isfinite(half).all()):
        raise OtptError("expected logits within ±65504, what float16 holds, but got a larger one.")
    return half


@dataclass(frozen=True)
class _Finisher:
    """The arguments of :func:`finish`."""

    method: Method
    adapted: Adapted
    initial: Adapted
    tower: str
    official: bool
    available: Callable[[int], Available]
    settings: Mapping[str, float]
    names: Sequence[str]

    def calibrate_together(self) -> tuple[Tensor, list[Extras]]:
        """Logits (B, C) of the clean views, where each row is rescaled for itself; no extras."""
        logits, _ = self.calibrate(self.adapted.logits, self.initial.logits, {}, self.names[0])
        return logits, [{} for _ in self.names]

    def calibrate_each(self) -> tuple[Tensor, list[Extras]]:
        """Logits (B, C) of the clean views, image by image, so that none depends on its neighbours."""
        all_views = CALIBRATIONS[self.method.calibrate].views

        def one(i: int) -> tuple[Tensor, Extras]:
            if all_views:
                own, zero_shot = self.adapted.view_logits(i), self.initial.view_logits(i)
            else:
                own, zero_shot = self.adapted.logits[i : i + 1], self.initial.logits[i : i + 1]
            return self.calibrate(own, zero_shot, self._available(i), self.names[i])

        made = in_threads(one, range(len(self.names)))
        return torch.cat([logits[:1] for logits, _ in made]), [extras for _, extras in made]

    def calibrate(self, logits: Tensor, zero_shot: Tensor, available: Available, name: str) -> tuple[Tensor, Extras]:
        """See :func:`calibrated`."""
        numbers: dict[str, Any] = {"tower": self.tower, "official": self.official, "name": name}
        return calibrated(self.method, logits, zero_shot, available, self.settings, **numbers)

    def aggregate(self, i: int) -> tuple[Tensor, Extras]:
        """Probabilities (C,) of image ``i``, by a function of all its views."""
        value, name = AGGREGATIONS[self.method.aggregate], self.names[i]
        zero_shot, available = self.initial.view_logits(i), self._available(i)
        adapted = self.adapted.view_logits(i)
        logits, extras = self.calibrate(adapted, zero_shot, available, name)
        own: Available = {
            **available,
            "logits": lambda: logits,
            "zero_shot": lambda: zero_shot,
            "probabilities": lambda: _softmax(logits),
            "uncalibrated": lambda: _half(adapted).float() if self.official else adapted,
        }
        found, more = call_function(value, "aggregation", own, self.settings, tuple(logits.shape[-1:]), name)
        total = float(found.sum())
        if bool((found < 0).any()) or not math.isclose(total, 1.0, abs_tol=_SUM_TOLERANCE):
            raise OtptError(
                f"The aggregation {value.name!r} returned numbers from {float(found.min()):g} that sum to {total:g} "
                f"for the image {name!r}; expected probabilities of shape {tuple(found.shape)}."
            )
        return found / found.sum(), {**extras, **more}

    def _available(self, i: int) -> Available:
        return {
            **self.available(i),
            "adapted_text_features": lambda: self.adapted.text_features(i),
            "mean_cosine": lambda: float(self.adapted.extras["mean_cosine"][i]),
        }
