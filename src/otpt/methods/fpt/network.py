"""The side network: a small ViT on small images, into which prompts bring what the frozen ViT has seen.

Before block b its own m prompts P_b attend to the frozen keys and values (K, V) of that block:

    Q = P_b·A (or norm(P_b));   F = softmax(Q_h K_hᵀ/√d) V_h of each head h, joined;   f = dropout(F·B)

The m rows f, of the side network's width, are appended to its tokens for this block and dropped after it. The class
token of the last block is classified.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from otpt.errors import unknown
from otpt.methods.fpt.block import Block, join_heads, split_heads
from otpt.methods.fpt.variants import ROWS, VARIANTS
from otpt.objectives import orthogonality


@dataclass(frozen=True)
class FptSizes:
    """All sizes; :func:`sizes_for` derives them from the frozen ViT.

    Attributes:
        blocks: frozen blocks whose keys and values are used, one block of the side network each.
        size: pixels a side of the side network's images; patch: of its patches.
        width, heads, hidden: of the side network.
        prompts: m; prompt_width: of P_b. Narrower than the frozen ViT they are projected, else only normed.
        frozen_width, frozen_heads: of the frozen ViT.
    """

    classes: int
    blocks: tuple[int, ...]
    size: int
    width: int
    heads: int
    hidden: int
    prompt_width: int
    frozen_width: int
    frozen_heads: int
    prompts: int = 16
    patch: int = 16
    dropout: float = 0.5


def sizes_for(variant: str, *, classes: int, frozen_width: int, frozen_heads: int, depth: int) -> FptSizes:
    """Published sizes for ViT-B (width 768, 12 heads, 12 blocks): side width 96, 12 heads, hidden 384."""
    if variant not in VARIANTS:
        raise unknown("variant of FPT", variant, VARIANTS)
    width = frozen_width // 8
    plus = variant == "fpt-plus"
    return FptSizes(
        classes=classes,
        blocks=tuple(range(depth // 2 if plus else 0, depth)),
        size=128 if plus else 224,
        width=width,
        heads=frozen_heads,
        hidden=4 * width,
        prompt_width=frozen_width if plus else width,
        frozen_width=frozen_width,
        frozen_heads=frozen_heads,
    )


class Fusion(nn.Module):
    """Prompts of one block → rows (B, m, width) for the side network."""

    def __init__(self, sizes: FptSizes) -> None:
        super().__init__()
        self.num_heads = sizes.frozen_heads
        self.prompts = nn.Parameter(0.02 * torch.randn(sizes.prompts, sizes.prompt_width))
        projected = sizes.prompt_width != sizes.frozen_width
        self.enter = (
            nn.Linear(sizes.prompt_width, sizes.frozen_width) if projected else nn.LayerNorm(sizes.frozen_width)
        )
        self.leave = nn.Linear(sizes.frozen_width, sizes.width)
        self.dropout = nn.Dropout(sizes.dropout)

    def forward(self, keys_values: Tensor) -> Tensor:
        """``keys_values``: (B, 2, H, k, d) of the frozen block."""
        keys, values = keys_values.unbind(dim=1)
        queries = split_heads(self.enter(self.prompts), self.num_heads).expand(len(keys), -1, -1, -1)
        fused = join_heads(F.scaled_dot_product_attention(queries, keys, values))
        rows: Tensor = self.dropout(self.leave(fused))
        return rows


class FptNetwork(nn.Module):
    """The side network with its prompts and its classifier: all that is trained."""

    def __init__(self, sizes: FptSizes) -> None:
        super().__init__()
        self.sizes = sizes
        tokens = 1 + (sizes.size // sizes.patch) ** 2
        self.patches = nn.Conv2d(3, sizes.width, sizes.patch, stride=sizes.patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, sizes.width))
        self.positions = nn.Parameter(0.02 * torch.randn(1, tokens, sizes.width))
        self.blocks = nn.ModuleList(Block(sizes.width, sizes.heads, sizes.hidden) for _ in sizes.blocks)
        self.fusions = nn.ModuleList(Fusion(sizes) for _ in sizes.blocks)
        self.norm = nn.LayerNorm(sizes.width)
        self.classifier = nn.Linear(sizes.width, sizes.classes)

    def forward(self, pixels: Tensor, keys_values: Tensor) -> Tensor:
        """Logits (B, C) of small images (B, 3, S, S) and frozen keys and values (B, L, 2, H, k, d)."""
        patches = self.patches(pixels).flatten(2).mT
        x = torch.cat([self.class_token.expand(len(pixels), -1, -1), patches], dim=1) + self.positions
        for i, (block, fusion) in enumerate(zip(self.blocks, self.fusions, strict=True)):
            x = block(torch.cat([x, fusion(keys_values[:, i])], dim=1))[:, : x.shape[1]]
        logits: Tensor = self.classifier(self.norm(x[:, 0]))
        return logits

    def orthogonality(self, rows: str = "classifier") -> Tensor:
        """L_O of the unit rows of the classifier (C, width); or the mean of L_O of each block's unit prompts."""
        if rows not in ROWS:
            raise unknown("rows to make orthogonal", rows, ROWS)
        if rows == "classifier":
            return orthogonality(F.normalize(self.classifier.weight, dim=-1))
        prompts = torch.stack([fusion.prompts for fusion in self.fusions])  # type: ignore[misc]
        return orthogonality(F.normalize(prompts, dim=-1)).mean()
