from .backbone import Backbone
from .devices import available_devices
from .loading import load_backbone
from .preprocessing import Preprocessing
from .sources.architectures import QuickGeluWarning
from .sources.catalogue import ModelEntry, list_models
from .towers.causal_tower import CausalLayer, CausalTower, Norm
from .towers.text_tower import TextTower

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
