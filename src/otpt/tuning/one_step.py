"""The one-step engine: every method of the paper that takes a single AdamW step, without an optimiser.

From an empty state one AdamW step is θ₁ = (1 − lr·wd)·θ₀ − lr·g/(|g| + ε). The gradient is g = Σ w·g_view + Σ λ·g_text,
where g_text is a constant of the text side and g_view needs one vector–Jacobian product a picture: the cotangent
∂L/∂E = scale · (∂L/∂ℓ)ᵀ V_S is a C×D matrix that follows from the k selected views alone. Plans that share a view
objective share its product; what a further method costs is one forward pass of the class texts.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from otpt.tuning.gradients import GradientStore, ViewObjective, start_gradients, view_objective
from otpt.tuning.passes import Tuned, in_passes, mean_cosine
from otpt.tuning.plan import TuningPlan
from otpt.tuning.text_side import TextSide

ADAM_EPSILON = 1e-8


def adamw_first_step(start: Tensor, gradient: Tensor, *, learning_rate: float, weight_decay: float) -> Tensor:
    """θ₁ = (1 − lr·wd)·θ₀ − lr·g/(|g| + 1e-8), element by element."""
    shrunk = (1 - learning_rate * weight_decay) * start
    return shrunk - learning_rate * gradient / (gradient.abs() + ADAM_EPSILON)


def tune_one_step(
    text: TextSide, views: Tensor, plans: Sequence[TuningPlan], *, known: Sequence[GradientStore] | None = None
) -> list[Tuned]:
    """Tune each picture's context by each plan.

    Args:
        text: the prepared class texts.
        views: (B, V, D) unit image features, the clean view first.
        plans: all with :attr:`TuningPlan.closed_form`.
        known: gradients that need not be computed again, one store a picture.

    Returns:
        One :class:`Tuned` a plan, of all B pictures.
    """
    gradients: dict[ViewObjective, Tensor] = {}
    contexts, skipped = [], []
    for plan in plans:
        total = torch.zeros(len(views), *text.start.shape, dtype=text.start.dtype, device=text.start.device)
        for name, weight in plan.view_weights:
            objective = view_objective(name, plan, views.shape[1])
            if objective not in gradients:
                gradients[objective] = start_gradients(text, views, objective, known)
            total = total + weight * gradients[objective]
        for name, weight in plan.text_weights:
            total = total + weight * text.text_gradient(name)
        bad = ~total.flatten(1).isfinite().all(dim=1)
        stepped = adamw_first_step(text.start, total, learning_rate=plan.learning_rate, weight_decay=plan.weight_decay)
        contexts.append(torch.where(bad[:, None, None], text.start, stepped))
        skipped.append(bad)
    return _predict(text, views, contexts, skipped)


def _predict(text: TextSide, views: Tensor, contexts: list[Tensor], skipped: list[Tensor]) -> list[Tuned]:
    """One forward pass of the class texts for each distinct (plan, picture), then the clean view's logits."""
    batch = len(views)
    clean = views[:, :1]
    logits, cosines = [], []

    def clean_logits(index: Tensor, tuned: Tensor) -> Tensor:
        features = text.encoder.encode(tuned)
        found = [text.logits(clean[i], each)[0] for i, each in zip(index.tolist(), features, strict=True)]
        return torch.cat([torch.stack(found), mean_cosine(features)[:, None]], dim=1)

    stacked = torch.cat(contexts)
    pictures = torch.arange(batch).repeat(len(contexts))
    answer = in_passes(clean_logits, pictures, stacked, size=text.contexts_per_pass)
    for plan in answer.split(batch):
        logits.append(plan[:, :-1])
        cosines.append(plan[:, -1])
    return [Tuned(*each) for each in zip(logits, contexts, skipped, cosines, strict=True)]
