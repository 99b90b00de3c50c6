"""Models: loading them, and what the rest of the package needs of them."""

from __future__ import annotations

from otpt.backbones.architectures import QuickGeluWarning
from otpt.backbones.backbone import Backbone, backbone_from_open_clip
from otpt.backbones.catalogue import ModelEntry, list_models
from otpt.backbones.causal_tower import CausalLayer, CausalTower, Norm
from otpt.backbones.devices import available_devices
from otpt.backbones.loading import load_backbone
from otpt.backbones.preprocessing import Preprocessing
from otpt.backbones.text_tower import TextTower

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
    "backbone_from_open_clip",
    "list_models",
    "load_backbone",
]
