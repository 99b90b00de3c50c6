"""Functional interface: methods on arrays of view features and text features, or with a text encoder.

    functional.predict(views, texts, method="mean-feature")           # (N, V, D), (C, D) → probabilities (N, C)
    functional.tune(views, encoder, context, method="o-tpt")          # tuned contexts, text features, logits

Evaluations run the same stages. Arrays are numpy arrays or torch tensors of any float type; results are torch tensors.
View features are unit vectors, clean view first. N is the number of images, V of views, C of classes; D is the feature
dimension, (n, W) the shape of a context.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from otpt.errors import OtptError, unknown
from otpt.methods import Method, Protocol, get_method
from otpt.methods.few_shot import EXAMPLE_INITS, example_state
from otpt.methods.path import PromptGroup
from otpt.methods.stages import Stages
from otpt.methods.state import Encoder, PromptState, Scores, mean_cosine, state_of_texts
from otpt.methods.tuner import tune as tune_contexts
from otpt.prompts import DEFAULT_PROMPT
from otpt.registry import AGGREGATIONS, CALIBRATIONS, PARTS, Component
from otpt.threads import in_threads, one_thread
from otpt.transfers import to_host

__all__ = ["Encoder", "aggregate", "calibrate", "predict", "tune"]

Array = Tensor | npt.ArrayLike
"""A torch tensor, a numpy array or a list of numbers."""


def __dir__() -> list[str]:
    return __all__


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
        context: initial context (n, W) of the encoder.
        examples: features (M, D) and labels (M,) of example images, for ``gda``, ``tip-adapter`` and ``prototypes``.
        logit_scale, logit_bias: constants of the model.
        protocol: family and data set that select published numbers, and the number of images of a stream; its methods
            and views are not used.
        tower: kind of image tower that selects published temperatures, "vit" or "resnet".
    """
    one = _ndim(view_features) == 2
    views = _check_views(view_features)
    chosen = get_method(method)
    _refuse(chosen, examples is not None)
    with one_thread():
        state = _texts_state(text_features, context, views, logit_scale, logit_bias)
        if chosen.needs_context and state.init.numel() == 0:
            raise OtptError(
                f"Method {chosen.name!r} tunes a context, but text_features is an array; pass an encoder and context=."
            )
        if examples is not None:
            features = _as_tensor(examples[0], "example features").to(views.dtype)
            labels = torch.as_tensor(np.asarray(examples[1]))
            state = example_state(state, chosen.init, features, labels)
    settings = (protocol or Protocol()).replace(methods=(chosen,), views=views.shape[1])
    group = PromptGroup(DEFAULT_PROMPT.name, (chosen,), state, settings, tower)
    if chosen.scope == "stream" or views.device.type != "cpu":
        with one_thread():
            outputs = [group.outputs_of_features(image) for image in views.split(1)]
    else:
        outputs = in_threads(group.outputs_of_features, views.split(1))
    rows = torch.stack([torch.from_numpy(output.probabilities) for (output,) in outputs])
    return rows[0] if one else rows


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
    views = _check_views(view_features)
    chosen = get_method(method)
    _refuse(chosen, has_examples=False)
    config = chosen.tuning(family) if chosen.tunes else None
    if config is None:
        raise OtptError(f"Method {chosen.name!r} does not tune a context; use a method such as 'tpt' or 'o-tpt'.")
    if not callable(encoder):
        raise OtptError(f"The encoder is {encoder!r:.80}; expected a function of a context (n, W).")
    with one_thread():
        state = _texts_state(encoder, context, views, logit_scale, logit_bias)
        return tune_contexts(state, views, [config])[config]


def calibrate(
    logits: Array,
    zero_shot: Array,
    *,
    method: str = "sals",
    text_features: Array | None = None,
    adapted_text_features: Array | None = None,
    settings: Mapping[str, object] | None = None,
) -> Tensor:
    """Return calibrated logits of the same shape.

    Args:
        logits: (N, V, C) for the views of several images, (V, C) of one image, or (C,) of one view.
        zero_shot: logits under the initial prompt, of the same shape.
        method: calibrator, as ``otpt methods`` lists it.
        text_features, adapted_text_features: (C, D) before and after adaptation, for "dac".
        settings: settings of the calibration, such as ``{"temperature": T}`` for "temperature".
    """
    rows, start = _as_tensor(logits, "logits"), _as_tensor(zero_shot, "zero-shot logits")
    if rows.shape != start.shape or rows.ndim not in (1, 2, 3):
        raise OtptError(
            f"The logits have shape {tuple(rows.shape)} and the zero-shot logits {tuple(start.shape)}; expected equal "
            "shapes, (N, V, C), (V, C) or (C,)."
        )
    start = start.to(rows.dtype)
    stages = _stages_of_part(method, "calibrate", settings)
    arguments = _arguments(
        CALIBRATIONS[stages.method.calibrate],
        {"text_features": text_features, "adapted_text_features": adapted_text_features},
    )
    shape = (-1, *rows.shape[-2:]) if rows.ndim > 1 else (1, 1, -1)
    images = zip(rows.reshape(shape), start.reshape(shape), strict=True)
    calibrated = [stages.rescale(image, image_start, arguments)[0] for image, image_start in images]
    return torch.stack(calibrated).reshape(rows.shape)


def aggregate(
    logits: Array,
    *,
    method: str = "mean-probability",
    zero_shot: Array | None = None,
    view_features: Array | None = None,
    text_features: Array | None = None,
    logit_scale: float = 100.0,
    settings: Mapping[str, object] | None = None,
) -> Tensor:
    """Aggregate the logits of the views, clean view first, to probabilities (N, C), or (C,) of one image.

    Args:
        logits: (N, V, C) of several images, or (V, C) of one.
        method: aggregation, as ``otpt methods`` lists it.
        zero_shot: logits under the initial prompt, of the same shape; the logits themselves by default.
        view_features: (N, V, D) or (V, D), for aggregations that need them.
        text_features: (C, D), for aggregations that need them.
        logit_scale: logit scale of the model.
        settings: settings of the aggregation.
    """
    rows = _as_tensor(logits, "logits")
    if rows.ndim not in (2, 3):
        raise OtptError(
            f"The logits have shape {tuple(rows.shape)}; expected (N, V, C), or (V, C) for the views of one image."
        )
    stages = _stages_of_part(method, "aggregate", settings)
    component = AGGREGATIONS[stages.method.aggregate]
    batch = rows if rows.ndim == 3 else rows[None]
    start = batch if zero_shot is None else _as_tensor(zero_shot, "zero-shot logits").reshape(batch.shape)
    texts = None if text_features is None else _as_tensor(text_features, "text features")
    shared = {"text_features": texts, "adapted_text_features": texts, "logit_scale": logit_scale}
    views = None
    if view_features is not None:
        views = _as_tensor(view_features, "view features")
        views = views.reshape(len(batch), -1, views.shape[-1])
    probabilities = []
    for i, image in enumerate(batch):
        arguments = _arguments(component, {**shared, "features": None if views is None else views[i]})
        (image_rows, image_start) = to_host([image, start[i]])
        image_rows, _ = stages.rescale(image_rows, image_start, arguments)
        distribution, _ = stages.combine(image_rows, image_rows, image_start, arguments)
        probabilities.append(distribution.double())
    result = torch.stack(probabilities)
    return result if rows.ndim == 3 else result[0]


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


def _stages_of_part(name: str, axis: str, settings: Mapping[str, object] | None) -> Stages:
    """Return the stages of a calibrator or an aggregation by its name."""
    method = get_method(name) if name in PARTS or "[" in name else None
    values = dict(settings or {})
    if method is None:  # a function that is no part of a name, such as "clean"
        known = {"calibrate": CALIBRATIONS, "aggregate": AGGREGATIONS}[axis]
        if name not in known:
            raise unknown({"calibrate": "calibrator", "aggregate": "aggregation"}[axis], name, _listed(axis))
        method = get_method("zero-shot").replace(**{"name": name, axis: name})
    elif PARTS[name.partition("[")[0]].axis != axis:
        raise unknown({"calibrate": "calibrator", "aggregate": "aggregation"}[axis], name, _listed(axis))
    method = method.override(values)
    return Stages(method, Protocol())


def _listed(axis: str) -> list[str]:
    return [name for name, part in PARTS.items() if part.axis == axis]


def _arguments(component: Component, values: Mapping[str, object]) -> dict[str, object]:
    """Return the inputs as tensors; raise if the component requires one that is None."""
    for name in component.parameters:
        if name in values and values[name] is None:
            shown = {"features": "view_features"}.get(name, name)
            raise OtptError(f"{component.name!r} needs {shown}=, which is None; pass it.")
    if "mean_cosine" in component.parameters:
        texts = values.get("adapted_text_features")
        if texts is None:
            raise OtptError(f"{component.name!r} needs text_features=, which is None; pass it.")
        values = {**values, "mean_cosine": float(mean_cosine(_as_tensor(texts, "text features")))}
    given = {name: value for name, value in values.items() if value is not None}
    return {
        name: value if isinstance(value, float) else _as_tensor(value, name.replace("_", " "))
        for name, value in given.items()
    }


def _as_tensor(values: object, what: str) -> Tensor:
    """Return a floating-point tensor from a tensor, an array or a list; half precision becomes float32."""
    try:
        tensor = values if isinstance(values, Tensor) else torch.from_numpy(np.array(values))
    except (TypeError, ValueError, RuntimeError) as error:
        raise OtptError(f"The {what} are {values!r:.80}; expected an array of floats ({error}).") from None
    if not tensor.is_floating_point():
        raise OtptError(
            f"The {what} have shape {tuple(tensor.shape)} and type {tensor.dtype}; expected floating-point numbers."
        )
    tensor = tensor.detach()
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def _ndim(values: object) -> int:
    return values.ndim if isinstance(values, Tensor) else np.ndim(np.asarray(values, dtype=object))


def _texts_state(
    texts: Array | Encoder, context: Array | None, views: Tensor, logit_scale: float, logit_bias: float
) -> PromptState:
    """Return the prompt state of text features or of an encoder, in the type of the views."""
    start = None if context is None else _as_tensor(context, "context")
    if callable(texts) and not isinstance(texts, Tensor):
        source: Tensor | Encoder = texts
    else:
        source = _as_tensor(texts, "text features").to(views)
    return state_of_texts(source, start, views, logit_scale=logit_scale, logit_bias=logit_bias)


def _check_views(view_features: Array) -> Tensor:
    """Validate view features and return them as (N, V, D)."""
    views = _as_tensor(view_features, "view features")
    if views.ndim == 2:
        views = views[None]
    if views.ndim != 3 or views.numel() == 0:
        raise OtptError(
            f"The view features have shape {tuple(views.shape)}; expected (N, V, D), clean view first, or (V, D) for "
            "one image."
        )
    norms = views.norm(dim=-1)
    if not bool(((norms - 1).abs() < 1e-2).all()):
        raise OtptError("The view features do not have unit norm; divide them by their norm along the last dimension.")
    return views
