"""open_clip's vision transformer with less work for the same features.

- attention in one fused call (scaled dot product) on one stacked q, k, v product;
- QuickGELU(x) = x·σ(1.702x) = SiLU(1.702x)/1.702: both factors go into the weights around it, and SiLU runs
  in place;
- weights laid out once for the processor (``kernels.Linear``);
- the last block computes only what is read from it, the class token: keys and values of all tokens,
  everything else of one.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch.nn.functional as F
from torch import Tensor, nn

from otpt.backbones.imported import imported_class, is_instance
from otpt.backbones.tuned.kernels import Linear

if TYPE_CHECKING:
    from open_clip.transformer import VisionTransformer


def tune_vit(visual: VisionTransformer, chunk: int, *, pack: bool) -> nn.Module:
    """A tower that shares what it can with ``visual``, for chunks of ``chunk`` views."""
    blocks = list(visual.transformer.resblocks)
    if not visual.transformer.batch_first or not all(_is_plain(block) for block in blocks):
        return visual
    tokens = visual.positional_embedding.shape[0]
    reads_class_token = visual.attn_pool is None and visual.pool_type == "tok" and not visual.output_tokens
    tower, transformer = _shallow(visual), _shallow(visual.transformer)
    transformer.resblocks = nn.ModuleList(
        _Block(block, chunk, tokens, only_first=reads_class_token and block is blocks[-1], pack=pack)
        for block in blocks
    )
    tower.transformer = transformer
    return tower


def _is_plain(block: Any) -> bool:
    return bool(
        type(block) is imported_class("open_clip.transformer", "ResidualAttentionBlock")
        and isinstance(block.ls_1, nn.Identity)
        and isinstance(block.ls_2, nn.Identity)
        and not hasattr(block, "ln_1_kv")
        and block.attn.in_proj_weight is not None
        and block.attn.batch_first
    )


def _shallow(module: Any) -> Any:
    """The same module with a list of sub-modules of its own; weights are shared."""
    twin = copy.copy(module)
    twin._modules = dict(module._modules)
    return twin


class _Block(nn.Module):
    """x (n, tokens, W) → (n, tokens, W), or (n, 1, W) when only the first token is wanted."""

    def __init__(self, block: Any, chunk: int, tokens: int, *, only_first: bool, pack: bool) -> None:
        super().__init__()
        attention, mlp = block.attn, block.mlp
        width, all_rows, rows = attention.embed_dim, chunk * tokens, chunk if only_first else chunk * tokens
        self.heads, self.only_first = attention.num_heads, only_first
        self.norm1, self.norm2 = block.ln_1, block.ln_2
        weight, bias = attention.in_proj_weight.detach(), attention.in_proj_bias.detach()
        if only_first:
            self.query = Linear(weight[:width], bias[:width], rows, pack=pack)
            self.key_value = Linear(weight[width:], bias[width:], all_rows, pack=pack)
        else:
            self.qkv = Linear(weight, bias, rows, pack=pack)
        self.out = Linear(attention.out_proj.weight, attention.out_proj.bias, rows, pack=pack)
        self.activation, scale = mlp.gelu, 1.0
        if is_instance(mlp.gelu, "open_clip.transformer", "QuickGELU"):
            self.activation, scale = nn.SiLU(inplace=True), 1.702
        self.up = Linear(mlp.c_fc.weight * scale, mlp.c_fc.bias * scale, rows, pack=pack)
        self.down = Linear(mlp.c_proj.weight / scale, mlp.c_proj.bias, rows, pack=pack)

    def forward(self, x: Tensor, attn_mask: None = None) -> Tensor:
        count, tokens, width = x.shape
        normed = self.norm1(x)
        if self.only_first:
            x, wanted = x[:, :1], 1
            q = self.query(normed[:, :1].contiguous()).view(count, 1, self.heads, -1).transpose(1, 2)
            k, v = self.key_value(normed).view(count, tokens, 2, self.heads, -1).permute(2, 0, 3, 1, 4)
        else:
            wanted = tokens
            q, k, v = self.qkv(normed).view(count, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v)  # (n, heads, wanted, W/heads)
        x = x + self.out(mixed.transpose(1, 2).reshape(count, wanted, width))
        return x + self.down(self.activation(self.up(self.norm2(x))))
