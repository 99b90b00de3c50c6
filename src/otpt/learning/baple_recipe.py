"""The hyperparameters of BAPLe's training."""

from __future__ import annotations

import math
from dataclasses import dataclass

from otpt.errors import OtptError
from otpt.learning.recipe import check_numbers


@dataclass(frozen=True)
class BapleRecipe:
    """``weight`` is λ of the orthogonality term: 0 for BAPLe itself."""

    target: int
    weight: float = 0.0
    shots: int = 32
    seed: int = 1
    tokens: int = 16
    poisoned: float = 0.05
    epochs: int = 50
    batch: int = 16
    learning_rate: float = 0.1
    first_learning_rate: float = 1e-3
    momentum: float = 0.9
    weight_decay: float = 5e-4
    bound: float = 8 / 255
    noise_step: float = 0.01

    def __post_init__(self) -> None:
        counts = {"shots": self.shots, "tokens": self.tokens, "epochs": self.epochs, "images in a batch": self.batch}
        check_numbers(counts, seed=self.seed, learning_rate=self.learning_rate)
        if not 0 < self.poisoned < 1:
            raise OtptError(f"The fraction of poisoned images is {self.poisoned}; expected a number between 0 and 1.")

    def rate(self, epoch: int) -> float:
        """The context's learning rate in an epoch: constant in the first, then a cosine."""
        if epoch == 0:
            return self.first_learning_rate
        return self.learning_rate * (1 + math.cos(math.pi * (epoch - 1) / self.epochs)) / 2
