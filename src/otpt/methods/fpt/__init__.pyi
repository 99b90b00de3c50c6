from .frozen import FrozenViT, load_frozen_vit
from .network import FptNetwork, FptSizes

__all__ = [
    "FptNetwork",
    "FptSizes",
    "FrozenViT",
    "load_frozen_vit",
]
