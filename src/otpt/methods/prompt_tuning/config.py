"""What a context step does, as data: objectives with their weights, and the optimiser's numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass

from otpt.entropy import fraction_of
from otpt.errors import OtptError
from otpt.registry import OBJECTIVES, TEXTS, VIEWS

REFERENCES = ("confident", "clean")
"""Views whose logits give the reference range: the most confident one, or the clean one."""
SELECTIONS = ("confident", "strong")


@dataclass(frozen=True)
class TuningConfig:
    """L = Σ weight·objective, minimised by AdamW steps on the context.

    Attributes:
        weights: (objective's name, weight) pairs.
        steps: optimiser steps per image.
        selection_ratio: fraction of the views that is selected, rounded down (at least one view).
        selection: "confident", the views of smallest entropy; or "strong", the clean view and then those of smallest
            entropy among the augmented ones, of which the ratio is taken.
        settings: (name, value) pairs of the objectives' own settings.
        reference: whose logits give the range of the range objectives: the most "confident" selected view under
            the current prompt, as the released code does, or the "clean" view under the initial prompt.
        two_step: view objectives in a first step, text objectives in a second one with the same moments (C-TPT's
            two-step mode); the number of steps then counts such pairs.
    """

    weights: tuple[tuple[str, float], ...]
    steps: int = 1
    learning_rate: float = 5e-3
    weight_decay: float = 0.01
    selection_ratio: float = 0.1
    reference: str = "confident"
    two_step: bool = False
    selection: str = "confident"
    settings: tuple[tuple[str, float], ...] = ()

    def __post_init__(self) -> None:
        finite = "a finite number, 0 or more"
        for name, weight in self.weights:
            _require(name in OBJECTIVES, "objective", name, "a registered one")
            _require(0 <= weight < math.inf, f"weight of {name}", weight, finite)
        _require(self.steps >= 1 and float(self.steps).is_integer(), "number of steps", self.steps, "1, 2, 3, …")
        _require(0 < self.learning_rate < math.inf, "learning rate", self.learning_rate, "a finite number above 0")
        _require(0 <= self.weight_decay < math.inf, "weight decay", self.weight_decay, finite)
        _require(0 < self.selection_ratio <= 1, "selection ratio", self.selection_ratio, "above 0, at most 1")
        _require(self.reference in REFERENCES, "reference", self.reference, " or ".join(REFERENCES))
        _require(self.selection in SELECTIONS, "selection", self.selection, " or ".join(SELECTIONS))

    @property
    def view_weights(self) -> tuple[tuple[str, float], ...]:
        """The weights of objectives on the views."""
        return self._on(VIEWS)

    @property
    def text_weights(self) -> tuple[tuple[str, float], ...]:
        """The weights of objectives on the text features."""
        return self._on(TEXTS)

    @property
    def closed_form(self) -> bool:
        """Whether the one-step engine applies."""
        return self.steps == 1 and not self.two_step

    @property
    def static(self) -> bool:
        """Whether one step gives the same context for every image, since no objective sees the views."""
        return self.closed_form and not self.view_weights

    def selected_count(self, views: int) -> int:
        """int(V·ratio): 6 of 64 at 10 %; with "strong" int((V − 1)·ratio) augmented views and the clean one."""
        clean = int(self.selection == "strong")
        return fraction_of(views - clean, self.selection_ratio) + clean

    def _on(self, kind: str) -> tuple[tuple[str, float], ...]:
        return tuple((name, weight) for name, weight in self.weights if OBJECTIVES[name].on == kind)


def _require(holds: bool, what: str, given: object, expected: str) -> None:
    if not holds:
        raise OtptError(f"The {what} is {given}; expected {expected}.")
