from .model import BapleModel
from .trigger import Patch, triggered

__all__ = [
    "BapleModel",
    "Patch",
    "triggered",
]
