"""Embedded model ``pocket-photo``: a small CLIP for photographs, made without a training image.

Image tower: 224 × 224 pixels → EfficientNet-Lite0 → probabilities p of ImageNet's 1,000 classes → Σ_c p_c · (text
feature of class c, less the mean) + a direction of all images (convex combination of semantic embeddings, Norouzi et
al., 2014). An image with uncertain p is close to the direction of all images, so its answers are less confident.

Text tower: three layers of a CLIP text transformer, distilled from a sentence encoder. A constant in the last norm adds
a direction of all texts, as in CLIP, where the cosines between texts are 0.6 to 0.8.
"""

from __future__ import annotations

import threading

from torch import Tensor, nn

from otpt.backbones.embedded import load_embedded, read_config
from otpt.backbones.sources import Parts

CONFIG = read_config(__name__)
"""Architecture (``model_cfg``) and preprocessing (``preprocess_cfg``)."""
WEIGHTS_FILE = "pocket_photo.safetensors"

_CLASSES = 1000
_registering = threading.Lock()


def load_pocket_photo(quick_gelu: bool | None = None) -> Parts:
    """Load the embedded model."""
    register_trunk()
    return load_embedded("pocket-photo", __name__, WEIGHTS_FILE, quick_gelu)


def register_trunk() -> None:
    """Add the trunk of the image tower to timm's registry, once."""
    import timm

    with _registering:
        if not timm.is_model(pocket_photo_classifier.__name__):
            timm.models.register_model(pocket_photo_classifier)


def pocket_photo_classifier(pretrained: bool = False, **_: object) -> ImageNetClassifier:
    """Create the trunk of the image tower, (B, 3, 224, 224) → (B, 1000), for timm's registry."""
    return ImageNetClassifier()


class ImageNetClassifier(nn.Module):
    """EfficientNet-Lite0 with its classifier: (B, 3, S, S) → probabilities (B, 1000)."""

    num_features = _CLASSES  # of open_clip's projection

    def __init__(self) -> None:
        import timm

        super().__init__()
        self.default_cfg: dict[str, object] = {}
        self.net = timm.create_model("tf_efficientnet_lite0", num_classes=_CLASSES)

    def forward(self, pixels: Tensor) -> Tensor:
        """Probabilities of ImageNet's classes."""
        logits: Tensor = self.net(pixels)
        return logits.softmax(dim=-1)

    def reset_classifier(self, num_classes: int, global_pool: str = "avg") -> None:
        """Keep the classifier, which open_clip would remove before it adds its projection."""
