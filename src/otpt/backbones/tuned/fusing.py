"""Activations joined to the convolutions before them: the same function, the result is clipped while it is in cache.

For convolutional towers of any make (timm's EfficientNets, MobileNets, …) on the CPU in float32. Which activation
follows which convolution is observed in a forward pass, as for batch-norms.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from otpt.backbones.tuned.folding import followers
from otpt.backbones.tuned.kernels import Convolution, can_pack_convolution
from otpt.backbones.tuned.same_padding import pads_like_tensorflow

Activation = tuple[str, tuple[float, ...]]

RELU: Activation = ("relu", ())
ACTIVATIONS: dict[type[nn.Module], Activation] = {nn.ReLU: RELU, nn.ReLU6: ("hardtanh", (0.0, 6.0))}
"""oneDNN's names and numbers."""


def fuse_activations(folded: nn.Module, pixels: Tensor, chunk: int) -> nn.Module:
    """Replaces, in place, the convolutions of a folded tower, for chunks of ``chunk`` views like ``pixels``."""
    names = {module: name for name, module in folded.named_modules()}
    convolutions = [module for module in names if isinstance(module, nn.Conv2d)]
    if not all(can_pack_convolution(module.weight) for module in convolutions):
        return folded
    shapes = input_shapes(folded, chunk, pixels.shape[-1])
    following = dict(followers(folded, pixels, tuple(ACTIVATIONS)))
    for module in convolutions:
        if module not in shapes or not _is_plain(module):
            continue
        activation = following.get(module)
        fused = ("none", ()) if activation is None else ACTIVATIONS[type(activation)]
        same = pads_like_tensorflow(module)
        folded.set_submodule(names[module], Convolution(module, shapes[module], activation=fused, same=same))
        if activation is not None:
            folded.set_submodule(names[activation], nn.Identity())
    return folded


def _is_plain(module: nn.Conv2d) -> bool:
    """No subclass that does something else, no padding with something else."""
    if pads_like_tensorflow(module):
        return module.dilation == (1, 1)
    return type(module) is nn.Conv2d and module.padding_mode == "zeros" and not isinstance(module.padding, str)


def input_shapes(visual: nn.Module, chunk: int, image_size: int) -> dict[nn.Module, tuple[int, ...]]:
    """What each convolution receives, for a chunk: observed on one view."""
    shapes: dict[nn.Module, tuple[int, ...]] = {}

    def note(module: nn.Module, args: Any) -> None:
        shapes[module] = (chunk, *args[0].shape[1:])

    handles = [module.register_forward_pre_hook(note) for module in visual.modules() if isinstance(module, nn.Conv2d)]
    with torch.no_grad():
        visual(torch.zeros(1, 3, image_size, image_size))
    for handle in handles:
        handle.remove()
    return shapes
