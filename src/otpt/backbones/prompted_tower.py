"""The image tower with prompts in its first layers (MaPLe), differentiable in them.

    x ← tokens of the picture (with class token and positions), n prompts after them       (norm before the blocks: all)
    before block l, 1 ≤ l < J: the last n tokens are overwritten by the prompts of that layer
    after the last block the prompts are dropped; what pools the tokens never sees them

For open_clip's own vision transformer and for timm's, which may sit on convolutions. What a picture's tokens are does
not depend on the prompts: :meth:`PromptedTower.embed` computes them once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from open_clip.transformer import VisionTransformer
from torch import Tensor, nn
from torch.nn import functional as F

from otpt.backbones.backbone import Backbone
from otpt.backbones.image_tower import first, is_convolutional, tune
from otpt.errors import OtptError

_CHUNK = {"cpu": 8}
_TOKEN_FLOATS = 16
"""Floats kept for the backward pass, per token and block, in units of the width."""
_TOLERANCE = 1e-3


class PromptedTower:
    """Pixels → tokens → unit features under prompts.

    Attributes:
        width: W_v.  depth: number of blocks.
    """

    def __init__(self, backbone: Backbone) -> None:
        self._chunk = _CHUNK.get(backbone.device.type, 64)
        visual: Any = backbone.visual
        if not isinstance(visual, VisionTransformer):  # whose tuned form has blocks that take no gradient
            visual = tune(visual, backbone.preprocessing.size, self._chunk, pack=False)
        self._layout = torch.channels_last if is_convolutional(visual) else torch.contiguous_format
        parts = _parts(visual)
        if parts is None:
            raise OtptError(
                f"MaPLe needs an image tower that is a vision transformer; that of {backbone.name!r} is a "
                f"{type(getattr(backbone.visual, 'trunk', backbone.visual)).__name__}."
            )
        self._tokens, self._norm_prompts, self._blocks, self._pool = parts
        self._backbone = backbone
        self.depth = len(self._blocks)
        self._length, self.width = self._check()

    def embed(self, pixels: Tensor) -> Tensor:
        """Normalised pixels (N, 3, S, S) → tokens (N, T, W_v) before the first block, without graph."""
        backbone = self._backbone
        pixels = pixels.to(backbone.device, backbone.dtype, memory_format=self._layout)
        with torch.no_grad():
            return torch.cat([self._tokens(part) for part in pixels.split(self._chunk)])

    def __call__(self, tokens: Tensor, prompts: Tensor) -> Tensor:
        """Tokens (N, T, W_v) under prompts (J, n, W_v) → unit features (N, D), with the graph of the prompts."""
        parts = [self._encode(part, prompts) for part in tokens.split(self._chunk)]
        return torch.cat(parts)

    def graph_bytes(self, views: int) -> int:
        """Bytes, estimated, of the graph of so many views."""
        size = torch.finfo(self._backbone.dtype).bits // 8
        return views * self._length * self.width * _TOKEN_FLOATS * self.depth * size

    def check_depth(self, depth: int, width: int) -> None:
        """``OtptError`` if prompts for ``depth`` layers of this width do not fit."""
        if width != self.width:
            raise OtptError(
                f"The prompts of MaPLe are {width} wide on the image side; this image tower is {self.width} wide. Take "
                "prompts that were learned with this backbone."
            )
        if depth > self.depth:
            raise OtptError(f"The prompts of MaPLe are for {depth} layers; this image tower has {self.depth}.")

    def _encode(self, tokens: Tensor, prompts: Tensor) -> Tensor:
        count, own = len(tokens), tokens.shape[1]
        x = tokens
        for depth, block in enumerate(self._blocks):
            if depth < len(prompts):
                entering = self._norm_prompts(prompts[0]) if depth == 0 else prompts[depth]
                x = torch.cat([x[:, :own], entering.expand(count, -1, -1)], dim=1)
            x = block(x)
        return F.normalize(self._pool(x[:, :own]), dim=-1)

    def _check(self) -> tuple[int, int]:
        """Without prompts the parts must give what the tower gives; returns T and W_v."""
        backbone, size = self._backbone, self._backbone.preprocessing.size
        pixels = torch.randn(1, 3, size, size, generator=torch.Generator().manual_seed(0))
        tokens = self.embed(pixels)
        width = tokens.shape[-1]
        with torch.no_grad():
            found = self(tokens, tokens.new_empty(0, 0, width))
            expected = F.normalize(first(backbone.visual(pixels.to(backbone.device, backbone.dtype))), dim=-1)
        if not bool((found - expected).abs().max() <= _TOLERANCE):
            raise OtptError(
                f"The image tower of {backbone.name!r} is a vision transformer of a kind that MaPLe cannot take."
            )
        return tokens.shape[1], width


_Parts = tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor], list[nn.Module], Callable[[Tensor], Tensor]]


def _parts(visual: Any) -> _Parts | None:
    """What makes tokens, the norm that prompts pass before the first block, the blocks, and what follows them."""
    if isinstance(visual, VisionTransformer):
        return _open_clip_parts(visual)
    from timm.models.vision_transformer import VisionTransformer as TimmTransformer

    trunk = getattr(visual, "trunk", None)
    return _timm_parts(visual, trunk) if isinstance(trunk, TimmTransformer) else None


def _open_clip_parts(visual: Any) -> _Parts | None:
    if not visual.transformer.batch_first:
        return None

    def pool(x: Tensor) -> Tensor:
        pooled, _ = visual._pool(x)
        return pooled if visual.proj is None else pooled @ visual.proj

    return visual._embeds, visual.ln_pre, list(visual.transformer.resblocks), pool


def _timm_parts(visual: Any, trunk: Any) -> _Parts:
    def tokens(pixels: Tensor) -> Tensor:
        return trunk.norm_pre(trunk.patch_drop(trunk._pos_embed(trunk.patch_embed(pixels))))

    def pool(x: Tensor) -> Tensor:
        return visual.head(trunk.forward_head(trunk.norm(x)))

    return tokens, trunk.norm_pre, list(trunk.blocks), pool
