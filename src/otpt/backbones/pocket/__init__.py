"""The embedded model ``pocket``: a small CLIP for emoji, in plain torch.

Image tower: 64 × 64 pixels → the seven stages of EfficientNet-Lite0, the sixth without its stride → 4 × 4 tokens of
width 192 → two transformer blocks → mean over the tokens → projection. No class token. Text tower: three layers of a
CLIP text transformer. Weights have the names that open_clip and timm give them, so that whatever reads the parts of
their towers works; neither is imported, which would take seconds.

Weights are stored as float16, and of CLIP's 49,408 token rows only those that were trained; all other rows are their
mean, so that an unknown word carries no information.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from functools import partial
from importlib import resources
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load
from torch import Tensor, nn

from otpt.backbones.causal import QuickGELU
from otpt.backbones.clip_tokenizer import ClipTokenizer
from otpt.backbones.fast import Conv2dSame
from otpt.backbones.sources import Parts, choose_gelu

CONFIG_FILE = "open_clip_config.json"
WEIGHTS_FILE = "pocket.safetensors"

SIZE = 64  # pixels
WIDTH = 192
DEPTH, HEADS = 2, 3
GRID = 4  # tokens a side
STEM = 32  # channels
STAGES = (
    (1, 3, 1, 16),
    (2, 3, 2, 24),
    (2, 5, 2, 40),
    (3, 3, 2, 80),
    (3, 5, 1, 112),
    (4, 5, 2, 192),
    (1, 3, 1, 320),
)
"""EfficientNet-Lite0: blocks, kernel, stride of the first block, channels."""
EXPANSION = 6  # of every stage but the first
UNSTRIDED = 5  # at 64 pixels the usual stride of this stage would leave 2 × 2 places


def load_pocket(name: str = "", quick_gelu: bool | None = None) -> Parts:
    """The embedded model as parts of a backbone."""
    whole, state = load_pocket_state()
    config = whole["model_cfg"]
    quick = choose_gelu(quick_gelu, False, None, "pocket")
    with torch.device("meta"):
        model = PocketClip(**config["text_cfg"], embed_dim=config["embed_dim"], quick_gelu=quick)
    model.load_state_dict(state, strict=True, assign=True)
    return Parts(model, ClipTokenizer(), whole["preprocess_cfg"], "pocket")


def load_pocket_state() -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Configuration (``model_cfg``, ``preprocess_cfg``) and whole state dict in float32."""
    folder = resources.files(__package__)
    config: dict[str, Any] = json.loads(folder.joinpath(CONFIG_FILE).read_text(encoding="utf-8"))
    stored = load(folder.joinpath(WEIGHTS_FILE).read_bytes())
    state = {name: value.float() if value.is_floating_point() else value for name, value in stored.items()}
    rows, ids = state.pop("token_embedding.rows"), state.pop("token_embedding.row_ids")  # (R, W) trained, (R,) ids
    table = rows.mean(0).repeat(config["model_cfg"]["text_cfg"]["vocab_size"], 1)
    table[ids.long()] = rows
    return config, state | {"token_embedding.weight": table}


class PocketClip(nn.Module):
    """The model, with open_clip's interface."""

    def __init__(
        self,
        *,
        embed_dim: int,
        context_length: int,
        vocab_size: int,
        width: int,
        heads: int,
        layers: int,
        quick_gelu: bool,
    ) -> None:
        super().__init__()
        self.visual = ImageEncoder(embed_dim)
        self.transformer = nn.Module()
        self.transformer.resblocks = nn.ModuleList(
            TextBlock(width, heads, quick_gelu=quick_gelu) for _ in range(layers)
        )
        self.context_length = context_length
        # initialising it on the device "meta" would import torch's compiler, which takes seconds
        self.token_embedding = nn.Embedding.from_pretrained(torch.empty(vocab_size, width), freeze=False)
        self.positional_embedding = nn.Parameter(torch.empty(context_length, width))
        self.ln_final = nn.LayerNorm(width)
        self.text_projection = nn.Parameter(torch.empty(width, embed_dim))
        causal = torch.full((context_length, context_length), float("-inf"), device="cpu").triu(1)
        self.register_buffer("attn_mask", causal, persistent=False)
        self.logit_scale = nn.Parameter(torch.empty(()))

    def encode_text(self, ids: Tensor) -> Tensor:
        """(N, L) token ids → (N, D), read at the end token, which has the largest id."""
        x = self.token_embedding(ids) + self.positional_embedding
        blocks: Any = self.transformer.resblocks
        for block in blocks:
            x = block(x, self.attn_mask)
        x = self.ln_final(x)
        features: Tensor = x[torch.arange(len(x), device=x.device), ids.argmax(dim=-1)] @ self.text_projection
        return features


class TextBlock(nn.Module):
    """x ← x + Attn(LN₁(x));  x ← x + MLP(LN₂(x)): (N, L, W) → (N, L, W)."""

    def __init__(self, width: int, heads: int, *, quick_gelu: bool) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(width)
        self.attn = nn.MultiheadAttention(width, heads, batch_first=True)
        self.ln_2 = nn.LayerNorm(width)
        gelu = QuickGELU() if quick_gelu else nn.GELU()
        up, down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.mlp = nn.Sequential(OrderedDict(c_fc=up, gelu=gelu, c_proj=down))

    def forward(self, x: Tensor, attn_mask: Tensor) -> Tensor:
        normed = self.ln_1(x)
        x = x + self.attn(normed, normed, normed, need_weights=False, attn_mask=attn_mask)[0]
        return x + self.mlp(self.ln_2(x))


class ImageEncoder(nn.Sequential):
    """The trunk and a projection: (N, 3, 64, 64) → (N, D)."""

    def __init__(self, embed_dim: int) -> None:
        head = nn.Sequential(OrderedDict(proj=nn.Linear(WIDTH, embed_dim)))
        super().__init__(OrderedDict(trunk=HybridVisionTransformer(), head=head))
        self.image_size = SIZE


class HybridVisionTransformer(nn.Module):
    """Convolutions, then a short vision transformer: (B, 3, 64, 64) → (B, W).

    The empty parts are those of timm's VisionTransformer that prompts for both towers (MaPLe) pass.
    """

    def __init__(self) -> None:
        super().__init__()
        self.pos_embed = nn.Parameter(torch.zeros(1, GRID * GRID, WIDTH))
        self.patch_embed = ConvolutionalTokens()
        self.patch_drop, self.norm_pre, self.norm = nn.Identity(), nn.Identity(), nn.Identity()
        self.blocks = nn.Sequential(*(VisionBlock(WIDTH, HEADS) for _ in range(DEPTH)))
        self.fc_norm = nn.LayerNorm(WIDTH, eps=1e-6)

    def forward(self, pixels: Tensor) -> Tensor:
        return self.forward_head(self.blocks(self._pos_embed(self.patch_embed(pixels))))

    def forward_head(self, tokens: Tensor) -> Tensor:
        """(B, T, W) → (B, W)."""
        features: Tensor = self.fc_norm(tokens.mean(dim=1))
        return features

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
            make = partial(InvertedResidual, out=wide, kernel=kernel, expansion=EXPANSION if index else 1)
            more = (make(wide, stride=1) for _ in range(count - 1))
            stages.append(nn.Sequential(make(channels, stride=stride), *more))
            channels = wide
        self.stages = nn.Sequential(*stages)
        for part in self.stages[UNSTRIDED].modules():
            if isinstance(part, nn.Conv2d):
                part.stride = (1, 1)
        self.proj = nn.Linear(channels, WIDTH)

    def forward(self, pixels: Tensor) -> Tensor:
        """Tokens row by row."""
        maps = self.stages(self.stem_norm(self.stem(pixels)))  # (B, 320, 4, 4)
        tokens: Tensor = self.proj(maps.flatten(2).transpose(1, 2))
        return tokens


class BatchNormAct2d(nn.BatchNorm2d):
    """A batch-norm and the activation after it: ReLU6, or nothing."""

    def __init__(self, channels: int, *, activate: bool = True) -> None:
        super().__init__(channels, eps=1e-3)
        self.act = nn.ReLU6(inplace=True) if activate else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        activated: Tensor = self.act(super().forward(x))
        return activated


class InvertedResidual(nn.Sequential):
    """1 × 1 convolution to more channels (if ``expansion`` > 1), one filter per channel, 1 × 1 convolution back."""

    def __init__(self, channels: int, out: int, kernel: int, stride: int, expansion: int) -> None:
        wide = channels * expansion
        # padded like TensorFlow, which for odd kernels is equal padding unless there is a stride
        kind = partial(Conv2dSame, stride=stride) if stride > 1 else partial(nn.Conv2d, padding=kernel // 2)
        depthwise = kind(wide, wide, kernel, groups=wide, bias=False)
        parts: dict[str, nn.Module] = {"conv_dw": depthwise, "bn1": BatchNormAct2d(wide)}
        if expansion > 1:
            up = nn.Conv2d(channels, wide, 1, bias=False)
            parts = {"conv_pw": up, "bn1": BatchNormAct2d(wide), "conv_dw": depthwise, "bn2": BatchNormAct2d(wide)}
        last = ("conv_pwl", "bn3") if expansion > 1 else ("conv_pw", "bn2")
        parts |= {last[0]: nn.Conv2d(wide, out, 1, bias=False), last[1]: BatchNormAct2d(out, activate=False)}
        super().__init__(OrderedDict(parts))
        self.has_skip = stride == 1 and channels == out

    def forward(self, x: Tensor) -> Tensor:
        result = x
        for part in self:
            result = part(result)
        return result + x if self.has_skip else result


class VisionBlock(nn.Module):
    """x ← x + Attn(LN₁(x));  x ← x + MLP(LN₂(x)): (B, T, W) → (B, T, W)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=1e-6)
        self.attn = VisionAttention(width, heads)
        self.norm2 = nn.LayerNorm(width, eps=1e-6)
        up, down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.mlp = nn.Sequential(OrderedDict(fc1=up, act=nn.GELU(), fc2=down))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class VisionAttention(nn.Module):
    """softmax(QKᵀ/√d) V, all heads at once."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.num_heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        count, tokens, width = x.shape
        qkv = self.qkv(x).reshape(count, tokens, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)  # each (B, heads, T, W/heads)
        mixed = F.scaled_dot_product_attention(q, k, v)
        projected: Tensor = self.proj(mixed.transpose(1, 2).reshape(count, tokens, width))
        return projected
