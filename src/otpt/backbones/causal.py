"""The CLIP text tower in canonical form: a causal pre-norm transformer, read at the end token.

For token embeddings x (n, W) of a text whose end token is at position e, with positions p and layers ℓ = 1 … N:

    h ← x + p
    h ← h + Attn(LN₁(h));  h ← h + W₂ φ(W₁ LN₂(h))          (Attn causal, φ QuickGELU, GELU or tanh-GELU)
    text feature = LN(h_e) · projection (+ bias)

:func:`read_causal_tower` converts a model's tower to this form and **compares** it with the model's own text encoder on
a few prompts; towers that differ (LayerScale, no causal mask, other pooling …) have no canonical form.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_TOLERANCE = 1e-4
"""Relative difference allowed between canonical form and model: float32 rounding of deep towers, not more."""


class _QuickGELU(torch.autograd.Function):
    """x·σ(1.702x), saving only x for the backward pass (autograd of the formula saves three times as much)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * torch.sigmoid(1.702 * x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        gate = torch.sigmoid(1.702 * x)
        return gradients[0] * (gate + 1.702 * x * gate * (1 - gate))


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "quick_gelu": _QuickGELU.apply,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
}


@dataclass(frozen=True)
class Norm:
    """A LayerNorm: ``weight`` (W,), ``bias`` (W,), ``eps``."""

    weight: Tensor
    bias: Tensor
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


@dataclass(frozen=True)
class CausalLayer:
    """One residual block; matrices act from the left (``F.linear``)."""

    norm1: Norm
    qkv_weight: Tensor  # (3W, W), rows in the order q, k, v
    qkv_bias: Tensor  # (3W,)
    out_weight: Tensor  # (W, W)
    out_bias: Tensor  # (W,)
    norm2: Norm
    fc_weight: Tensor  # (4W, W)
    fc_bias: Tensor  # (4W,)
    proj_weight: Tensor  # (W, 4W)
    proj_bias: Tensor  # (W,)


@dataclass(frozen=True)
class CausalTower:
    """A text tower in canonical form (see the module's docstring); all tensors without gradient."""

    heads: int
    positional: Tensor  # (L, W)
    layers: tuple[CausalLayer, ...]
    final_norm: Norm
    projection: Tensor | None  # (W, D), right-multiplied
    projection_bias: Tensor | None  # (D,)
    activation: str  # "quick_gelu" | "gelu" | "gelu_tanh"
    end_token: int | None  # id whose position is read; None: the largest id of a text, as in CLIP

    def ends(self, ids: Tensor) -> Tensor:
        """The position that is read in each text, that of its first end token: (N, L) → (N,)."""
        return ids.argmax(dim=-1) if self.end_token is None else (ids == self.end_token).int().argmax(dim=-1)


def encode_causal(tower: CausalTower, embeddings: Tensor, ends: Tensor) -> Tensor:
    """The formula above, literally: embeddings (N, n, W), end positions (N,) → features (N, D), not normalised."""
    count, length, width = embeddings.shape
    h = embeddings + tower.positional[:length]
    for layer in tower.layers:
        qkv = F.linear(layer.norm1(h), layer.qkv_weight, layer.qkv_bias)
        q, k, v = qkv.view(count, length, 3, tower.heads, -1).permute(2, 0, 3, 1, 4)  # each (N, heads, n, W/heads)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        h = h + F.linear(mixed.transpose(1, 2).reshape(count, length, width), layer.out_weight, layer.out_bias)
        hidden = ACTIVATIONS[tower.activation](F.linear(layer.norm2(h), layer.fc_weight, layer.fc_bias))
        h = h + F.linear(hidden, layer.proj_weight, layer.proj_bias)
    feature = tower.final_norm(h[torch.arange(count, device=h.device), ends])
    if tower.projection is not None:
        feature = feature @ tower.projection
    return feature if tower.projection_bias is None else feature + tower.projection_bias


def read_causal_tower(text: Any, ids: Tensor, encode_text: Callable[[Tensor], Tensor]) -> CausalTower | None:
    """The canonical form of an open_clip text tower, or ``None`` for other kinds.

    ``text`` holds ``transformer.resblocks``, ``token_embedding`` … (a ``TextTransformer``, or a ``CLIP`` itself);
    ``ids`` (N, L) are a few tokenised prompts on which the form must agree with ``encode_text``.
    """
    try:
        tower = _read(text)
        with torch.no_grad():
            expected = encode_text(ids)
            ends = tower.ends(ids)
            found = encode_causal(tower, text.token_embedding(ids[:, : int(ends.max()) + 1]), ends)
    except (AttributeError, TypeError, RuntimeError):
        return None  # a missing part, or shapes that do not fit the canonical form
    if found.shape != expected.shape:
        return None
    difference = (found - expected).abs().max()
    return tower if bool(difference <= _TOLERANCE * expected.abs().max()) else None


def _read(text: Any) -> CausalTower:
    blocks = list(text.transformer.resblocks)
    projection = text.text_projection
    linear = isinstance(projection, nn.Linear)
    pool = getattr(text, "text_pool_type", getattr(text, "pool_type", ""))
    return CausalTower(
        heads=int(blocks[0].attn.num_heads),
        positional=text.positional_embedding.detach(),
        layers=tuple(_read_layer(block) for block in blocks),
        final_norm=_read_norm(text.ln_final),
        projection=None if projection is None else (projection.weight.T if linear else projection).detach(),
        projection_bias=projection.bias.detach() if linear and projection.bias is not None else None,
        activation=_activation_name(blocks[0].mlp.gelu),
        end_token=getattr(text, "text_eos_id", getattr(text, "eos_id", None)) if pool == "eos" else None,
    )


def _activation_name(module: nn.Module) -> str:
    if type(module).__name__ == "QuickGELU":
        return "quick_gelu"
    if isinstance(module, nn.GELU):
        return "gelu_tanh" if module.approximate == "tanh" else "gelu"
    raise TypeError(f"activation {type(module).__name__} has no canonical name")


def _read_layer(block: Any) -> CausalLayer:
    return CausalLayer(
        norm1=_read_norm(block.ln_1),
        qkv_weight=block.attn.in_proj_weight.detach(),
        qkv_bias=block.attn.in_proj_bias.detach(),
        out_weight=block.attn.out_proj.weight.detach(),
        out_bias=block.attn.out_proj.bias.detach(),
        norm2=_read_norm(block.ln_2),
        fc_weight=block.mlp.c_fc.weight.detach(),
        fc_bias=block.mlp.c_fc.bias.detach(),
        proj_weight=block.mlp.c_proj.weight.detach(),
        proj_bias=block.mlp.c_proj.bias.detach(),
    )


def _read_norm(norm: nn.LayerNorm) -> Norm:
    return Norm(norm.weight.detach(), norm.bias.detach(), norm.eps)
