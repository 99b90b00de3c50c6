"""Backbones: CLIP-like models and their loading."""

from otpt.backbones.backbone import ClipBackbone, FeatureBackbone, fingerprint
from otpt.backbones.causal import CausalTower
from otpt.backbones.checkpoints import read_checkpoint, read_tensors
from otpt.backbones.devices import available_devices, check_precision, pick_device
from otpt.backbones.known_models import ModelEntry, find_model
from otpt.backbones.loading import list_models, load_backbone
from otpt.backbones.open_clip_models import open_clip_tags
from otpt.backbones.protocols import (
    Backbone,
    ImageEncoder,
    TextEncoder,
    TextTower,
    as_backbone,
    has_text_encoder,
    is_backbone,
    text_encoder,
)
from otpt.backbones.sources import Parts, QuickGeluWarning, hub_file, register_source
from otpt.views import Preprocessing

__all__ = [
    "Backbone",
    "CausalTower",
    "ClipBackbone",
    "FeatureBackbone",
    "ImageEncoder",
    "ModelEntry",
    "Parts",
    "Preprocessing",
    "QuickGeluWarning",
    "TextEncoder",
    "TextTower",
    "as_backbone",
    "available_devices",
    "check_precision",
    "find_model",
    "fingerprint",
    "has_text_encoder",
    "hub_file",
    "is_backbone",
    "list_models",
    "load_backbone",
    "open_clip_tags",
    "pick_device",
    "read_checkpoint",
    "read_tensors",
    "register_source",
    "text_encoder",
]
