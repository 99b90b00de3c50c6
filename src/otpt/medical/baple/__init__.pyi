from .model import BapleModel
from .recipe import BapleRecipe
from .training import train_baple
from .trigger import Patch, triggered

__all__ = ["BapleModel", "BapleRecipe", "Patch", "train_baple", "triggered"]
