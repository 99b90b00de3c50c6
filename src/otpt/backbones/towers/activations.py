"""Activations of CLIP text towers, by the names that :class:`otpt.backbones.CausalTower` uses."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class _QuickGELU(torch.autograd.Function):
    """x·σ(1.702x), keeping only x for the backward pass (autograd of the formula keeps three times as much)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * torch.sigmoid(1.702 * x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        gate = torch.sigmoid(1.702 * x)
        return gradients[0] * (gate + 1.702 * x * gate * (1 - gate))


def quick_gelu(x: Tensor) -> Tensor:
    """OpenAI's x·σ(1.702x)."""
    result: Tensor = _QuickGELU.apply(x)
    return result


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "quick_gelu": quick_gelu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
}


class QuickGELU(nn.Module):
    """As open_clip's module of that name, which the fingerprint counts."""

    def forward(self, x: Tensor) -> Tensor:
        return quick_gelu(x)


def activation_name(module: nn.Module) -> str:
    """The name of a module's activation; ``TypeError`` for one that has none here."""
    if type(module).__name__ == "QuickGELU":  # ours or open_clip's, which need not be imported
        return "quick_gelu"
    if isinstance(module, nn.GELU):
        return "gelu_tanh" if module.approximate == "tanh" else "gelu"
    raise TypeError(f"activation {type(module).__name__} has no canonical name")
