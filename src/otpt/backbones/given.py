"""The model behind features that were computed elsewhere."""

from __future__ import annotations

import hashlib
from typing import Any

from torch import Tensor

from otpt.backbones.backbone import Backbone
from otpt.errors import OtptError
from otpt.views import Preprocessing


class FeatureBackbone(Backbone):
    """A model of which only the width of the features and the logit scale are known; it encodes nothing.

    Args:
        name: of the model that computed the features, if known.
    """

    def __init__(self, width: int, logit_scale: float = 100.0, name: str = "") -> None:
        self.name = self.architecture = name or "features"
        self.fingerprint = hashlib.sha256(f"features {name} {width} {logit_scale}".encode()).hexdigest()[:32]
        self.preprocessing = Preprocessing(size=224)
        self.embed_dim, self.logit_scale = width, logit_scale
        model = name.lower()
        self.family = "vit" if "vit" in model else "resnet" if model.startswith("rn") else "other"

    def __getattr__(self, name: str) -> Any:
        if name == "text":
            raise OtptError("There are features of images and classes, but no text tower, which this needs.")
        raise AttributeError(name)

    def encode_pixels(self, pixels: Tensor, *, chunk: int | None = None, unit: bool = True) -> Tensor:
        """Refuse: there is no image tower."""
        raise OtptError("There are features of images, but no image tower, which this needs.")
