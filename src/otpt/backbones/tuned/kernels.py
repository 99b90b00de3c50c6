"""Linear maps and convolutions whose weights are laid out once for the processor's own kernels.

On the CPU in float32, MKL and oneDNN can keep a weight in the order their kernels want it, and oneDNN can
add a residual and apply ReLU while a convolution's result is still in cache. PyTorch uses these operators
inside its compiler; here they are called directly, without a compiler. Where they are missing (other
devices, builds, precisions) the ordinary operators are used.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from otpt.backbones.tuned.same_padding import same_padding


def can_pack_linear(weight: Tensor) -> bool:
    """Whether MKL can keep this weight in its own order."""
    plain = weight.device.type == "cpu" and weight.dtype == torch.float32
    return plain and torch.backends.mkl.is_available() and hasattr(torch.ops.mkl, "_mkl_linear")


def can_pack_convolution(weight: Tensor) -> bool:
    """Whether oneDNN can keep this weight in its own order and fuse what follows the convolution."""
    plain = weight.device.type == "cpu" and weight.dtype == torch.float32
    return plain and torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_convolution_pointwise")


class Linear(nn.Module):
    """x Wᵀ + b, for inputs that have ``rows`` rows in all; other inputs go the ordinary way."""

    def __init__(self, weight: Tensor, bias: Tensor | None, rows: int, *, pack: bool) -> None:
        super().__init__()
        self.weight, self.bias, self.rows = weight.detach(), None if bias is None else bias.detach(), rows
        self._packed: Tensor | None = None
        if pack and can_pack_linear(weight):
            self._packed = torch.ops.mkl._mkl_reorder_linear_weight(self.weight.contiguous(), rows)

    def forward(self, x: Tensor) -> Tensor:
        if self._packed is None or x.numel() != self.rows * x.shape[-1]:
            return F.linear(x, self.weight, self.bias)
        result: Tensor = torch.ops.mkl._mkl_linear(x, self._packed, self.weight, self.bias, self.rows)
        return result


class Convolution(nn.Module):
    """A convolution, followed by ``activation``; with ``residual``, ReLU(conv(x) + residual) written over ``residual``.

    Args:
        input_shape: (B, C, H, W) that it will receive.
        activation: an operator's name in oneDNN, and its numbers; see :data:`otpt.backbones.tuned.fusing.ACTIVATIONS`.
        same: pads like TensorFlow, one more on the right and at the bottom where the sides cannot be equal. A kernel
            with a row and a column of zeros before it does that in one pass, with equal padding.
    """

    def __init__(
        self,
        convolution: nn.Conv2d,
        input_shape: tuple[int, ...],
        *,
        activation: tuple[str, tuple[float, ...]] = ("none", ()),
        same: bool = False,
    ) -> None:
        super().__init__()
        weight, padding = convolution.weight.detach(), tuple(map(int, convolution.padding))
        if same:
            needed = [same_padding(convolution, side, axis) for axis, side in enumerate(input_shape[2:])]
            (top, bottom), (left, right) = needed
            weight, padding = F.pad(weight, (right - left, 0, bottom - top, 0)), (bottom, right)
        how = (padding, convolution.stride, convolution.dilation)
        self._how: list[Any] = [*(list(part) for part in how), convolution.groups]
        self._activation, self._numbers = activation[0], list(activation[1])
        self.bias = None if convolution.bias is None else convolution.bias.detach()
        reorder: Any = torch._C._nn.mkldnn_reorder_conv2d_weight
        self._packed: Tensor = reorder(weight.to_mkldnn(), *self._how, list(input_shape))

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        result: Tensor
        if residual is None:
            result = torch.ops.mkldnn._convolution_pointwise(
                x, self._packed, self.bias, *self._how, self._activation, self._numbers, ""
            )
        else:
            result = torch.ops.mkldnn._convolution_pointwise_.binary(
                residual, x, self._packed, self.bias, *self._how, "add", 1.0, "relu", [], ""
            )
        return result
