"""Image tower with prompts in its first layers (MaPLe), differentiable with respect to the prompts.

    x ← tokens of the image (with class token and positions), then n prompts        (all normalised before the blocks)
    before block l, 1 ≤ l < J: the prompts of layer l replace the last n tokens
    after the last block: the prompts are dropped, and the other tokens are pooled

Supports the vision transformers of open_clip and timm, including hybrids with convolutions. The tokens of an image do
not depend on the prompts, so :meth:`PromptedTower.embed` computes them once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from otpt.backbones.fast import check_pixels, is_convolutional, is_open_clip_vit, pooled, tune
from otpt.backbones.modules import ClipVision, TimmTrunk
from otpt.backbones.protocols import Backbone
from otpt.errors import OtptError
from otpt.threads import in_threads
from otpt.transfers import to_device

_CHUNK = {"cpu": 8}
_TOKEN_FLOATS = 16
"""Number of floats stored for the backward pass, per token and block, in units of the width."""
_TOLERANCE = 1e-3


class PromptedTower:
    """Encoder of pixels to tokens, and of tokens and prompts to unit features.

    Attributes:
        length, width: number of tokens T and their width W_v.
        depth: number of blocks.
    """

    def __init__(self, backbone: Backbone) -> None:
        self._chunk = _CHUNK.get(backbone.device.type, 64)
        if backbone.visual is None:
            raise OtptError(f"MaPLe requires a vision transformer; {backbone.name!r} has no module of its image tower.")
        visual = backbone.visual
        if not is_open_clip_vit(visual):  # its tuned blocks do not support gradients
            visual = tune(visual, backbone.preprocessing.size, self._chunk, pack=False)
        parts = _parts(visual)
        if parts is None:
            kind = type(getattr(visual, "trunk", visual)).__name__
            raise OtptError(f"MaPLe requires a vision transformer; the image tower of {backbone.name!r} is a {kind}.")
        self._layout = torch.channels_last if is_convolutional(visual) else torch.contiguous_format
        self._tokens, self._norm_prompts, self._blocks, self._pool = parts
        self._visual = backbone.visual
        self._backbone = backbone
        self.depth = len(self._blocks)
        self.length, self.width = self._check()

    def embed(self, pixels: Tensor) -> Tensor:
        """Return the tokens (N, T, W_v) before the first block of normalised pixels (N, 3, S, S), without graph."""
        backbone = self._backbone
        pixels = to_device(pixels, backbone.device, backbone.dtype).contiguous(memory_format=self._layout)
        return torch.cat(in_threads(torch.no_grad()(self._tokens), pixels.split(self._chunk)))

    def __call__(self, tokens: Tensor, prompts: Tensor) -> Tensor:
        """Return unit features (N, D) of tokens (N, T, W_v) with prompts (J, n, W_v), without graph."""
        encode = torch.no_grad()(partial(self._encode, prompts=prompts))
        return torch.cat(in_threads(encode, tokens.split(self._chunk)))

    def linearise(self, tokens: Tensor, prompts: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """Return detached unit features (N, D) and their vector–Jacobian product: cotangents (N, D) → (J, n, W_v)."""

        def encode(chunk: Tensor) -> tuple[Tensor, Tensor]:
            leaf = prompts.detach().requires_grad_()
            with torch.enable_grad():
                return self._encode(chunk, leaf), leaf

        def pull(encoded: tuple[tuple[Tensor, Tensor], Tensor]) -> Tensor:
            (features, leaf), cotangent = encoded
            with torch.enable_grad():
                value = (features * cotangent).sum()
            return torch.autograd.grad(value, leaf)[0]

        graphs = in_threads(encode, tokens.split(self._chunk))

        def vjp(cotangents: Tensor) -> Tensor:
            pairs = list(zip(graphs, cotangents.split(self._chunk), strict=True))
            return torch.stack(in_threads(pull, pairs)).sum(dim=0)

        return torch.cat([features.detach() for features, _ in graphs]), vjp

    def block_inputs(self, tokens: Tensor, prompts: Tensor, blocks: int) -> Tensor:
        """Return the inputs of the first blocks: (N, T, W_v) and (J, n, W_v) → (N, blocks, T + n, W_v)."""
        inputs = [self._with_prompts(tokens, tokens.shape[1], prompts, 0)]
        for depth in range(1, blocks):
            x = self._blocks[depth - 1](inputs[-1])
            inputs.append(self._with_prompts(x, tokens.shape[1], prompts, depth))
        return torch.stack(inputs, dim=1)

    def graph_bytes(self, views: int) -> int:
        """Return the estimated size of the graph of ``views`` views in bytes."""
        size = torch.finfo(self._backbone.dtype).bits // 8
        return views * self.length * self.width * _TOKEN_FLOATS * self.depth * size

    def check_depth(self, depth: int, width: int) -> None:
        """Raise ``OtptError`` if prompts of this depth and width do not fit the tower."""
        if width != self.width:
            raise OtptError(
                f"The image prompts of MaPLe have width {width}, but the image tower has width {self.width}; use "
                "prompts learned with this backbone."
            )
        if depth > self.depth:
            raise OtptError(f"The prompts of MaPLe have {depth} layers; this image tower has only {self.depth}.")

    def _encode(self, tokens: Tensor, prompts: Tensor) -> Tensor:
        x, length = tokens, tokens.shape[1]
        for depth, block in enumerate(self._blocks):
            x = block(self._with_prompts(x, length, prompts, depth))
        return F.normalize(self._pool(x[:, :length]), dim=-1)

    def _with_prompts(self, x: Tensor, length: int, prompts: Tensor, depth: int) -> Tensor:
        """Return the input of a block: the first ``length`` tokens of x (N, …, W_v), then the prompts of the layer."""
        if depth >= len(prompts):
            return x
        entering = self._norm_prompts(prompts[0]) if depth == 0 else prompts[depth]
        return torch.cat([x[:, :length], entering.expand(len(x), -1, -1)], dim=1)

    def _check(self) -> tuple[int, int]:
        """Compare the output without prompts with the original tower's; return T and W_v."""
        backbone = self._backbone
        pixels = check_pixels(backbone.preprocessing.size, backbone.device, backbone.dtype)
        tokens = self.embed(pixels)
        width = tokens.shape[-1]
        features = self(tokens, tokens.new_empty(0, 0, width))
        with torch.no_grad():
            expected = F.normalize(pooled(self._visual(pixels)), dim=-1)
        if not bool((features - expected).abs().max() <= _TOLERANCE):
            raise OtptError(
                f"MaPLe does not support the kind of vision transformer in {backbone.name!r}; use another backbone."
            )
        return tokens.shape[1], width


_Parts = tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor], list[nn.Module], Callable[[Tensor], Tensor]]


def _parts(visual: nn.Module) -> _Parts | None:
    """Return (embedding, norm of the prompts, blocks, pooling) of a vision transformer, or None for other towers."""
    if is_open_clip_vit(visual):
        return _open_clip_parts(cast(ClipVision, visual))
    trunk = getattr(visual, "trunk", None)  # of timm, or of ``pocket``, which has the same attributes
    names = ("patch_embed", "_pos_embed", "patch_drop", "norm_pre", "blocks", "norm", "forward_head")
    if not all(hasattr(trunk, name) for name in names):
        return None
    return _timm_parts(cast(TimmTrunk, trunk), visual.get_submodule("head"))


def _open_clip_parts(visual: ClipVision) -> _Parts | None:
    if not getattr(visual.transformer, "batch_first", True):  # version 4 of open_clip has no other order
        return None

    def pool(x: Tensor) -> Tensor:
        features, _ = visual._pool(x)
        return features if visual.proj is None else features @ visual.proj

    return visual._embeds, visual.ln_pre, list(visual.transformer.resblocks), pool


def _timm_parts(trunk: TimmTrunk, head: nn.Module) -> _Parts:
    def tokens(pixels: Tensor) -> Tensor:
        embedded: Tensor = trunk.norm_pre(trunk.patch_drop(trunk._pos_embed(trunk.patch_embed(pixels))))
        return embedded

    def pool(x: Tensor) -> Tensor:
        feature: Tensor = head(trunk.forward_head(trunk.norm(x)))
        return feature

    return tokens, trunk.norm_pre, list(trunk.blocks), pool
