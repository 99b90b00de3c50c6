"""Training of prompts on labelled images with the published recipes of CoOp and MaPLe."""

from otpt.learning.coop import train_coop
from otpt.learning.maple import initial_prompts, train_maple
from otpt.learning.training import COOP, MAPLE, Epoch, Recipe, few_shots

__all__ = ["COOP", "MAPLE", "Epoch", "Recipe", "few_shots", "initial_prompts", "train_coop", "train_maple"]
