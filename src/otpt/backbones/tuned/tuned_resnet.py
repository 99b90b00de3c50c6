"""open_clip's modified ResNet with less work for the same features.

Batch-norms are folded beforehand. Here ReLUs and residual sums join the convolutions before them, and the
attention pooling asks for the one query that is read, the mean token, instead of one for every position.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from otpt.backbones.tuned.fusing import RELU, input_shapes
from otpt.backbones.tuned.kernels import Convolution, Linear, can_pack_convolution

if TYPE_CHECKING:
    from open_clip.modified_resnet import AttentionPool2d, ModifiedResNet


def tune_resnet(folded: ModifiedResNet, chunk: int, *, pack: bool) -> nn.Module:
    """Tunes ``folded`` in place (batch-norms already folded, channels_last), for chunks of ``chunk`` views."""
    if pack and can_pack_convolution(folded.conv1.weight):
        shapes = input_shapes(folded, chunk, folded.image_size)
        for index in (1, 2, 3):
            stem = getattr(folded, f"conv{index}")
            setattr(folded, f"conv{index}", Convolution(stem, shapes[stem], activation=RELU))
            setattr(folded, f"act{index}", nn.Identity())
        for stage in (folded.layer1, folded.layer2, folded.layer3, folded.layer4):
            for index, block in enumerate(stage):
                stage[index] = _Bottleneck(block, shapes)
    folded.attnpool = _AttentionPool(folded.attnpool, chunk, pack=pack)
    return folded


class _Bottleneck(nn.Module):
    def __init__(self, block: Any, shapes: dict[nn.Module, tuple[int, ...]]) -> None:
        super().__init__()
        self.conv1 = Convolution(block.conv1, shapes[block.conv1], activation=RELU)
        self.conv2 = Convolution(block.conv2, shapes[block.conv2], activation=RELU)
        self.conv3 = Convolution(block.conv3, shapes[block.conv3], activation=RELU)
        self.avgpool = block.avgpool
        self.shortcut: nn.Module = nn.Identity()
        if block.downsample is not None:
            pool, convolution = block.downsample[0], block.downsample[1]
            self.shortcut = nn.Sequential(pool, Convolution(convolution, shapes[convolution]))

    def forward(self, x: Tensor) -> Tensor:
        out = self.avgpool(self.conv2(self.conv1(x)))
        # the residual is overwritten: it is the previous block's output, which nobody else reads, or the
        # shortcut's
        result: Tensor = self.conv3(out, self.shortcut(x))
        return result


class _AttentionPool(nn.Module):
    """softmax(q₀Kᵀ/√d) V for the mean token's query q₀: (n, C, h, w) → (n, D)."""

    def __init__(self, pool: AttentionPool2d, chunk: int, *, pack: bool) -> None:
        super().__init__()
        self.heads = pool.num_heads
        self.positions = pool.positional_embedding.detach()
        rows = chunk * self.positions.shape[0]
        weight = torch.cat([pool.k_proj.weight, pool.v_proj.weight])
        bias = torch.cat([pool.k_proj.bias, pool.v_proj.bias])
        self.key_value = Linear(weight, bias, rows, pack=pack)
        self.query = Linear(pool.q_proj.weight, pool.q_proj.bias, chunk, pack=pack)
        self.out = Linear(pool.c_proj.weight, pool.c_proj.bias, chunk, pack=pack)

    def forward(self, x: Tensor) -> Tensor:
        count = x.shape[0]
        cells = x.flatten(2).transpose(1, 2)  # (n, h·w, C)
        tokens = torch.cat([cells.mean(dim=1, keepdim=True), cells], dim=1) + self.positions.to(x.dtype)
        q = self.query(tokens[:, 0].contiguous()).view(count, 1, self.heads, -1).transpose(1, 2)
        k, v = self.key_value(tokens).view(count, tokens.shape[1], 2, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v)  # (n, heads, 1, C/heads)
        return self.out(mixed.reshape(count, -1))
