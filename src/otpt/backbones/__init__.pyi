from .architectures import QuickGeluWarning
from .backbone import Backbone
from .catalogue import ModelEntry, list_models
from .causal_tower import CausalLayer, CausalTower, Norm
from .devices import available_devices
from .loading import load_backbone
from .preprocessing import Preprocessing
from .text_tower import TextTower

__all__ = [
    "Backbone",
    "CausalLayer",
    "CausalTower",
    "ModelEntry",
    "Norm",
    "Preprocessing",
    "QuickGeluWarning",
    "TextTower",
    "available_devices",
    "list_models",
    "load_backbone",
]
