"""Backbones: CLIP-like models and their loading."""

from otpt.backbones.backbone import Backbone, ClipBackbone, FeatureBackbone, available_devices
from otpt.backbones.causal import CausalTower
from otpt.backbones.checkpoints import read_checkpoint, read_tensors
from otpt.backbones.loading import ModelEntry, list_models, load_backbone
from otpt.backbones.open_clip_models import open_clip_tags
from otpt.backbones.sources import Parts, QuickGeluWarning, register_source
from otpt.backbones.text_tower import TextTower
from otpt.plugins import import_plugins
from otpt.views import Preprocessing

__all__ = [
    "Backbone",
    "CausalTower",
    "ClipBackbone",
    "FeatureBackbone",
    "ModelEntry",
    "Parts",
    "Preprocessing",
    "QuickGeluWarning",
    "TextTower",
    "available_devices",
    "list_models",
    "load_backbone",
    "open_clip_tags",
    "read_checkpoint",
    "read_tensors",
    "register_source",
]

import_plugins("backbones")
