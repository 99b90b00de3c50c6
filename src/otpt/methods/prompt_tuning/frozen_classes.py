"""An approximation for many classes, off by default: unlikely classes keep their initial text features.

With S the selected views and p(c | v) their probabilities at the init, class c is frozen where max_{v∈S} p(c | v) < τ;
the likeliest class of each view of S never is. With A the other classes, the step and the prediction are

    g̃ = Σ_w w · Σ_{c∈A} (∂L_w/∂e_c)·(∂e_c/∂θ) + Σ λ·∇_θ R,      e_c = e_c(θ₁) for c ∈ A, e_c(θ₀) for others.

Two things are approximated: the view objectives' gradient, which lacks the terms of frozen classes, and the
prediction, where their text features are those of the init. The logits of all classes enter ∂L_w/∂e_c, and the
regularisers' gradient is that of all classes. It costs three passes of A's texts (forward with graph, backward,
forward) in place of two of all (backward, forward). So an image of which less than half of the classes would be frozen
is tuned exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

import torch
from torch import Tensor

from otpt.entropy import SELECTED_BY
from otpt.methods.prompt_tuning.config import TuningConfig
from otpt.methods.prompt_tuning.gradients import GradientStore
from otpt.methods.prompt_tuning.one_step import tune_one_step
from otpt.methods.prompt_tuning.passes import Tuned
from otpt.methods.prompt_tuning.text_side import TextSide
from otpt.prompts import PartEncoder
from otpt.transfers import to_host


def tune_with_frozen(
    text: TextSide,
    views: Tensor,
    configs: Sequence[TuningConfig],
    *,
    known: Sequence[GradientStore] | None = None,
    keep_texts: bool = False,
) -> list[Tuned]:
    """As :func:`tune_one_step`, by configs with :attr:`TuningConfig.frozen_below`; image by image."""
    for name, settings in ((name, dict(config.settings)) for config in configs for name, _ in config.text_weights):
        text.text_gradient(name, settings)  # of all classes; sides of few classes find it
    found: list[list[Tuned]] = [[] for _ in configs]
    # of all images and configs in one copy
    masks = iter(to_host([_tuned_mask(text, image, config) for image in views for config in configs]))
    for i, image in enumerate(views):
        own = None if known is None else [known[i]]
        by_classes: dict[tuple[int, ...], list[int]] = {}
        for j in range(len(configs)):
            by_classes.setdefault(tuple(next(masks).nonzero()[:, 0].tolist()), []).append(j)
        for classes, which in by_classes.items():
            side = text if 2 * len(classes) > len(text.class_names) else _side_of(text, torch.tensor(classes))
            chosen = [configs[j] for j in which]
            for j, tuned in zip(
                which, tune_one_step(side, image[None], chosen, known=own, keep_texts=keep_texts), strict=True
            ):
                found[j].append(tuned)
    return [_joined(own) for own in found]


def tuned_classes(text: TextSide, image: Tensor, config: TuningConfig) -> Tensor:
    """The classes of one image (V, D) that are not frozen, in increasing order."""
    return _tuned_mask(text, image, config).nonzero()[:, 0]


def _tuned_mask(text: TextSide, image: Tensor, config: TuningConfig) -> Tensor:
    """(C,) whether a class is not frozen."""
    logits = text.logits(image, text.text_features)
    chosen = SELECTED_BY[config.selection](logits, config.selected_count(len(image)))
    p = logits[chosen].softmax(dim=-1)
    likely = (p >= config.frozen_below).any(dim=0)
    likely[p.argmax(dim=-1)] = True
    return likely


def _side_of(text: TextSide, classes: Tensor) -> TextSide:
    """The text side where only ``classes`` depend on the context; what is constant is shared."""
    side = copy(text)
    texts = text.texts_of(classes).to(text.text_features.device)
    side.encoder = PartEncoder(text.part_encoder(texts.cpu()), texts, text.text_features)
    side.contexts_per_pass = 1
    side.linearisation = side.encoder.linearise(text.init[None])
    return side


def _joined(parts: Sequence[Tuned]) -> Tuned:
    """Images one after another, as one."""
    texts = [each.text_features for each in parts if each.text_features is not None]
    return Tuned(
        torch.cat([each.logits for each in parts]),
        torch.cat([each.contexts for each in parts]),
        torch.cat([each.skipped for each in parts]),
        torch.cat([each.mean_cosine for each in parts]),
        torch.cat(texts) if texts else None,
    )
