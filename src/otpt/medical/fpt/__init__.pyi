from .frozen import FrozenViT, load_frozen_vit
from .network import FptNetwork, FptSizes
from .recipe import VARIANTS, FptRecipe
from .training import train_fpt

__all__ = ["VARIANTS", "FptNetwork", "FptRecipe", "FptSizes", "FrozenViT", "load_frozen_vit", "train_fpt"]
