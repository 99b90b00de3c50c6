"""Canonical form of CLIP text towers: a causal pre-norm transformer with the feature of the end token.

For token embeddings x (n, W) of a text with end token at position e, positional embeddings p and layers ℓ = 1 … N:

    h ← x + p
    h ← h + Attn(LN₁(h));  h ← h + W₂ φ(W₁ LN₂(h))          (Attn causal, φ QuickGELU, GELU or tanh-GELU)
    text feature = LN(h_e) · projection (+ bias)

:func:`read_causal_tower` converts a model's text tower to this form and compares the two on a few prompts. Towers that
differ (LayerScale, no causal mask, other pooling …) have no canonical form.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx

from otpt.backbones.modules import Block, ClipText

_TOLERANCE = 1e-4
"""Maximum relative difference between canonical form and model: float32 rounding of deep towers."""


class _Saved(Protocol):
    """Context of a backward pass."""

    saved_tensors: tuple[Tensor, ...]


class _QuickGELU(torch.autograd.Function):
    """x·σ(1.702x), saving only x for the backward pass, a third of what autograd saves for the formula."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * torch.sigmoid(1.702 * x)

    @staticmethod
    def backward(ctx: _Saved, *gradients: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        gate = torch.sigmoid(1.702 * x)
        return gradients[0] * (gate + 1.702 * x * gate * (1 - gate))


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "quick_gelu": _QuickGELU.apply,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
}


@dataclass(frozen=True)
class CausalTower:
    """Text tower in canonical form (see the module docstring); no tensor requires a gradient."""

    heads: int
    positional: Tensor  # (L, W)
    layers: tuple[Block, ...]  # modules of the model
    final_norm: nn.Module
    projection: Tensor | None  # (W, D), right-multiplied
    projection_bias: Tensor | None  # (D,)
    activation: str  # "quick_gelu" | "gelu" | "gelu_tanh"
    end_token: int | None  # id of the end token; None: the largest id of a text, as in CLIP

    def ends(self, ids: Tensor) -> Tensor:
        """Return the position of the first end token in each text: (N, L) → (N,)."""
        return ids.argmax(dim=-1) if self.end_token is None else (ids == self.end_token).int().argmax(dim=-1)

    def after_attention(self, layer: Block, x: Tensor, mixed: Tensor) -> Tensor:
        """Return a layer's output (…, W) from its input (…, W) and its attention values (…, W)."""
        x = x + layer.attn.out_proj(mixed)
        output: Tensor = x + layer.mlp.c_proj(ACTIVATIONS[self.activation](layer.mlp.c_fc(layer.ln_2(x))))
        return output

    def features(self, ends: Tensor) -> Tensor:
        """Return unnormalised features (…, D) from the last layer's output at the end tokens (…, W)."""
        feature: Tensor = self.final_norm(ends)
        if self.projection is not None:
            feature = feature @ self.projection
        return feature if self.projection_bias is None else feature + self.projection_bias


def encode_causal(tower: CausalTower, embeddings: Tensor, ends: Tensor) -> Tensor:
    """Return unnormalised features (N, D) of embeddings (N, n, W) with end positions (N,), by the formula above."""
    count, length, width = embeddings.shape
    h = embeddings + tower.positional[:length]
    for layer in tower.layers:
        qkv = F.linear(layer.ln_1(h), layer.attn.in_proj_weight, layer.attn.in_proj_bias)
        q, k, v = qkv.view(count, length, 3, tower.heads, -1).permute(2, 0, 3, 1, 4)  # each (N, heads, n, W/heads)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        h = tower.after_attention(layer, h, mixed.transpose(1, 2).reshape(count, length, width))
    return tower.features(h[torch.arange(count, device=h.device), ends])


def read_causal_tower(text: nn.Module, ids: Tensor, encode_text: Callable[[Tensor], Tensor]) -> CausalTower | None:
    """Return the canonical form of an open_clip text tower, or None for other kinds of towers.

    Args:
        text: module with ``transformer.resblocks``, ``token_embedding`` …: a ``TextTransformer`` or a ``CLIP``.
        ids: (N, L), tokenised prompts on which the canonical form is compared with ``encode_text``.
        encode_text: text encoder of the model, (N, L) → (N, D).
    """
    try:
        tower = _canonical(text)
        with torch.no_grad():
            expected = encode_text(ids)
            ends = tower.ends(ids)
            embeddings = cast(ClipText, text).token_embedding(ids[:, : int(ends.max()) + 1])
            features = encode_causal(tower, embeddings, ends)
    except (AttributeError, KeyError, TypeError, RuntimeError):
        return None  # a missing module, another activation, or incompatible shapes
    if features.shape != expected.shape:
        return None
    difference = (features - expected).abs().max()
    return tower if bool(difference <= _TOLERANCE * expected.abs().max()) else None


def _canonical(module: nn.Module) -> CausalTower:
    """Return the canonical form of a text tower; raise ``AttributeError`` or ``KeyError`` if it has none."""
    text = cast(ClipText, module)
    blocks = tuple(cast(Block, block) for block in text.transformer.resblocks)
    gelu = blocks[0].mlp.gelu
    tanh = getattr(gelu, "approximate", "") == "tanh"
    activations = {"QuickGELU": "quick_gelu", "GELU": "gelu_tanh" if tanh else "gelu"}
    projection: Tensor | None = None
    bias: Tensor | None = None
    if isinstance(text.text_projection, nn.Linear):
        projection, bias = text.text_projection.weight.T, text.text_projection.bias
    else:
        projection = text.text_projection
    pool = getattr(text, "text_pool_type", getattr(text, "pool_type", ""))
    return CausalTower(
        heads=int(blocks[0].attn.num_heads),
        positional=text.positional_embedding.detach(),
        layers=blocks,
        final_norm=text.ln_final,
        projection=None if projection is None else projection.detach(),
        projection_bias=None if bias is None else bias.detach(),
        activation=activations[type(gelu).__name__],
        end_token=getattr(text, "text_eos_id", getattr(text, "eos_id", None)) if pool == "eos" else None,
    )
