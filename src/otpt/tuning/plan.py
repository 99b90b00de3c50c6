"""What a tuning does, as data: objectives with their weights, and the optimiser's numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor

from otpt import objectives
from otpt.errors import OtptError, unknown
from otpt.objectives.logit_range import Range

REFERENCES = ("confident", "clean")


def _entropy(logits: Tensor, _: Range) -> Tensor:
    return objectives.entropy_of_mean(logits)


VIEW_OBJECTIVES: Mapping[str, Callable[[Tensor, Range], Tensor]] = {
    "entropy": _entropy,
    "rescaled-entropy": objectives.rescaled_entropy,
    "range-penalty": objectives.range_penalty,
}
"""By name, functions of (logits of the selected views, reference range); all are lowered."""


def _negative_dispersion(text_features: Tensor) -> Tensor:
    return -objectives.text_dispersion(text_features)


TEXT_OBJECTIVES: Mapping[str, Callable[[Tensor], Tensor]] = {
    "dispersion": _negative_dispersion,
    "orthogonality": objectives.orthogonality,
    "orthogonality-rows": objectives.row_orthogonality,
    "orthogonality-frobenius": objectives.frobenius_orthogonality,
    "orthogonality-squared": objectives.squared_orthogonality,
}
"""By name, functions of the text features, in the sense in which they are lowered (dispersion is to grow)."""

OBJECTIVES = (*VIEW_OBJECTIVES, *TEXT_OBJECTIVES)


@dataclass(frozen=True)
class TuningPlan:
    """L = Σ weight·objective, lowered by AdamW steps on the context.

    Attributes:
        weights: (objective's name, weight) pairs.
        steps: optimiser steps a picture.
        selected: share of the views that is kept, rounded down (at least one view).
        reference: whose logits give the range of the range objectives: the most "confident" selected view under
            the current prompt, as the released code does, or the "clean" view under the start prompt.
        two_step: view objectives in a first step, text objectives in a second one with the same moments (C-TPT's
            two-step mode); the number of steps then counts such pairs.
    """

    weights: tuple[tuple[str, float], ...]
    steps: int = 1
    learning_rate: float = 5e-3
    weight_decay: float = 0.01
    selected: float = 0.1
    reference: str = "confident"
    two_step: bool = False

    def __post_init__(self) -> None:
        for name, weight in self.weights:
            if name not in OBJECTIVES:
                raise unknown("objective", name, OBJECTIVES)
            _require(
                math.isfinite(weight) and weight >= 0,
                f"weight of {name}",
                weight,
                "a finite number, 0 or more",
            )
        _require(
            self.steps >= 1 and self.steps == int(self.steps),
            "number of steps",
            self.steps,
            "a whole number, 1 or more",
        )
        _require(0 < self.learning_rate < math.inf, "learning rate", self.learning_rate, "a finite number above 0")
        _require(0 <= self.weight_decay < math.inf, "weight decay", self.weight_decay, "a finite number, 0 or more")
        _require(0 < self.selected <= 1, "share of selected views", self.selected, "a number above 0, 1 at most")
        _require(self.reference in REFERENCES, "reference", self.reference, " or ".join(REFERENCES))

    @property
    def view_weights(self) -> tuple[tuple[str, float], ...]:
        """The weights of objectives that see the picture."""
        return tuple((name, weight) for name, weight in self.weights if name in VIEW_OBJECTIVES)

    @property
    def text_weights(self) -> tuple[tuple[str, float], ...]:
        """The weights of objectives that see the class texts only."""
        return tuple((name, weight) for name, weight in self.weights if name in TEXT_OBJECTIVES)

    @property
    def closed_form(self) -> bool:
        """Whether the one-step engine applies."""
        return self.steps == 1 and not self.two_step

    def selected_count(self, views: int) -> int:
        """int(V·share): 6 of 64 at 10 %."""
        return max(int(views * self.selected), 1)


def _require(holds: bool, what: str, given: object, expected: str) -> None:
    if not holds:
        raise OtptError(f"The {what} is {given}; expected {expected}.")
