"""Activations of CLIP text towers, by the names that :class:`otpt.backbones.CausalTower` uses."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
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


_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "quick_gelu": quick_gelu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
}


def activation(name: str) -> Callable[[Tensor], Tensor]:
    """The function of that name."""
    return _ACTIVATIONS[name]
