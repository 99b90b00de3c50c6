"""Registers the image trunk of ``pocket`` with timm as ``pocket_hybrid``, so that open_clip builds it by that name."""

from __future__ import annotations

import math
from typing import Any

from timm.models import register_model
from torch import nn

from otpt.backbones.pocket.trunk import SIZE, HybridVisionTransformer

__all__ = ["pocket_hybrid"]


class _TimmVisionTransformer(HybridVisionTransformer):
    """With what open_clip asks of a timm model beyond its features."""

    default_cfg = {"input_size": (3, SIZE, SIZE)}  # noqa: RUF012

    def reset_classifier(self, num_classes: int, global_pool: str = "avg") -> None:
        """There never is a classifier; the only pooling is the mean."""
        if num_classes != 0 or global_pool != "avg":
            raise ValueError(f"expected no classes and pooling 'avg', but got {num_classes} and {global_pool!r}")


@register_model  # type: ignore[untyped-decorator]
def pocket_hybrid(
    pretrained: bool = False,
    pretrained_cfg: Any = None,
    pretrained_cfg_overlay: Any = None,
    cache_dir: Any = None,
) -> HybridVisionTransformer:
    """timm's builder; ``timm.create_model("pocket_hybrid")`` once this module is imported."""
    if pretrained:
        raise ValueError("pocket_hybrid's weights are those of otpt.load_backbone('pocket')")
    trunk = _TimmVisionTransformer()
    initialise(trunk)
    return trunk


def initialise(trunk: HybridVisionTransformer) -> None:
    """Random weights as timm's: N(0, 2/fan-out) for convolutions, N(0, 0.02²) for the transformer, biases 0."""
    nn.init.trunc_normal_(trunk.pos_embed, std=0.02)
    for module in trunk.modules():
        if isinstance(module, nn.Conv2d):
            fan_out = module.kernel_size[0] * module.kernel_size[1] * module.out_channels // module.groups
            nn.init.normal_(module.weight, std=math.sqrt(2 / fan_out))
        elif isinstance(module, nn.Linear):
            nn.init.trunc_normal_(module.weight, std=0.02)
            nn.init.zeros_(module.bias)
