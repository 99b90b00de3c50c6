"""The image trunk of ``pocket``, registered with timm as ``pocket_hybrid``: convolutions, then a short ViT.

64 × 64 pixels → the seven stages of EfficientNet-Lite0, the sixth without its stride → 4 × 4 tokens of width 192
→ two transformer blocks → mean over the tokens. No class token. The transformer is short, but it is one: prompts
for both towers (MaPLe) have blocks to enter.
"""

from __future__ import annotations

from typing import Any

import timm
from timm.models import register_model
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

__all__ = ["SIZE", "WIDTH", "ConvolutionalTokens", "pocket_hybrid"]

SIZE = 64  # pixels
WIDTH = 192
DEPTH, HEADS = 2, 3
_GRID = 4  # tokens a side
_CHANNELS = 320  # after the last stage
_UNSTRIDED = 5  # at 64 pixels the ordinary stride of this stage would leave 2 × 2 places


class ConvolutionalTokens(nn.Module):
    """(B, 3, 64, 64) → (B, 16, W): in the place of a ViT's patch embedding."""

    def __init__(self, embed_dim: int = WIDTH, **_: Any) -> None:
        super().__init__()
        net = timm.create_model("tf_efficientnet_lite0", num_classes=0)
        self.stem, self.stem_norm, self.stages = net.conv_stem, net.bn1, net.blocks
        for part in self.stages[_UNSTRIDED].modules():
            if isinstance(part, nn.Conv2d):
                part.stride = (1, 1)
        self.proj = nn.Linear(_CHANNELS, embed_dim)
        self.grid_size, self.num_patches = (_GRID, _GRID), _GRID * _GRID

    def maps(self, pixels: Tensor) -> Tensor:
        """(B, 3, 64, 64) → (B, 320, 4, 4)."""
        maps: Tensor = self.stages(self.stem_norm(self.stem(pixels)))
        return maps

    def forward(self, pixels: Tensor) -> Tensor:
        """Tokens row by row."""
        tokens: Tensor = self.proj(self.maps(pixels).flatten(2).transpose(1, 2))
        return tokens


@register_model  # type: ignore[untyped-decorator]
def pocket_hybrid(pretrained: bool = False, **kwargs: Any) -> VisionTransformer:
    """timm's builder; ``timm.create_model("pocket_hybrid")`` once this module is imported."""
    if pretrained:
        raise ValueError("pocket_hybrid's weights are those of otpt.load_backbone('pocket')")
    for name in ("pretrained_cfg", "pretrained_cfg_overlay", "cache_dir"):
        kwargs.pop(name, None)
    model = VisionTransformer(
        img_size=SIZE,
        embed_layer=ConvolutionalTokens,
        embed_dim=WIDTH,
        depth=DEPTH,
        num_heads=HEADS,
        class_token=False,
        global_pool="avg",
        **kwargs,
    )
    model.default_cfg = {"input_size": (3, SIZE, SIZE)}
    return model
