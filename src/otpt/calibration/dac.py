"""DAC: a temperature for the predicted class, from how its text feature moved among those of other classes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from otpt.errors import OtptError
from otpt.registry import Count, calibrator

BASE_CLASS = 0.05
"""A class whose tuned text feature is closer than this to one of a base class is that class."""


@dataclass(frozen=True)
class BaseTexts:
    """Text features of C classes, and of the B base classes that a prompt was learned on.

    Attributes:
        zero_shot: (C, D), under words.
        tuned: (C, D), under the learned prompt.
        base_zero_shot: (B, D).
        base_tuned: (B, D).
    """

    zero_shot: Tensor
    tuned: Tensor
    base_zero_shot: Tensor
    base_tuned: Tensor

    def factors(self, classes: Tensor, neighbours: int) -> Tensor:
        """γ_c of some classes (m,): :func:`dac_factors`."""
        own = self.zero_shot[classes], self.tuned[classes]
        return dac_factors(*own, self.base_zero_shot, self.base_tuned, neighbours)


def dac_factors(
    zero_shot: Tensor, tuned: Tensor, base_zero_shot: Tensor, base_tuned: Tensor, neighbours: int = 5
) -> Tensor:
    """γ_c = exp(d⁰_c − d¹_c) of learned prompts: (C, D), (C, D), (B, D), (B, D) → (C,).

    d⁰_c and d¹_c are the mean distances of text feature c to its ``neighbours`` nearest text features of the B base
    classes that the prompts were learned on, zero-shot and tuned; of fewer base classes all are taken. γ_c = 1 for a
    base class itself, whose nearest tuned neighbour is closer than 0.05. The logits of an image that is predicted as
    class c are multiplied by γ_c.
    """
    before, after = (_distances(*pair) for pair in ((zero_shot, base_zero_shot), (tuned, base_tuned)))
    factors = _factors(before, after, neighbours)
    return torch.where(after.amin(dim=1) < BASE_CLASS, torch.ones_like(factors), factors)


def own_dac_factors(zero_shot: Tensor, tuned: Tensor, classes: Tensor | None = None, neighbours: int = 5) -> Tensor:
    """γ_c where no class was trained on: all other classes take the place of the base classes. (C, D) × 2 → (C,).

    ``classes`` (m,) asks for some classes only. Of fewer than ``neighbours`` other classes all are taken; with none, γ
    is 1.
    """
    asked = torch.arange(len(tuned), device=tuned.device) if classes is None else classes
    if len(tuned) == 1:
        return tuned.new_ones(len(asked))
    others = [_distances(texts[asked], texts).scatter(1, asked[:, None], torch.inf) for texts in (zero_shot, tuned)]
    return _factors(others[0], others[1], min(neighbours, len(tuned) - 1))


# DAC is for learned prompts and their base classes; with all other classes as the base it needs no training.
@calibrator(source="after Wang et al., ICML 2024 (DAC)", views=True)
def dac(
    logits: Tensor, text_features: Tensor, adapted_text_features: Tensor, dac_neighbours: Count = 5
) -> tuple[Tensor, dict[str, float]]:
    """DAC among all classes: logits multiplied by how much nearer the predicted class came to its neighbours.

    γ_ĉ·ℓ of all views of an image (V, C), ĉ each view's predicted class; and the clean view's temperature 1/γ.
    """
    return _scaled(logits, lambda each: own_dac_factors(text_features, adapted_text_features, each, dac_neighbours))


@calibrator(source="Wang et al., ICML 2024 (DAC)")
def dac_base(logits: Tensor, base_texts: BaseTexts, dac_neighbours: Count = 5) -> tuple[Tensor, dict[str, float]]:
    """DAC of a learned context: logits of new classes, multiplied by their distances to the learned ones.

    γ_ĉ·ℓ of views (V, C) under a learned prompt, γ by its base classes; and the clean view's temperature 1/γ.
    """
    return _scaled(logits, lambda each: base_texts.factors(each, dac_neighbours))


def _scaled(logits: Tensor, factors: Callable[[Tensor], Tensor]) -> tuple[Tensor, dict[str, float]]:
    """Each row multiplied by the factor of its predicted class; ``factors``: classes (m,) → (m,)."""
    predicted, views = logits.argmax(dim=1).unique(return_inverse=True)
    own = factors(predicted)[views]
    return own[:, None].to(logits) * logits, {"temperature": 1.0 / float(own[0])}


def _distances(texts: Tensor, others: Tensor) -> Tensor:
    """Euclidean: (m, D) and (n, D) → (m, n); by differences, since products lose the digits of small ones."""
    return torch.cdist(texts, others, compute_mode="donot_use_mm_for_euclid_dist")


def _factors(before: Tensor, after: Tensor, neighbours: int) -> Tensor:
    if neighbours < 1:
        raise OtptError(f"The number of neighbours is {neighbours}; expected 1 or more.")
    count = min(neighbours, before.shape[1])
    nearest = [each.topk(count, dim=1, largest=False).values.mean(dim=1) for each in (before, after)]
    return (nearest[0] - nearest[1]).exp()
