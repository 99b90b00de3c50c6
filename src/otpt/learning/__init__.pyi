from .baple import train_baple
from .baple_recipe import BapleRecipe
from .coop import train_coop
from .fpt import train_fpt
from .fpt_recipe import FptRecipe
from .maple import initial_prompts, train_maple
from .recipe import COOP, MAPLE, Epoch, Recipe
from .shots import few_shots

__all__ = [
    "COOP",
    "MAPLE",
    "BapleRecipe",
    "Epoch",
    "FptRecipe",
    "Recipe",
    "few_shots",
    "initial_prompts",
    "train_baple",
    "train_coop",
    "train_fpt",
    "train_maple",
]
