"""Batch-norms folded into the convolutions before them: the same function with fewer passes over memory.

In evaluation a batch-norm is an affine map of each channel, so for a convolution (w, b) followed by it

    w′ = w · γ/√(σ² + ε)        b′ = (b − μ) · γ/√(σ² + ε) + β

computed in float64 and then rounded once. Which batch-norm follows which convolution is not read from names
but observed: one small forward pass shows which batch-norm receives exactly the tensor a convolution gave.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn


def fold_batch_norms(visual: nn.Module, pixels: Tensor) -> nn.Module:
    """A copy of the image tower with its batch-norms folded; ``visual`` itself if it has none.

    ``pixels`` (1, 3, S, S) is any input; whether the copy agrees with the original is for the caller to check.
    """
    if not any(isinstance(module, nn.BatchNorm2d) for module in visual.modules()):
        return visual
    folded = copy.deepcopy(visual)
    with torch.no_grad():
        names = {module: name for name, module in folded.named_modules()}
        for convolution, norm in followers(folded, pixels, (nn.BatchNorm2d,)):
            _fold(convolution, norm)
            # timm's batch-norms carry the activation that follows them
            folded.set_submodule(names[norm], getattr(norm, "act", None) or nn.Identity())
    return folded


def followers(visual: nn.Module, pixels: Tensor, kinds: tuple[type[nn.Module], ...]) -> list[tuple[Any, Any]]:
    """(convolution, module of ``kinds``) where one's output is the other's input, each used once."""
    made_by: dict[int, nn.Module] = {}
    alive: list[Tensor] = []  # keeps the outputs, so that no address is used twice
    calls: dict[nn.Module, int] = {}
    pairs: list[tuple[nn.Module, nn.Module]] = []

    def after_convolution(module: nn.Module, args: Any, output: Tensor) -> None:
        calls[module] = calls.get(module, 0) + 1
        made_by[id(output)] = module
        alive.append(output)

    def before_follower(module: nn.Module, args: Any) -> None:
        calls[module] = calls.get(module, 0) + 1
        if id(args[0]) in made_by:
            pairs.append((made_by[id(args[0])], module))

    handles = []
    for module in visual.modules():
        if isinstance(module, nn.Conv2d):
            handles.append(module.register_forward_hook(after_convolution))
        elif isinstance(module, kinds):
            handles.append(module.register_forward_pre_hook(before_follower))
    visual(pixels)
    for handle in handles:
        handle.remove()
    return [(conv, follower) for conv, follower in pairs if calls[conv] == calls[follower] == 1]


def _fold(convolution: Any, norm: Any) -> None:
    weight, variance = convolution.weight, norm.running_var.double()
    gamma = torch.ones_like(variance) if norm.weight is None else norm.weight.double()
    beta = torch.zeros_like(variance) if norm.bias is None else norm.bias.double()
    scale = gamma / torch.sqrt(variance + norm.eps)  # (channels,)
    bias = torch.zeros_like(variance) if convolution.bias is None else convolution.bias.double()
    folded_weight = weight.double() * scale[:, None, None, None]
    folded_bias = (bias - norm.running_mean.double()) * scale + beta
    convolution.weight = nn.Parameter(folded_weight.to(weight.dtype), requires_grad=False)
    convolution.bias = nn.Parameter(folded_bias.to(weight.dtype), requires_grad=False)
