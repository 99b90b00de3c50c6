"""``pocket`` in plain torch: what open_clip and timm build from its configuration, without importing them.

The names of the weights and the order of the operations are theirs, so that features agree to the last bit
(``tests/backbones/test_pocket.py``).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from otpt.backbones.pocket.trunk import SIZE, WIDTH, HybridVisionTransformer
from otpt.backbones.towers.activations import QuickGELU

__all__ = ["PocketClip", "build_pocket"]


def build_pocket(config: dict[str, Any], state: dict[str, Tensor], *, quick_gelu: bool = False) -> PocketClip:
    """The model with these weights, in evaluation mode and without gradients; ``config`` is its ``model_cfg``.

    The tensors of ``state`` become the weights; nothing is initialised or copied.
    """
    with torch.device("meta"):
        model = PocketClip(**config["text_cfg"], embed_dim=config["embed_dim"], quick_gelu=quick_gelu)
    model.load_state_dict(state, strict=True, assign=True)
    return model.eval().requires_grad_(False)


class PocketClip(nn.Module):
    """open_clip's ``CLIP`` with the image trunk of ``pocket``."""

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
        self.transformer = Transformer(width, heads, layers, quick_gelu=quick_gelu)
        self.context_length = context_length
        self.text_pool_type = "argmax"  # CLIP's end token has the largest id
        # initialising it on the device "meta" would import torch's compiler, which takes seconds
        self.token_embedding = nn.Embedding.from_pretrained(torch.empty(vocab_size, width), freeze=False)
        self.positional_embedding = nn.Parameter(torch.empty(context_length, width))
        self.ln_final = nn.LayerNorm(width)
        self.text_projection = nn.Parameter(torch.empty(width, embed_dim))
        causal = torch.full((context_length, context_length), float("-inf"), device="cpu").triu(1)
        self.register_buffer("attn_mask", causal, persistent=False)
        self.logit_scale = nn.Parameter(torch.empty(()))

    def encode_image(self, pixels: Tensor, normalize: bool = False) -> Tensor:
        """(N, 3, 64, 64) → (N, D)."""
        features: Tensor = self.visual(pixels)
        return F.normalize(features, dim=-1) if normalize else features

    def encode_text(self, ids: Tensor, normalize: bool = False) -> Tensor:
        """(N, L) token ids → (N, D)."""
        x = self.token_embedding(ids) + self.positional_embedding
        x = self.ln_final(self.transformer(x, attn_mask=self.attn_mask))
        features: Tensor = x[torch.arange(len(x), device=x.device), ids.argmax(dim=-1)] @ self.text_projection
        return F.normalize(features, dim=-1) if normalize else features


class ImageEncoder(nn.Module):
    """The trunk and a projection: (N, 3, 64, 64) → (N, D)."""

    def __init__(self, embed_dim: int) -> None:
        super().__init__()
        self.image_size = (SIZE, SIZE)
        self.trunk = HybridVisionTransformer()
        self.head = nn.Sequential()
        self.head.add_module("drop", nn.Dropout(0.0))
        self.head.add_module("proj", nn.Linear(WIDTH, embed_dim))

    def forward(self, pixels: Tensor) -> Tensor:
        features: Tensor = self.head(self.trunk(pixels))
        return features


class Transformer(nn.Module):
    """The blocks of the text tower."""

    def __init__(self, width: int, heads: int, layers: int, *, quick_gelu: bool) -> None:
        super().__init__()
        blocks = (ResidualAttentionBlock(width, heads, quick_gelu=quick_gelu) for _ in range(layers))
        self.resblocks = nn.ModuleList(blocks)

    def forward(self, x: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        for block in self.resblocks:
            x = block(x, attn_mask=attn_mask)
        return x


class ResidualAttentionBlock(nn.Module):
    """x ← x + Attn(LN₁(x));  x ← x + MLP(LN₂(x)): (N, L, W) → (N, L, W)."""

    def __init__(self, width: int, heads: int, *, quick_gelu: bool) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(width)
        self.attn = nn.MultiheadAttention(width, heads, batch_first=True)
        self.ls_1 = nn.Identity()  # open_clip's place for LayerScale; the fingerprint counts it
        self.ln_2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential()
        self.mlp.add_module("c_fc", nn.Linear(width, 4 * width))
        self.mlp.add_module("gelu", QuickGELU() if quick_gelu else nn.GELU())
        self.mlp.add_module("c_proj", nn.Linear(4 * width, width))
        self.ls_2 = nn.Identity()

    def forward(self, x: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        normed = self.ln_1(x)
        x = x + self.attn(normed, normed, normed, need_weights=False, attn_mask=attn_mask)[0]
        return x + self.mlp(self.ln_2(x))
