"""The hyperparameters of FPT's training."""

from __future__ import annotations

import math
from dataclasses import dataclass

from otpt.learning.recipe import check_numbers


@dataclass(frozen=True)
class FptRecipe:
    """``weight`` is λ of the orthogonality term (0 for FPT itself), ``rows`` what it applies to."""

    weight: float = 0.0
    rows: str = "classifier"
    variant: str = "fpt"
    seed: int = 1
    epochs: int = 20
    batch: int = 16
    learning_rate: float = 1e-4
    weight_decay: float = 0.1
    clip: float = 1.0

    def __post_init__(self) -> None:
        counts = {"epochs": self.epochs, "images in a batch": self.batch}
        check_numbers(counts, seed=self.seed, learning_rate=self.learning_rate)

    def rate(self, epoch: int) -> float:
        """The learning rate of an epoch: a cosine, no warm-up."""
        return self.learning_rate * (1 + math.cos(math.pi * epoch / self.epochs)) / 2
