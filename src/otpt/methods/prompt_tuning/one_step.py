"""The one-step engine: every method of the paper that takes a single AdamW step, without an optimiser.

From an empty state one AdamW step is θ₁ = (1 − lr·wd)·θ₀ − lr·g/(|g| + ε). The gradient is g = Σ w·g_view + Σ λ·g_text,
where g_text is a constant of the text side and g_view needs one vector–Jacobian product per image: the cotangent
∂L/∂E = scale · (∂L/∂ℓ)ᵀ V_S is a C×D matrix that follows from the k selected views alone. Configs that share a view
objective share its product; what a further method costs is one forward pass of the text features.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from otpt.methods.prompt_tuning.config import TuningConfig
from otpt.methods.prompt_tuning.gradients import GradientStore, ViewObjective, init_gradients, view_objective
from otpt.methods.prompt_tuning.passes import Tuned, in_passes, logits_and_extras, mean_cosine, split_extras
from otpt.methods.prompt_tuning.text_side import TextSide

ADAM_EPSILON = 1e-8


def adamw_first_step(
    start: Tensor, gradient: Tensor, *, learning_rate: float, weight_decay: float, epsilon: float = ADAM_EPSILON
) -> Tensor:
    """θ₁ = (1 − lr·wd)·θ₀ − lr·g/(|g| + ε), element by element; ε = 1e-8 by default."""
    shrunk = (1 - learning_rate * weight_decay) * start
    return shrunk - learning_rate * gradient / (gradient.abs() + epsilon)


def tune_one_step(
    text: TextSide,
    views: Tensor,
    configs: Sequence[TuningConfig],
    *,
    known: Sequence[GradientStore] | None = None,
    keep_texts: bool = False,
) -> list[Tuned]:
    """Tune each image's context by each config.

    Args:
        text: the prepared text features.
        views: (B, V, D) unit image features, the clean view first.
        configs: all with :attr:`TuningConfig.closed_form`.
        known: gradients that need not be computed again, one store per image.
        keep_texts: hand the tuned text features on.

    Returns:
        One :class:`Tuned` per config, of all B images.
    """
    gradients: dict[ViewObjective, Tensor] = {}
    contexts, skipped = [], []
    for config in configs:
        total = torch.zeros(len(views), *text.init.shape, dtype=text.init.dtype, device=text.init.device)
        for name, weight in config.view_weights:
            objective = view_objective(name, config, views.shape[1])
            if objective not in gradients:
                gradients[objective] = init_gradients(text, views, objective, known)
            total = total + weight * gradients[objective]
        for name, weight in config.text_weights:
            total = total + weight * text.text_gradient(name, dict(config.settings))
        bad = ~total.flatten(1).isfinite().all(dim=1)
        stepped = adamw_first_step(
            text.init, total, learning_rate=config.learning_rate, weight_decay=config.weight_decay
        )
        contexts.append(torch.where(bad[:, None, None], text.init, stepped))
        skipped.append(bad)
    own = [i for i, config in enumerate(configs) if not config.static]
    answers = {i: _shared(text, views, config, contexts[i]) for i, config in enumerate(configs) if i not in own}
    if own:
        found = _predict(text, views, torch.cat([contexts[i] for i in own]), keep_texts=keep_texts)
        parts = ([None] * len(own) if each is None else each.split(len(views)) for each in found)
        answers |= zip(own, zip(*parts, strict=True), strict=True)
    return [
        Tuned(answers[i][0], contexts[i], skipped[i], answers[i][1], answers[i][2] if keep_texts else None)
        for i in range(len(configs))
    ]


def _shared(text: TextSide, views: Tensor, config: TuningConfig, contexts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Logits (B, C), mean cosines (B,) and text features (B, C, D) under one context that all images share."""
    texts = text.encoded_once(config, contexts[0])
    logits = torch.stack([text.logits(image[:1], texts)[0] for image in views])
    return logits, mean_cosine(text.class_features(texts)).expand(len(views)), texts.expand(len(views), -1, -1)


def _predict(
    text: TextSide, views: Tensor, contexts: Tensor, *, keep_texts: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """One forward pass of the text features for each context, (configs · B, n, W), then the clean view's logits."""
    clean = views[:, :1]

    def clean_logits(index: Tensor, tuned: Tensor) -> Tensor:
        features = text.encoder.encode(tuned)
        return logits_and_extras(text, [clean[i] for i in index.tolist()], features, keep_texts=keep_texts)

    images = torch.arange(len(views)).repeat(len(contexts) // len(views))
    return split_extras(text, in_passes(clean_logits, images, contexts, size=text.contexts_per_pass))
