"""Models: loading them, and the interface that the rest of the package uses."""

from otpt.backbones.backbone import Backbone
from otpt.backbones.checkpoints import read_checkpoint, read_tensors
from otpt.backbones.devices import available_devices
from otpt.backbones.loading import load_backbone
from otpt.backbones.preprocessing import Preprocessing
from otpt.backbones.sources.architectures import QuickGeluWarning
from otpt.backbones.sources.catalogue import ModelEntry, list_models
from otpt.backbones.towers.activations import ACTIVATIONS
from otpt.backbones.towers.causal_tower import CausalLayer, CausalTower, Norm
from otpt.backbones.towers.text_tower import TextTower

__all__ = [
    "ACTIVATIONS",
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
    "read_checkpoint",
    "read_tensors",
]
