"""The image trunk of ``pocket``: convolutions, then a short vision transformer.

64 × 64 pixels → the seven stages of EfficientNet-Lite0, the sixth without its stride → 4 × 4 tokens of width 192
→ two transformer blocks → mean over the tokens. No class token. The transformer is short, but it has
blocks into which prompts for both towers (MaPLe) can be inserted.

Plain torch, with the names of timm's EfficientNet and VisionTransformer, so that weights, fingerprints and whatever
reads the parts of a timm tower are the same. ``registration`` hands this trunk to timm as ``pocket_hybrid``.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from otpt.backbones.hybrid_sizes import DEPTH, EXPANSION, GRID, HEADS, SIZE, STAGES, STEM, UNSTRIDED, WIDTH
from otpt.backbones.tuned.same_padding import Conv2dSame

__all__ = ["SIZE", "WIDTH", "ConvolutionalTokens", "HybridVisionTransformer"]


class HybridVisionTransformer(nn.Module):
    """(B, 3, 64, 64) → (B, W)."""

    def __init__(self) -> None:
        super().__init__()
        self.num_features = WIDTH
        self.pos_embed = nn.Parameter(torch.zeros(1, GRID * GRID, WIDTH))
        self.patch_embed = ConvolutionalTokens()
        _leave_out(self, _no_dropout, "pos_drop", "head_drop")
        _leave_out(self, nn.Identity, "patch_drop", "norm_pre", "norm", "head")
        self.blocks = nn.Sequential(*(Block(WIDTH, HEADS) for _ in range(DEPTH)))
        self.fc_norm = nn.LayerNorm(WIDTH, eps=1e-6)

    def forward(self, pixels: Tensor) -> Tensor:
        return self.forward_head(self.blocks(self._pos_embed(self.patch_embed(pixels))))

    def forward_head(self, tokens: Tensor) -> Tensor:
        """(B, T, W) → (B, W)."""
        pooled: Tensor = self.fc_norm(tokens.mean(dim=1))
        return pooled

    def _pos_embed(self, tokens: Tensor) -> Tensor:
        return tokens + self.pos_embed


class ConvolutionalTokens(nn.Module):
    """(B, 3, 64, 64) → (B, 16, W): in the place of a ViT's patch embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = Conv2dSame(3, STEM, 3, stride=2, bias=False)
        self.stem_norm = BatchNormAct2d(STEM)
        stages, channels = [], STEM
        for index, (count, kernel, stride, wide) in enumerate(STAGES):
            kind = InvertedResidual if index else DepthwiseSeparableConv
            more = (kind(wide, wide, kernel, 1) for _ in range(count - 1))
            stages.append(nn.Sequential(kind(channels, wide, kernel, stride), *more))
            channels = wide
        self.stages = nn.Sequential(*stages)
        for part in self.stages[UNSTRIDED].modules():
            if isinstance(part, nn.Conv2d):
                part.stride = (1, 1)
        self.proj = nn.Linear(channels, WIDTH)

    def maps(self, pixels: Tensor) -> Tensor:
        """(B, 3, 64, 64) → (B, 320, 4, 4)."""
        maps: Tensor = self.stages(self.stem_norm(self.stem(pixels)))
        return maps

    def forward(self, pixels: Tensor) -> Tensor:
        """Tokens row by row."""
        tokens: Tensor = self.proj(self.maps(pixels).flatten(2).transpose(1, 2))
        return tokens


class BatchNormAct2d(nn.BatchNorm2d):
    """A batch-norm and the activation after it: ReLU6, or nothing."""

    def __init__(self, channels: int, *, activate: bool = True) -> None:
        super().__init__(channels, eps=1e-3)
        _leave_out(self, nn.Identity, "drop")
        self.act = nn.ReLU6(inplace=True) if activate else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        activated: Tensor = self.act(super().forward(x))
        return activated


class DepthwiseSeparableConv(nn.Module):
    """One filter per channel, then a 1 × 1 convolution."""

    def __init__(self, channels: int, out: int, kernel: int, stride: int) -> None:
        super().__init__()
        self.conv_dw = _depthwise(channels, kernel, stride)
        self.bn1 = BatchNormAct2d(channels)
        self.conv_pw = nn.Conv2d(channels, out, 1, bias=False)
        self.bn2 = BatchNormAct2d(out, activate=False)
        _leave_out(self, nn.Identity, "aa", "se", "drop_path")

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.bn2(self.conv_pw(self.bn1(self.conv_dw(x))))
        return result


class InvertedResidual(nn.Module):
    """1 × 1 convolution to six times the channels, one filter per channel, 1 × 1 convolution back."""

    def __init__(self, channels: int, out: int, kernel: int, stride: int) -> None:
        super().__init__()
        wide = channels * EXPANSION
        self.has_skip = stride == 1 and channels == out
        self.conv_pw = nn.Conv2d(channels, wide, 1, bias=False)
        self.bn1 = BatchNormAct2d(wide)
        self.conv_dw = _depthwise(wide, kernel, stride)
        self.bn2 = BatchNormAct2d(wide)
        self.conv_pwl = nn.Conv2d(wide, out, 1, bias=False)
        self.bn3 = BatchNormAct2d(out, activate=False)
        _leave_out(self, nn.Identity, "aa", "se", "drop_path")

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.bn3(self.conv_pwl(self.bn2(self.conv_dw(self.bn1(self.conv_pw(x))))))
        return result + x if self.has_skip else result


def _depthwise(channels: int, kernel: int, stride: int) -> nn.Conv2d:
    """Padded like TensorFlow, which for odd kernels is equal padding unless there is a stride."""
    if stride > 1:
        return Conv2dSame(channels, channels, kernel, stride=stride, groups=channels, bias=False)
    return nn.Conv2d(channels, channels, kernel, padding=kernel // 2, groups=channels, bias=False)


class Block(nn.Module):
    """x ← x + Attn(LN₁(x));  x ← x + MLP(LN₂(x)): (B, T, W) → (B, T, W)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=1e-6)
        self.attn = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width, eps=1e-6)
        self.mlp = Mlp(width, 4 * width)
        _leave_out(self, nn.Identity, "ls1", "ls2", "drop_path1", "drop_path2")

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Attention(nn.Module):
    """softmax(QKᵀ/√d) V, all heads at once."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.num_heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        _leave_out(self, nn.Identity, "q_norm", "k_norm", "norm")
        _leave_out(self, _no_dropout, "attn_drop", "proj_drop")

    def forward(self, x: Tensor) -> Tensor:
        count, tokens, width = x.shape
        qkv = self.qkv(x).reshape(count, tokens, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)  # each (B, heads, T, W/heads)
        mixed = F.scaled_dot_product_attention(q, k, v)
        projected: Tensor = self.proj(mixed.transpose(1, 2).reshape(count, tokens, width))
        return projected


class Mlp(nn.Module):
    """W₂ GELU(W₁ x)."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, hidden)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(hidden, width)
        _leave_out(self, nn.Identity, "norm")
        _leave_out(self, _no_dropout, "drop1", "drop2")

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.fc2(self.act(self.fc1(x)))
        return result


def _leave_out(module: nn.Module, kind: Callable[[], nn.Module], *names: str) -> None:
    """Places that timm's networks have and this one leaves empty; the fingerprint of a model counts them."""
    for name in names:
        module.add_module(name, kind())


def _no_dropout() -> nn.Dropout:
    return nn.Dropout(0.0)
