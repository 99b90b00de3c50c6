"""Methods on plain tensors: view features and text features, or a function that encodes a context; no backbone.

    functional.predict(views, texts, method="mean-feature")           # (B, V, D), (C, D) → probabilities (B, C)
    functional.tune(views, encoder, context, method="o-tpt")          # tuned contexts, text features, logits

It is the code that an evaluation runs. Views are unit features, the clean view first; B is the number of images, V of
views, C of classes, D the dimension of the features, (n, W) the shape of a context.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from otpt.errors import OtptError
from otpt.methods import Method, get_method
from otpt.methods.inits.given_texts import Encoder, check_views, given_text_side
from otpt.methods.output import Adapted, Output
from otpt.methods.prompt_tuning import Tuned
from otpt.methods.prompt_tuning import tune as tune_contexts
from otpt.methods.running.calling import Available
from otpt.methods.running.finish import calibrated, finish
from otpt.methods.running.groups import TextGroup
from otpt.methods.running.predictor import Predictor
from otpt.methods.task import OWN_NETWORK, Task
from otpt.registry import CONTEXT
from otpt.threads import one_thread
from otpt.transfers import to_host
from otpt.views import ViewRecipe

__all__ = ["Encoder", "aggregate", "calibrate", "predict", "predict_outputs", "tune"]


def predict(
    view_features: Tensor,
    text_features: Tensor | Encoder,
    *,
    method: str | Method = "zero-shot",
    context: Tensor | None = None,
    logit_scale: float = 100.0,
    logit_bias: float = 0.0,
    family: str = "fine-grained",
    tower: str = "vit",
) -> Tensor:
    """Probabilities (B, C) of images by any method that needs no pixels: the whole way from views to an answer.

    ℓ = logit_scale · v·e + logit_bias of views v and text features e; then the method's adaptation, calibration and
    aggregation.

    Args:
        view_features: (B, V, D), or (V, D) of one image, whose probabilities are (C,).
        text_features: (C, D); for methods that tune a context an encoder, with ``context``.
        context: (n, W) to start from.
        family: whose weights the method takes: "fine-grained" or "shift".
        tower: the kind of image tower, for published temperatures: "vit" or "resnet".
    """
    outputs = predict_outputs(
        view_features,
        text_features,
        method=method,
        context=context,
        logit_scale=logit_scale,
        logit_bias=logit_bias,
        family=family,
        tower=tower,
    )
    found = torch.stack([torch.from_numpy(each.probabilities) for each in outputs])
    return found[0] if view_features.ndim == 2 else found


def predict_outputs(
    view_features: Tensor,
    text_features: Tensor | Encoder,
    *,
    method: str | Method = "zero-shot",
    context: Tensor | None = None,
    logit_scale: float = 100.0,
    logit_bias: float = 0.0,
    family: str = "fine-grained",
    tower: str = "vit",
) -> list[Output]:
    """:func:`predict` with all that a method says: class, flags, extras."""
    views, chosen = check_views(view_features), get_method(method)
    if chosen.adapt in (*OWN_NETWORK, "promptsmooth"):
        raise OtptError(f"Method {chosen.name!r} needs pixels; only features are given here.")
    with one_thread():
        text = given_text_side(text_features, context, views, logit_scale, logit_bias)
    if chosen.tunes and text.init.numel() == 0:
        raise OtptError(
            f"Method {chosen.name!r} tunes a context, but text features were given, which leave none; give a function "
            "that encodes a context, and context=."
        )
    plain = replace(chosen, init="words")  # where the texts come from is the caller's business here
    task = Task(text.class_names, family=family, recipe=ViewRecipe(n_views=views.shape[1]))
    model = _Features(tower, views.device)
    group = TextGroup(task.prompts[0].name, (plain,), model, text, task)
    predictor = Predictor(model, task, [plain], groups=[group])
    return [each[0] for each in predictor.of_features(views)]


def tune(
    view_features: Tensor,
    encoder: Encoder,
    context: Tensor,
    *,
    method: str | Method = "o-tpt",
    logit_scale: float = 100.0,
    logit_bias: float = 0.0,
    family: str = "fine-grained",
) -> Tuned:
    """Contexts tuned for each image: AdamW steps from ``context`` (n, W) on L = Σ weight·objective.

    Returns ``contexts`` (B, n, W), ``text_features`` (B, C, D), ``logits`` (B, C) of the clean view, ``mean_cosine``
    (B,), and ``skipped`` (B,), where a gradient was not finite.
    """
    views, chosen = check_views(view_features), get_method(method)
    config = chosen.tuning(family) if chosen.adapt == CONTEXT else None
    if config is None:
        raise OtptError(f"Method {chosen.name!r} tunes no context; take one that does, such as 'tpt' or 'o-tpt'.")
    with one_thread():
        text = given_text_side(encoder, context, views, logit_scale, logit_bias)
        return tune_contexts(text, views, [config], keep_texts=True)[config]


def calibrate(
    logits: Tensor,
    zero_shot: Tensor,
    *,
    method: str = "sals",
    text_features: Tensor | None = None,
    adapted_text_features: Tensor | None = None,
    settings: Mapping[str, float] | None = None,
) -> Tensor:
    """Rescaled logits (V, C) of an image's views, or (C,) of one, by a calibration of
    :data:`otpt.calibration.CALIBRATIONS`; ``zero_shot`` are those under the initial prompt, of the same shape.

    ``method="temperature"`` divides by ``settings={"temperature": T}``; ``method="dac"`` also takes the text features
    (C, D) before and after adapting.
    """
    if logits.shape != zero_shot.shape or logits.ndim not in (1, 2):
        raise OtptError(
            f"Logits of shape {tuple(logits.shape)} and zero-shot logits of shape {tuple(zero_shot.shape)} were given; "
            "expected (V, C) or (C,), both the same."
        )
    given = dict(settings or {})
    chosen = Method("calibrate", calibrate=method, temperature=given.pop("temperature", None), settings=given)
    rows = logits if logits.ndim == 2 else logits[None]
    given_texts = {"text_features": text_features, "adapted_text_features": adapted_text_features}
    available = {name: partial(_needed, each, name, "calibration", method) for name, each in given_texts.items()}
    numbers = chosen.settings_for("fine-grained")
    found, _ = calibrated(chosen, rows, zero_shot.reshape(rows.shape), available, numbers)
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
    """Probabilities (C,) of one image from the logits (V, C) of its views, the clean one first, by an aggregation.

    Some aggregations also take the zero-shot logits (V, C), the features (V, D) and the text features (C, D).
    """
    if logits.ndim != 2:
        raise OtptError(f"Logits of shape {tuple(logits.shape)} were given; expected (V, C), the views of one image.")
    chosen = Method("aggregate", aggregate=method, settings=dict(settings or {}))
    (logits,) = to_host([logits])
    zero_shot, view_features, text_features = map(_on_host, (zero_shot, view_features, text_features))
    texts = None if text_features is None else partial(_constant, text_features)
    extras = {"mean_cosine": torch.full((1,), torch.nan)}
    skipped = torch.zeros(1, dtype=torch.bool)
    adapted = Adapted(logits[:1], partial(_constant, logits), skipped, extras, texts)
    before = logits if zero_shot is None else zero_shot
    available: Available = {
        "features": partial(_needed, view_features, "view_features", "aggregation", method),
        "text_features": partial(_needed, text_features, "text_features", "aggregation", method),
        "adapted_text_features": partial(_needed, text_features, "text_features", "aggregation", method),
        "logit_scale": lambda: logit_scale,
    }
    (output,) = finish(
        chosen,
        adapted,
        replace(adapted, logits=before[:1], rows=partial(_constant, before)),
        tower="vit",
        official=False,
        available=lambda _: available,
        settings=chosen.settings_for("fine-grained"),
        names=["image"],
    )
    return torch.from_numpy(output.probabilities)


@dataclass(frozen=True)
class _Features:
    """In the place of a backbone."""

    family: str
    device: torch.device


def _constant(value: Tensor, i: int) -> Tensor:
    return value


def _on_host(value: Tensor | None) -> Tensor | None:
    return None if value is None else to_host([value])[0]


def _needed(value: Tensor | None, name: str, kind: str, method: str) -> Tensor:
    if value is None:
        raise OtptError(f"The {kind} {method!r} needs {name}=; it was not given.")
    return value
