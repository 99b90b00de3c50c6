"""Convolutions that pad like TensorFlow: one more on the right and at the bottom where the sides cannot be equal.

padding in all = max((⌈side / stride⌉ − 1)·stride + kernel − side, 0), half of it (rounded down) before
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from otpt.backbones.imported import imported_class


class Conv2dSame(nn.Conv2d):
    """timm's class of that name, without dilation."""

    def forward(self, x: Tensor) -> Tensor:
        (top, bottom), (left, right) = (same_padding(self, side, axis) for axis, side in enumerate(x.shape[2:]))
        padded = F.pad(x, (left, right, top, bottom))
        return F.conv2d(padded, self.weight, self.bias, self.stride, (0, 0), self.dilation, self.groups)


def same_padding(convolution: nn.Conv2d, side: int, axis: int) -> tuple[int, int]:
    """Before and after, so that the output has ⌈side / stride⌉ places."""
    stride, reach = convolution.stride[axis], convolution.kernel_size[axis]
    whole = max((-(-side // stride) - 1) * stride + reach - side, 0)
    return whole // 2, whole - whole // 2


def pads_like_tensorflow(module: nn.Module) -> bool:
    """Whether this is a ``Conv2dSame``, ours or timm's, and no subclass that might do something else."""
    return type(module) in (Conv2dSame, imported_class("timm.layers.conv2d_same", "Conv2dSame"))
