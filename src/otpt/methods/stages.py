"""Stages of a method on one image: gate, adapt, calibrate, aggregate.

An :class:`ImageState` goes through the :class:`Stages` of a method on the host; tuning of contexts, which is batched
on the device, comes before (:mod:`otpt.methods.path`). :mod:`otpt.functional` calls the same stages on arrays.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from otpt.calibration import fixed_temperature, probabilities
from otpt.errors import OtptError, describe_error
from otpt.methods.method import Method
from otpt.methods.protocol import Protocol
from otpt.methods.state import PromptState, Scores, mean_cosine
from otpt.registry import (
    ADAPTATIONS,
    AGGREGATIONS,
    CALIBRATIONS,
    CLEAN,
    GATES,
    NONE,
    STATE,
    Component,
    describe,
)

KEPT_INIT = "init-kept"
"""Flag of an image predicted with the initial prompt because its gradient was not finite."""
GATED = "adapted"
"""Extra of a gated method: 1 if the image was adapted, 0 for zero-shot."""

Arguments = Mapping[str, object]
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


@dataclass(frozen=True)
class ImageState:
    """One image on its way through the stages of a method.

    Attributes:
        name: name of the image in messages.
        initial: scores of this image (B = 1) under the initial prompt.
        scores: scores after the adaptation; the initial ones before it.
        arguments: function arguments under the initial prompt.
        logits: (V, C) of all views, or (1, C) of the clean view, after calibration; None before it.
        extras: numbers that the stages have added so far.
    """

    name: str
    initial: Scores
    scores: Scores
    arguments: Arguments
    logits: Tensor | None = None
    extras: Extras = field(default_factory=dict)

    def with_extras(self, extras: Extras) -> ImageState:
        """Return a copy with further extras."""
        return replace(self, extras={**self.extras, **extras})

    def rows(self, *, all_views: bool) -> tuple[Tensor, Tensor]:
        """Return adapted and zero-shot logits, (V, C) of all views or (1, C) of the clean one."""
        if not all_views:
            return self.scores.logits, self.initial.logits
        assert self.scores.view_logits is not None
        assert self.initial.view_logits is not None
        return self.scores.view_logits[0], self.initial.view_logits[0]

    @property
    def adapted_arguments(self) -> dict[str, object]:
        """Function arguments after the adaptation."""
        scores = self.scores
        arguments = {
            **self.arguments,
            "adapted_text_features": scores.text_features[0],
            "mean_cosine": float(scores.mean_cosine[0]),
        }
        if scores.features is not None:  # features that depend on the context
            arguments["features"] = scores.features[0]
        return arguments


@dataclass(frozen=True)
class Stages:
    """Stages of one method on one image.

    Attributes:
        method: the method.
        protocol: published numbers and precision.
        tower: kind of the backbone's image tower, for published temperatures.
    """

    method: Method
    protocol: Protocol
    tower: str = "vit"

    @cached_property
    def numbers(self) -> Mapping[str, object]:
        """Settings of the method's functions that differ from their defaults."""
        return self.method.settings_for(*self.protocol.place)

    @property
    def official(self) -> bool:
        """Whether logits and softmax are rounded to float16 as the official scripts do."""
        return self.protocol.official_precision

    @property
    def temperature(self) -> float:
        """Divisor of the logits of a method with the calibrator "temperature"."""
        return self.method.temperature or fixed_temperature(self.tower)

    def gate(self, state: ImageState) -> tuple[bool, Extras]:
        """Return whether the image is adapted, with the extras of the gate; True without a gate."""
        if self.method.gate == NONE:
            return True, {}
        decision, extras = call_function(
            GATES[self.method.gate], "gate", state.arguments, self.numbers, state.name, None
        )
        return bool(decision), extras

    def adapt(self, state: ImageState, texts: PromptState, carried: dict[str, object]) -> ImageState:
        """Adapt the image by the method's function; ``carried`` is the state of a stream."""
        function = ADAPTATIONS[self.method.adapt]
        arguments = {**state.arguments, "logits": state.arguments["zero_shot"], STATE: carried}
        like = state.arguments["text_features" if function.gives_texts else "zero_shot"]
        features = state.arguments["features"]
        assert isinstance(like, Tensor)
        assert isinstance(features, Tensor)
        result, extras = call_function(function, "adaptation", arguments, self.numbers, state.name, tuple(like.shape))
        assert isinstance(result, Tensor)
        if not function.gives_texts:
            scores = replace(state.scores, logits=result[:1], view_logits=result[None])
        else:
            logits = texts.logits(features, result)
            scores = replace(
                state.scores,
                logits=logits[:1],
                view_logits=logits[None],
                text_features=result[None],
                mean_cosine=mean_cosine(result)[None],
            )
        return replace(state, scores=scores).with_extras(extras)

    def calibrate(self, state: ImageState) -> ImageState:
        """Rescale the logits."""
        adapted, zero_shot = state.rows(all_views=self.method.needs_adapted_views)
        extras = {"mean_cosine": float(state.scores.mean_cosine[0]), **state.extras}
        logits = adapted
        if self.official or self.method.calibrate != NONE:
            logits, more = self.rescale(adapted, zero_shot, state.adapted_arguments, state.name)
            extras |= more
        return replace(state, logits=logits, extras=extras)

    def aggregate(self, state: ImageState) -> Output:
        """Combine the views to one prediction."""
        assert state.logits is not None
        clean = state.scores.logits[0]
        if self.method.aggregate == CLEAN:
            distribution, extras = softmax(state.logits[:1])[0], dict(state.extras)
            # The class is the argmax before calibration: calibration keeps the order, but rounding may create ties.
            # The official scripts take the argmax of the rounded softmax, and custom functions may change the class.
            changes = self.official or bool(CALIBRATIONS[self.method.calibrate].digest)
            index = int((distribution if changes else clean).argmax())
        else:
            adapted, zero_shot = state.rows(all_views=self.method.needs_adapted_views)
            arguments = state.adapted_arguments
            distribution, more = self.combine(state.logits, adapted, zero_shot, arguments, state.name)
            extras = {**state.extras, **more}
            index = int(distribution.double().argmax())
        return Output(
            np.asarray(distribution.double().numpy()),
            index,
            flags=(KEPT_INIT,) if state.scores.skipped[0] else (),
            extras=extras,
            logits=clean if self.method.aggregate == CLEAN else None,
        )

    def rescale(
        self, logits: Tensor, zero_shot: Tensor, arguments: Arguments, name: str = "image"
    ) -> tuple[Tensor, Extras]:
        """Calibrate logits (V, C) given the zero-shot logits (V, C); return them with extras."""
        calibrate = self.method.calibrate
        if self.official:
            logits, zero_shot = _half(logits), _half(zero_shot)
        if calibrate == NONE:
            return logits, {}
        if calibrate == "temperature":
            return logits / self.temperature, {}
        if self.official:  # Robust-adapt stores float16 logits and rescales them in float32
            logits, zero_shot = logits.float(), zero_shot.float()
        arguments = {**arguments, "logits": logits, "zero_shot": zero_shot}
        result, extras = call_function(
            CALIBRATIONS[calibrate], "calibrator", arguments, self.numbers, name, tuple(logits.shape)
        )
        assert isinstance(result, Tensor)
        return result, extras

    def combine(
        self, logits: Tensor, uncalibrated: Tensor, zero_shot: Tensor, arguments: Arguments, name: str = "image"
    ) -> tuple[Tensor, Extras]:
        """Aggregate the logits (V, C) of the views to probabilities (C,); return them with extras."""
        aggregate = self.method.aggregate
        if aggregate == CLEAN:
            return softmax(logits[:1])[0], {}
        arguments = {
            **arguments,
            "zero_shot": zero_shot,
            "uncalibrated": _half(uncalibrated).float() if self.official else uncalibrated,
            "logits": logits,
            "probabilities": softmax(logits),
        }
        shape = tuple(logits.shape[-1:])
        result, extras = call_function(AGGREGATIONS[aggregate], "aggregation", arguments, self.numbers, name, shape)
        assert isinstance(result, Tensor)
        total = float(result.sum())
        if bool((result < 0).any()) or not math.isclose(total, 1.0, abs_tol=_SUM_TOLERANCE):
            raise OtptError(
                f"The aggregation {aggregate!r} returned numbers from {float(result.min()):g} that sum to {total:g} "
                f"for the image {name!r}; expected probabilities of shape {shape}."
            )
        return result / result.sum(), extras


def softmax(logits: Tensor) -> Tensor:
    """Return the softmax of finite logits (…, C), computed in their type and returned in float32 or wider."""
    if not bool(logits.isfinite().all()):
        raise OtptError("expected finite logits, but got nan or infinity.")
    distribution = logits.softmax(dim=-1)  # in float16 for official precision
    return distribution.float() if distribution.dtype == torch.float16 else distribution


def _half(logits: Tensor) -> Tensor:
    half = logits.to(torch.float16)
    if not bool(torch.isfinite(half).all()):
        raise OtptError("expected logits within ±65504, the range of float16, but got a larger one.")
    return half


def call_function(
    component: Component,
    kind: str,
    arguments: Arguments,
    settings: Mapping[str, object],
    name: str,
    shape: tuple[int, ...] | None,
) -> tuple[Tensor | bool, Extras]:
    """Call a function for the image ``name``; return a finite tensor of ``shape``, or a bool if None, and extras."""
    try:
        result = component.call(arguments, settings)
    except Exception as error:
        numerical = isinstance(error, (ArithmeticError, torch.linalg.LinAlgError))  # type: ignore[attr-defined]
        if not component.digest and not numerical:  # a bug in a built-in function
            raise
        inputs = {key: arguments.get(key) for key in component.parameters}
        shapes = [f"{key} of shape {tuple(value.shape)}" for key, value in inputs.items() if isinstance(value, Tensor)]
        seen = f", which has {', '.join(shapes)}" if shapes else ""
        raise OtptError(
            f"The {kind} {component.name!r} failed on the image {name!r}{seen}: {describe_error(error)}."
        ) from error
    extras: Extras = {}
    if isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], Mapping):
        try:
            extras = {key: float(number) for key, number in result[1].items()}
        except (TypeError, ValueError):
            raise OtptError(
                f"The {kind} {component.name!r} returned extras that are not numbers for the image {name!r}; expected "
                "a tensor and {name: number}."
            ) from None
        result = result[0]
    returned = describe(result)
    if shape is None and (isinstance(result, (bool, np.bool_)) or (isinstance(result, Tensor) and result.numel() == 1)):
        return bool(result), extras
    if isinstance(result, Tensor) and tuple(result.shape) == shape:
        if bool(result.isfinite().all()):
            return result, extras
        returned = "nan or infinity"
    expected = "True or False" if shape is None else f"a finite tensor of shape {shape}"
    raise OtptError(f"The {kind} {component.name!r} returned {returned} for the image {name!r}; expected {expected}.")
