"""What a context step does, as data: objectives with their weights, and the optimiser's numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from otpt.entropy import fraction_of
from otpt.registry import OBJECTIVES, TEXTS, VIEWS, Count, Fraction, NonNegative, Positive


@dataclass(frozen=True, kw_only=True)
class Steps:
    """The numbers of AdamW steps on the context, of a method and of its configs.

    Attributes:
        steps: optimiser steps per image.
        learning_rate: one number, or one for each family of data sets.
        selection_ratio: fraction of the views that is selected, rounded down (at least one view).
        reference: whose logits give the range of the range objectives: the most "confident" selected view under
            the current prompt, as the released code does, or the "clean" view under the initial prompt.
        two_step: view objectives in a first step, text objectives in a second one with the same moments (C-TPT's
            two-step mode); the number of steps then counts such pairs.
        selection: "confident", the views of smallest entropy; or "strong", the clean view and then those of smallest
            entropy among the augmented ones, of which the ratio is taken.
    """

    steps: Count = 1
    learning_rate: Positive | Mapping[str, Positive] = 5e-3
    weight_decay: NonNegative = 0.01
    selection_ratio: Fraction = 0.1
    reference: Literal["confident", "clean"] = "confident"
    two_step: bool = False
    selection: Literal["confident", "strong"] = "confident"


@dataclass(frozen=True)
class TuningConfig(Steps):
    """L = Σ weight·objective, minimised by AdamW steps on the context for one family of data sets.

    Attributes:
        weights: (objective's name, weight) pairs.
        settings: (name, value) pairs of the objectives' own settings.
    """

    weights: tuple[tuple[str, float], ...]
    settings: tuple[tuple[str, float], ...] = ()
    learning_rate: float = field(default=5e-3, kw_only=True)

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
