"""Functional interface: methods on arrays of view features and text features, or with a text encoder.

    functional.predict(views, texts, method="mean-feature")           # (N, V, D), (C, D) → probabilities (N, C)
    functional.tune(views, encoder, context, method="o-tpt")          # tuned contexts, text features, logits

Evaluations run the same stages. Arrays are numpy arrays, torch tensors or lists of finite numbers in float16, bfloat16,
float32 or float64, in any mixture; results are torch tensors. Half precision is computed in float32. View features are
unit vectors, clean view first. N is the number of images, V of views, C of classes; D is the feature dimension, (n, W)
the shape of a context.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from otpt.arrays import FLOATS, Array, as_array, as_images, as_tensor, check_finite, check_number, check_type, to_tensor
from otpt.errors import OtptError
from otpt.methods import Method, Protocol, get_method
from otpt.methods.few_shot import EXAMPLE_INITS, example_state
from otpt.methods.path import PromptGroup
from otpt.methods.stages import Stages
from otpt.methods.state import Encoder, PromptState, Scores, mean_cosine, state_of_texts
from otpt.methods.tuner import tune as tune_contexts
from otpt.prompts import DEFAULT_PROMPT
from otpt.registry import AGGREGATIONS, CALIBRATIONS, CLEAN, CONTEXT, NONE, PARTS, describe
from otpt.threads import in_threads, one_thread
from otpt.transfers import to_host

__all__ = ["Encoder", "aggregate", "calibrate", "predict", "tune"]

_FROM_LOGITS = ("logits", "zero_shot", "probabilities", "uncalibrated")
"""Function arguments that the stages compute from the logits."""


def __dir__() -> list[str]:
    return __all__


@torch.inference_mode(False)  # gradients are computed inside
def predict(
    view_features: Array,
    text_features: Array | Encoder,
    *,
    method: str | Method = "zero-shot",
    context: Array | None = None,
    examples: tuple[Array, Array] | None = None,
    logit_scale: float = 100.0,
    logit_bias: float = 0.0,
    protocol: Protocol | None = None,
    tower: str = "vit",
) -> Tensor:
    """Return class probabilities (N, C), or (C,) of one image, for any method that does not need pixels.

    Logits are ℓ = logit_scale · v·e + logit_bias for view features v and text features e, followed by the method's
    adaptation, calibration and aggregation.

    Args:
        view_features: unit features (N, V, D) of several images, or (V, D) of one.
        text_features: features (C, D) of any norm, or an encoder (n, W) → (C, D) for methods that tune a context.
        method: method name or :class:`~otpt.Method`.
        context: initial context (n, W) of the encoder, which is called with contexts of this type, in float32 for half
            precision, or else of the first type in which it raises no RuntimeError.
        examples: features (M, D) and labels (M,) of example images, for ``gda``, ``tip-adapter`` and ``prototypes``.
        logit_scale, logit_bias: constants of the model; the scale is positive.
        protocol: family and data set that select published numbers, and the number of images of a stream; its methods
            and views are not used.
        tower: kind of image tower that selects published temperatures, "vit" or "resnet".
    """
    sizes: dict[str, int] = {}
    views, one = _as_views(view_features, sizes)
    scale, bias = _check_scale(logit_scale), check_number(logit_bias, "logit_bias")
    if protocol is not None and not isinstance(protocol, Protocol):
        raise OtptError(f"The protocol is {protocol!r:.80}; expected an otpt.Protocol, or None.")
    _check_string(tower, "tower", "'vit' or 'resnet'")
    chosen = get_method(method)
    _refuse(chosen, examples is not None)
    with one_thread():
        state = _texts_state(text_features, context, views, sizes, scale, bias)
        if chosen.needs_context and state.init.numel() == 0:
            raise OtptError(
                f"Method {chosen.name!r} tunes a context, but text_features is an array; pass an encoder and context=."
            )
        if examples is not None:
            state = example_state(state, chosen.init, *_as_examples(examples, views, sizes))
    settings = (protocol or Protocol()).replace(methods=(chosen,), views=views.shape[1])
    group = PromptGroup(DEFAULT_PROMPT.name, (chosen,), state, settings, tower)
    if chosen.scope == "stream" or views.device.type != "cpu":
        with one_thread():
            outputs = [group.outputs_of_features(image) for image in views.split(1)]
    else:
        outputs = in_threads(group.outputs_of_features, views.split(1))
    rows = torch.stack([torch.from_numpy(output.probabilities) for (output,) in outputs])
    return rows[0] if one else rows


@torch.inference_mode(False)  # gradients are computed inside
def tune(
    view_features: Array,
    encoder: Encoder,
    context: Array,
    *,
    method: str | Method = "o-tpt",
    logit_scale: float = 100.0,
    logit_bias: float = 0.0,
    family: str = "fine-grained",
) -> Scores:
    """Tune a context per image: AdamW from ``context`` (n, W) on L = Σ weight·objective.

    Args:
        view_features: unit features (N, V, D) of several images, or (V, D) of one.
        encoder: differentiable function (n, W) → (C, D).
        context: initial context (n, W).
        method: method that tunes a context.
        logit_scale, logit_bias: constants of the model.
        family: family of data sets that selects the method's weights, "fine-grained" or "shift".

    Returns:
        :class:`Scores` with ``contexts`` (N, n, W), ``text_features`` (N, C, D), ``logits`` (N, C) of the clean view,
        ``mean_cosine`` (N,), and ``skipped`` (N,), True where a gradient is not finite.
    """
    sizes: dict[str, int] = {}
    views, _ = _as_views(view_features, sizes)
    scale, bias = _check_scale(logit_scale), check_number(logit_bias, "logit_bias")
    _check_string(family, "family", "'fine-grained' or 'shift'")
    chosen = get_method(method)
    _refuse(chosen, has_examples=False)
    config = chosen.tuning(family) if chosen.tunes else None
    if config is None:
        raise OtptError(f"Method {chosen.name!r} does not tune a context; use a method such as 'tpt' or 'o-tpt'.")
    if not callable(encoder):
        raise OtptError(f"The encoder is {encoder!r:.80}; expected a function of a context (n, W).")
    with one_thread():
        state = _texts_state(encoder, context, views, sizes, scale, bias)
        scores = tune_contexts(state, views, [config])[config]
    check_finite(scores.logits, "tuned logits")
    return scores


def calibrate(
    logits: Array,
    zero_shot: Array,
    *,
    method: str | Method = "sals",
    text_features: Array | None = None,
    adapted_text_features: Array | None = None,
    settings: Mapping[str, object] | None = None,
) -> Tensor:
    """Return calibrated logits of the same shape.

    Args:
        logits: (N, V, C) for the views of several images, (V, C) of one image, or (C,) of one view.
        zero_shot: logits under the initial prompt, of the same shape.
        method: calibrator, as ``otpt methods`` lists it, or a :class:`~otpt.Method` that only calibrates.
        text_features, adapted_text_features: (C, D) before and after adaptation, for "dac".
        settings: settings of the calibration, such as ``{"temperature": T}`` for "temperature".
    """
    rows, start = as_tensor(logits, "logits"), as_tensor(zero_shot, "zero-shot logits")
    if rows.shape != start.shape or rows.ndim not in (1, 2, 3) or rows.numel() == 0:
        raise OtptError(
            f"The logits have shape {tuple(rows.shape)} and the zero-shot logits {tuple(start.shape)}; expected equal "
            "shapes, (N, V, C), (V, C) or (C,), without a dimension of size 0."
        )
    start = start.to(rows)
    check_finite(rows, "logits")
    check_finite(start, "zero-shot logits")
    sizes = {"C": rows.shape[-1]}
    texts = _optional(text_features, "text features", "CD", sizes)
    adapted = _optional(adapted_text_features, "adapted text features", "CD", sizes)
    stages = _stages(method, "calibrate", settings)
    arguments = _arguments(
        stages,
        text_features=("text_features", None if texts is None else texts.to(rows.device)),
        adapted_text_features=("adapted_text_features", None if adapted is None else adapted.to(rows.device)),
        mean_cosine=("adapted_text_features", None if adapted is None else float(mean_cosine(adapted))),
    )
    shape = (-1, *rows.shape[-2:]) if rows.ndim > 1 else (1, 1, -1)
    images = zip(rows.reshape(shape), start.reshape(shape), strict=True)
    calibrated = [stages.rescale(image, image_start, arguments)[0] for image, image_start in images]
    return torch.stack(calibrated).reshape(rows.shape)


def aggregate(
    logits: Array,
    *,
    method: str | Method = "mean-probability",
    zero_shot: Array | None = None,
    view_features: Array | None = None,
    text_features: Array | None = None,
    logit_scale: float = 100.0,
    settings: Mapping[str, object] | None = None,
) -> Tensor:
    """Aggregate the logits of the views, clean view first, to probabilities (N, C), or (C,) of one image.

    Args:
        logits: (N, V, C) of several images, or (V, C) of one.
        method: aggregation, as ``otpt methods`` lists it, or a :class:`~otpt.Method` that aggregates, with or without
            a calibrator before it.
        zero_shot: logits under the initial prompt, of the same shape; the logits themselves by default.
        view_features: (N, V, D) or (V, D), for aggregations that need them.
        text_features: (C, D), for aggregations that need them.
        logit_scale: positive logit scale of the model.
        settings: settings of the aggregation.
    """
    sizes: dict[str, int] = {}
    rows, one = as_images(logits, "logits", "NVC", sizes)
    start = rows if zero_shot is None else as_images(zero_shot, "zero-shot logits", "NVC", sizes)[0]
    views = None if view_features is None else as_images(view_features, "view features", "NVD", sizes)[0]
    texts = _optional(text_features, "text features", "CD", sizes)
    scale = _check_scale(logit_scale)
    stages = _stages(method, "aggregate", settings)
    cosine = None if texts is None else float(mean_cosine(texts))
    if texts is not None and views is not None and "features" in AGGREGATIONS[stages.method.aggregate].parameters:
        texts = texts.to(views)
    probabilities = []
    for i, image in enumerate(rows):
        arguments = _arguments(
            stages,
            features=("view_features", None if views is None else views[i]),
            text_features=("text_features", texts),
            adapted_text_features=("text_features", texts),
            mean_cosine=("text_features", cosine),
            logit_scale=("logit_scale", scale),
        )
        (image_rows, image_start) = to_host([image, start[i]])
        image_rows, _ = stages.rescale(image_rows, image_start, arguments)
        distribution, _ = stages.combine(image_rows, image_rows, image_start, arguments)
        probabilities.append(distribution.double())
    result = torch.stack(probabilities)
    return result[0] if one else result


def _refuse(method: Method, has_examples: bool) -> None:
    """Raise an :class:`OtptError` for a method that needs more than features and texts."""
    preparation = method.preparation
    if not preparation.needs_features or method.prepared.needs_image:
        raise OtptError(f"Method {method.name!r} needs pixels, not features; use otpt.load and predict the images.")
    if method.sees_all_first:
        raise OtptError(f"Method {method.name!r} makes a first pass over all images; run it with 'otpt evaluate'.")
    if method.init in EXAMPLE_INITS:
        if not has_examples:
            raise OtptError(
                f"Method {method.name!r} starts from example images, but none were given; pass "
                "examples=(features, labels)."
            )
    elif method.init != "words":
        raise OtptError(
            f"Method {method.name!r} makes its own texts (init {method.init!r}), but the texts are given as "
            "text_features here; leave that part out of the name, or use otpt.load."
        )
    elif has_examples:
        raise OtptError(f"Method {method.name!r} does not use examples; use 'gda', 'tip-adapter' or 'prototypes'.")


def _stages(method: str | Method, axis: str, settings: Mapping[str, object] | None) -> Stages:
    """Return the stages of a calibrator or an aggregation; raise for methods that do anything else."""
    if settings is not None and not (isinstance(settings, Mapping) and all(isinstance(name, str) for name in settings)):
        raise OtptError(f"The settings are {settings!r:.80}; expected {{name: value}}.")
    registry = {"calibrate": CALIBRATIONS, "aggregate": AGGREGATIONS}[axis]
    if isinstance(method, str) and method in registry and method not in PARTS:  # such as "clean", no part of a name
        chosen = get_method("zero-shot").replace(**{"name": method, axis: method})
    else:
        chosen = get_method(method)
        adapts = chosen.objectives or chosen.adapt != CONTEXT or chosen.gate != NONE or chosen.init != "words"
        acts = chosen.calibrate != NONE if axis == "calibrate" else chosen.aggregate != CLEAN
        if adapts or not acts or (axis == "calibrate" and chosen.aggregate != CLEAN):
            names = [name for name, part in PARTS.items() if part.axis == axis]
            raise OtptError(
                f"Method {chosen.name!r} does not only {axis} logits; expected a part that does: {', '.join(names)}."
            )
    chosen = chosen.override(settings or {})
    return Stages(chosen, Protocol())


def _arguments(stages: Stages, **inputs: tuple[str, Tensor | float | None]) -> dict[str, object]:
    """Return function arguments, given (keyword, value) of each; raise if the stages require one that is None."""
    method = stages.method
    for component in (CALIBRATIONS[method.calibrate], AGGREGATIONS[method.aggregate]):
        for name in component.parameters:
            if name in _FROM_LOGITS:
                continue
            if name not in inputs:
                raise OtptError(f"{component.name!r} needs {name}, which is no argument here; use otpt.load.")
            keyword, value = inputs[name]
            if value is None:
                raise OtptError(f"{component.name!r} needs {keyword}=, which is None; pass it.")
    return {name: value for name, (_, value) in inputs.items() if value is not None}


def _texts_state(
    texts: Array | Encoder,
    context: Array | None,
    views: Tensor,
    sizes: dict[str, int],
    logit_scale: float,
    logit_bias: float,
) -> PromptState:
    """Return the prompt state of text features or of an encoder, with text features in the type of the views."""
    source: Tensor | Encoder
    start = None
    if not callable(texts) or isinstance(texts, Tensor):
        if context is not None:
            raise OtptError("context= was given with text_features as an array; pass an encoder, or leave context out.")
        source = as_array(texts, "text features", "CD", sizes, like=views)
    elif context is None:
        source = texts
    else:
        start = as_array(context, "numbers of the context", "nW", {}).to(views.device)
        source = _CheckedEncoder(texts, views)
    return state_of_texts(source, start, views, logit_scale=logit_scale, logit_bias=logit_bias)


class _CheckedEncoder:
    """A user's encoder, called in a type that it accepts; its results are validated, in the type of the views."""

    def __init__(self, encoder: Encoder, views: Tensor) -> None:
        """``views``: view features (N, V, D)."""
        self._encoder, self._views = encoder, views
        self._dtype: torch.dtype | None = None
        self._shape: torch.Size | None = None

    def __call__(self, context: Tensor) -> Tensor:
        features = self._first_call(context) if self._dtype is None else self._encoder(context.to(self._dtype))
        if not isinstance(features, Tensor):
            raise OtptError(f"The encoder returned {describe(features)}; expected a tensor (C, D).")
        check_type(features, "results of the encoder")
        width = self._views.shape[-1]
        if features.ndim != 2 or features.shape[1] != width or self._shape not in (None, features.shape):
            raise OtptError(
                f"The encoder returned a tensor of shape {tuple(features.shape)}; expected (C, D) with D = {width}, "
                "for the same classes in each call."
            )
        self._shape = features.shape
        features = features.to(self._views)
        check_finite(features, "results of the encoder")
        return features

    def _first_call(self, context: Tensor) -> Tensor:
        """Call the encoder in the first type in which it raises no RuntimeError, and remember the type."""
        errors = []
        for dtype in dict.fromkeys((context.dtype, self._views.dtype, *FLOATS)):
            try:
                features = self._encoder(context.to(dtype))
            except RuntimeError as error:
                errors.append(error)
            else:
                self._dtype = dtype
                return features
        raise errors[0]


def _as_views(values: Array, sizes: dict[str, int]) -> tuple[Tensor, bool]:
    """Validate view features; return them as (N, V, D), and whether they are those of one image."""
    views, one = as_images(values, "view features", "NVD", sizes)
    _check_unit_norm(views)
    return views, one


def _as_examples(examples: tuple[Array, Array], views: Tensor, sizes: dict[str, int]) -> tuple[Tensor, Tensor]:
    """Validate example features (M, D) and labels (M,)."""
    if not isinstance(examples, (tuple, list)) or len(examples) != 2:
        raise OtptError(f"The examples are {examples!r:.80}; expected (features, labels).")
    features = as_array(examples[0], "example features", "MD", sizes, like=views)
    labels = to_tensor(examples[1], "example labels", "integers")
    if labels.is_floating_point() or labels.is_complex() or labels.is_quantized:
        raise OtptError(f"The example labels have type {labels.dtype}; expected integers.")
    return features, labels.long()


def _optional(values: Array | None, what: str, dims: str, sizes: dict[str, int]) -> Tensor | None:
    return None if values is None else as_array(values, what, dims, sizes)


def _check_unit_norm(views: Tensor) -> None:
    norms = views.norm(dim=-1)
    if not bool(((norms - 1).abs() < 1e-2).all()):
        raise OtptError("The view features do not have unit norm; divide them by their norm along the last dimension.")


def _check_scale(value: object) -> float:
    """Return a logit scale; raise unless it is positive."""
    scale = check_number(value, "logit_scale")
    if scale <= 0:
        raise OtptError(f"logit_scale is {scale:g}; expected a number > 0.")
    return scale


def _check_string(value: object, keyword: str, expected: str) -> None:
    if not isinstance(value, str):
        raise OtptError(f"{keyword} is {value!r:.80}; expected {expected}.")
