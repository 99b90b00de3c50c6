"""Learning prompts from a few labelled pictures a class: CoOp and MaPLe, by their published recipes."""

from __future__ import annotations

from otpt.learning.coop import train_coop
from otpt.learning.maple import initial_prompts, train_maple
from otpt.learning.recipe import COOP, MAPLE, Epoch, Recipe
from otpt.learning.shots import few_shots

__all__ = ["COOP", "MAPLE", "Epoch", "Recipe", "few_shots", "initial_prompts", "train_coop", "train_maple"]
