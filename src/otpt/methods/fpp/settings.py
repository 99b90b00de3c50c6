"""FPP's numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass

from otpt.errors import OtptError


@dataclass(frozen=True)
class Fpp:
    """How FPP makes a context; the defaults are those of the released code.

    The published 0.02 and 0.005 of the noise are **variances**: the deviations are √0.02 ≈ 0.141 and √0.005 ≈ 0.071.

    Attributes:
        words: the text features of this prompt are what the context is aligned with; "fpp-words" starts from it.
        tokens: length of a context that starts at random.
        start_variance: of a random start.
        noises: noisy copies of all texts in each step.
        context_variance: of the noise on the context's vectors.
        token_variance: of the noise on all other token vectors: start, name, full stop, end, padding.
        weight: λ of the flatness on fine-grained sets is ``weight`` + ``weight_per_class``/C. The paper's text has 0.15
            in place of 15.
        shift_weight: λ on shifts.
        steps: of AdamW; the learning rate falls from ``learning_rate`` to ``final_rate`` by half a cosine.
        seed: of start and noise. One context serves all seeds of a run, whose seeds are those of the views.
    """

    words: str = "a photo of a"
    tokens: int = 4
    start_variance: float = 0.02
    noises: int = 4
    context_variance: float = 0.005
    token_variance: float = 0.02
    weight: float = 1.0
    weight_per_class: float = 15.0
    shift_weight: float = 1.25
    steps: int = 1000
    learning_rate: float = 1e-2
    final_rate: float = 1e-4
    weight_decay: float = 0.01
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("tokens", "noises", "steps"):
            if getattr(self, name) < 1:
                raise OtptError(f"FPP: the number of {name} is {getattr(self, name)}; expected 1 or more.")
        for name in (
            "start_variance",
            "context_variance",
            "token_variance",
            "weight",
            "weight_per_class",
            "shift_weight",
            "learning_rate",
            "final_rate",
            "weight_decay",
        ):
            if not 0 <= getattr(self, name) < math.inf:
                raise OtptError(f"FPP: {name} is {getattr(self, name)}; expected a finite number, 0 or more.")

    def flatness_weight(self, classes: int, family: str) -> float:
        """λ."""
        return self.shift_weight if family == "shift" else self.weight + self.weight_per_class / classes

    def rate(self, step: int) -> float:
        """The learning rate of a step, 0 … ``steps`` − 1."""
        part = (1 + math.cos(math.pi * step / self.steps)) / 2
        return self.final_rate + (self.learning_rate - self.final_rate) * part
