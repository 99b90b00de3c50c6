"""Structural types of the modules of open_clip and timm, whose packages have no annotations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias, runtime_checkable

from torch import Tensor, nn

Tokenizer: TypeAlias = Callable[..., object]
"""Tokenizer of open_clip or transformers, or any function from texts to token ids; see
:func:`otpt.backbones.text_tower.tokenize`."""


@runtime_checkable
class ClipModule(Protocol):
    """Module with open_clip's interface.

    Attributes:
        visual: image tower, pixels (N, 3, S, S) → features (N, D).
        logit_scale: logarithm of the logit scale.
    """

    visual: nn.Module
    logit_scale: Tensor

    def encode_text(self, ids: Tensor) -> Tensor:
        """Return text features (N, D) of token ids (N, L)."""


class Mlp(Protocol):
    """MLP of a transformer block of open_clip."""

    c_fc: nn.Linear
    gelu: nn.Module
    c_proj: nn.Linear


class Block(Protocol):
    """Transformer block of open_clip."""

    ln_1: nn.Module
    attn: nn.MultiheadAttention
    ln_2: nn.Module
    mlp: Mlp


class Transformer(Protocol):
    """Transformer of open_clip."""

    resblocks: nn.ModuleList
    batch_first: bool


class ClipText(Protocol):
    """Causal text tower of open_clip."""

    transformer: Transformer
    token_embedding: nn.Embedding
    positional_embedding: Tensor
    ln_final: nn.Module
    text_projection: nn.Linear | Tensor | None


class ClipVision(Protocol):
    """``VisionTransformer`` of open_clip."""

    transformer: Transformer
    positional_embedding: Tensor
    ln_pre: nn.Module
    attn_pool: nn.Module | None
    pool_type: str
    output_tokens: bool
    proj: Tensor | None

    def _embeds(self, x: Tensor) -> Tensor: ...

    def _pool(self, x: Tensor) -> tuple[Tensor, Tensor]: ...


class AttentionPool(Protocol):
    """Attention pooling of open_clip's ResNets."""

    num_heads: int
    positional_embedding: Tensor
    q_proj: nn.Linear
    k_proj: nn.Linear
    v_proj: nn.Linear
    c_proj: nn.Linear


class TimmTrunk(Protocol):
    """Vision transformer of timm."""

    patch_embed: nn.Module
    patch_drop: nn.Module
    norm_pre: nn.Module
    blocks: nn.Sequential
    norm: nn.Module

    def _pos_embed(self, x: Tensor) -> Tensor: ...

    def forward_head(self, x: Tensor) -> Tensor:
        """Return the pooled feature."""
