from .coop import train_coop
from .maple import initial_prompts, train_maple
from .recipe import COOP, MAPLE, Epoch, Recipe
from .shots import few_shots

__all__ = ["COOP", "MAPLE", "Epoch", "Recipe", "few_shots", "initial_prompts", "train_coop", "train_maple"]
