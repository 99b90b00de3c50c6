"""Embedded model ``pocket``: a small CLIP for emoji, built with open_clip and timm.

Image tower: 64 × 64 pixels → the seven stages of EfficientNet-Lite0, the sixth without its stride → 4 × 4 tokens of
width 192 → two transformer blocks → mean over the tokens → projection. No class token. Text tower: three layers of a
CLIP text transformer.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from torch import Tensor, nn

from otpt.backbones.embedded import load_embedded, read_config
from otpt.backbones.sources import Parts

if TYPE_CHECKING:
    from timm.models.vision_transformer import VisionTransformer

CONFIG = read_config(__name__)
"""Architecture (``model_cfg``) and preprocessing (``preprocess_cfg``)."""
WEIGHTS_FILE = "pocket.safetensors"

SIZE = 64  # pixels
WIDTH = 192
UNSTRIDED = 5  # stage without stride: for 64 pixels the usual stride would give only 2 × 2 tokens
_registering = threading.Lock()


def load_pocket(quick_gelu: bool | None = None) -> Parts:
    """Load the embedded model."""
    register_trunk()
    return load_embedded("pocket", __name__, WEIGHTS_FILE, quick_gelu)


def register_trunk() -> None:
    """Add the trunk of the image tower to timm's registry, once."""
    import timm

    with _registering:
        if not timm.is_model(pocket_hybrid.__name__):
            timm.models.register_model(pocket_hybrid)


def pocket_hybrid(pretrained: bool = False, **_: object) -> VisionTransformer:
    """Create the trunk of the image tower, (B, 3, 64, 64) → (B, 192), for timm's registry."""
    from timm.models.vision_transformer import VisionTransformer

    trunk = VisionTransformer(
        img_size=SIZE,
        embed_layer=ConvolutionalTokens,
        embed_dim=WIDTH,
        depth=2,
        num_heads=3,
        class_token=False,
        global_pool="avg",
        num_classes=0,
    )
    trunk.default_cfg = {}
    return trunk


class ConvolutionalTokens(nn.Module):
    """EfficientNet-Lite0 as the patch embedding of a ViT: (B, 3, 64, 64) → (B, 16, W)."""

    num_patches = 16

    def __init__(self, embed_dim: int, **_: object) -> None:
        import timm

        super().__init__()
        net = timm.create_model("tf_efficientnet_lite0", num_classes=0)
        self.stem, self.stem_norm, self.stages = net.conv_stem, net.bn1, net.blocks
        for part in self.stages[UNSTRIDED].modules():
            if isinstance(part, nn.Conv2d):
                part.stride = (1, 1)
        self.proj = nn.Linear(320, embed_dim)

    def forward(self, pixels: Tensor) -> Tensor:
        """Tokens row by row."""
        maps = self.stages(self.stem_norm(self.stem(pixels)))  # (B, 320, 4, 4)
        tokens: Tensor = self.proj(maps.flatten(2).transpose(1, 2))
        return tokens
