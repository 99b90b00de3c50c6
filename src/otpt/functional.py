"""Functional interface: methods on tensors of view features and text features, or a text encoder.

    functional.predict(views, texts, method="mean-feature")           # (B, V, D), (C, D) → probabilities (B, C)
    functional.tune(views, encoder, context, method="o-tpt")          # tuned contexts, text features, logits

Evaluations run the same code. View features are unit vectors, clean view first. B is the number of images, V of views,
C of classes; D is the feature dimension, (n, W) the shape of a context.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import torch
from torch import Tensor

from otpt.errors import OtptError
from otpt.methods import Method, Predictor, finish, get_method, kind_of
from otpt.methods.path import PromptGroup
from otpt.methods.state import Encoder, Scores, state_of_texts
from otpt.methods.tuner import tune as tune_contexts
from otpt.prompts import Prompt
from otpt.registry import AGGREGATIONS, CALIBRATIONS, Component
from otpt.settings import Settings
from otpt.threads import one_thread
from otpt.transfers import to_host

__all__ = ["Encoder", "aggregate", "calibrate", "predict", "tune"]


def __dir__() -> list[str]:
    return __all__


def predict(
    view_features: Tensor,
    text_features: Tensor | Encoder,
    *,
    method: str | Method = "zero-shot",
    views: int | None = None,
    context: Tensor | None = None,
    logit_scale: float = 100.0,
    logit_bias: float = 0.0,
    family: str = "fine-grained",
    tower: str = "vit",
) -> Tensor:
    """Return class probabilities (B, C) for any method that does not need pixels.

    Logits are ℓ = logit_scale · v·e + logit_bias for view features v and text features e, followed by the method's
    adaptation, calibration and aggregation.

    Args:
        view_features: (B, V, D), or (B·V, D) with ``views``.
        text_features: (C, D), or an encoder (n, W) → (C, D) for methods that tune a context.
        views: V, for ``view_features`` of shape (B·V, D).
        context: initial context (n, W).
        family: family of data sets that selects the method's weights, "fine-grained" or "shift".
        tower: kind of image tower that selects published temperatures, "vit" or "resnet".
    """
    given, chosen = _check_views(view_features, views), get_method(method)
    if not kind_of(chosen).needs_features:
        raise OtptError(f"Method {chosen.name!r} needs pixels, not features; use otpt.load and predict the images.")
    if chosen.sees_all_first:
        raise OtptError(f"Method {chosen.name!r} makes a first pass over all images; run it with 'otpt evaluate'.")
    with one_thread():
        state = state_of_texts(text_features, context, given, logit_scale=logit_scale, logit_bias=logit_bias)
    if chosen.needs_context and state.init.numel() == 0:
        raise OtptError(
            f"Method {chosen.name!r} tunes a context, but text_features is a tensor; pass an encoder and context=."
        )
    plain = dataclasses.replace(chosen, init="words")  # the caller provides the texts
    settings = Settings(methods=(plain,), classes=state.class_names, family=family, views=given.shape[1])
    backbone = _Features(tower, given.device)
    group = PromptGroup(Prompt().name, (plain,), backbone, state, settings)
    predictor = Predictor(backbone, settings, [plain], groups=[group])
    return torch.stack([torch.from_numpy(each.probabilities) for (each,) in predictor.of_features(given)])


def tune(
    view_features: Tensor,
    encoder: Encoder,
    context: Tensor,
    *,
    method: str | Method = "o-tpt",
    logit_scale: float = 100.0,
    logit_bias: float = 0.0,
    family: str = "fine-grained",
) -> Scores:
    """Tune a context per image of view features (B, V, D): AdamW from ``context`` (n, W) on L = Σ weight·objective.

    Returns:
        :class:`Scores` with ``contexts`` (B, n, W), ``text_features`` (B, C, D), ``logits`` (B, C) of the clean view,
        ``mean_cosine`` (B,), and ``skipped`` (B,), True where a gradient is not finite.
    """
    views, chosen = _check_views(view_features), get_method(method)
    config = chosen.tuning(family) if chosen.tunes else None
    if config is None:
        raise OtptError(f"Method {chosen.name!r} does not tune a context; use a method such as 'tpt' or 'o-tpt'.")
    with one_thread():
        state = state_of_texts(encoder, context, views, logit_scale=logit_scale, logit_bias=logit_bias)
        return tune_contexts(state, views, [config])[config]


def calibrate(
    logits: Tensor,
    zero_shot: Tensor,
    *,
    method: str = "sals",
    text_features: Tensor | None = None,
    adapted_text_features: Tensor | None = None,
    settings: Mapping[str, float] | None = None,
) -> Tensor:
    """Return calibrated logits, (V, C) for the views of an image or (C,) for one view.

    Args:
        logits: (V, C) or (C,).
        zero_shot: logits under the initial prompt, of the same shape.
        method: name in :data:`otpt.registry.CALIBRATIONS`.
        text_features, adapted_text_features: (C, D) before and after adaptation, for "dac".
        settings: settings of the calibration, such as ``{"temperature": T}`` for "temperature".
    """
    if logits.shape != zero_shot.shape or logits.ndim not in (1, 2):
        raise OtptError(
            f"The logits have shape {tuple(logits.shape)} and the zero-shot logits {tuple(zero_shot.shape)}; expected "
            "equal shapes, (V, C) or (C,)."
        )
    given = dict(settings or {})
    chosen = Method("calibrate", calibrate=method, temperature=given.pop("temperature", None), settings=given)
    rows = logits if logits.ndim == 2 else logits[None]
    texts = {"text_features": text_features, "adapted_text_features": adapted_text_features}
    available = _given(CALIBRATIONS[method], texts)
    numbers = chosen.settings_for("fine-grained")
    found, _ = finish.calibrated(chosen, rows, zero_shot.reshape(rows.shape), available, numbers)
    return found.reshape(logits.shape)


def aggregate(
    logits: Tensor,
    *,
    method: str = "mean-probability",
    zero_shot: Tensor | None = None,
    view_features: Tensor | None = None,
    text_features: Tensor | None = None,
    logit_scale: float = 100.0,
    settings: Mapping[str, float] | None = None,
) -> Tensor:
    """Aggregate the logits (V, C) of one image's views, clean view first, to probabilities (C,).

    Some aggregations also require the zero-shot logits (V, C), view features (V, D) and text features (C, D).
    """
    if logits.ndim != 2:
        raise OtptError(f"The logits have shape {tuple(logits.shape)}; expected (V, C), the views of one image.")
    chosen = Method("aggregate", aggregate=method, settings=dict(settings or {}))
    rows, start, views, texts = (
        None if each is None else to_host([each])[0] for each in (logits, zero_shot, view_features, text_features)
    )
    assert rows is not None
    unknown = torch.full((1,), torch.nan)
    seen = rows.new_empty(1, 0, 0) if texts is None else texts[None]
    now = Scores(rows[:1], seen, unknown, skipped=unknown < 0, view_logits=rows[None])
    before = now if start is None else dataclasses.replace(now, logits=start[:1], view_logits=start[None])
    given = {"features": views, "text_features": texts, "adapted_text_features": texts, "logit_scale": logit_scale}
    available = _given(AGGREGATIONS[method], given)
    numbers = chosen.settings_for("fine-grained")
    output = finish.finish(chosen, before, now, available, numbers, tower="vit", extras={})
    return torch.from_numpy(output.probabilities)


@dataclasses.dataclass(frozen=True)
class _Features:
    """Minimal backbone for features computed elsewhere."""

    family: str
    device: torch.device


def _given(component: Component, available: Mapping[str, object]) -> dict[str, object]:
    """Return a copy of the inputs; raise if the component requires one that is None."""
    for name in component.parameters:
        if name in available and available[name] is None:
            shown = "view_features" if name == "features" else name
            raise OtptError(f"{component.name!r} needs {shown}=, which is None; pass it.")
    return dict(available)


def _check_views(view_features: Tensor, views: int | None = None) -> Tensor:
    """Validate view features and return them as (B, V, D)."""
    given = view_features
    if given.ndim == 2 and views is not None and views > 0 and len(given) % views == 0:
        given = given.unflatten(0, (-1, views))
    if given.ndim != 3 or not given.is_floating_point() or given.numel() == 0:
        raise OtptError(
            f"The view features have shape {tuple(view_features.shape)} and type {view_features.dtype}; expected "
            "floats of shape (B, V, D), clean view first, or (B·V, D) with views=V."
        )
    norms = given.norm(dim=-1)
    if not bool(((norms - 1).abs() < 1e-2).all()):
        raise OtptError("The view features do not have unit norm; divide them by their norm along the last dimension.")
    return given.detach()
