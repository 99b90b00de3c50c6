"""Logits as the calibration functions accept them."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from otpt.errors import OtptError

Array: TypeAlias = Tensor | npt.NDArray[Any]


def to_tensor(values: Array, name: str) -> Tensor:
    """A tensor as it is; a numpy array as a tensor, copied only where torch could not share it."""
    if isinstance(values, Tensor):
        return values
    try:
        return torch.from_numpy(np.require(values, requirements=["C", "W"]))
    except (TypeError, ValueError) as error:
        raise OtptError(f"expected {name} as a torch tensor or an array of numbers, but got another type.") from error


def check_logits(logits: Array, name: str = "logits") -> Tensor:
    """Finite floating-point logits (..., C) as a tensor."""
    tensor = to_tensor(logits, name)
    if tensor.ndim < 1 or tensor.shape[-1] < 1:
        raise OtptError(f"expected {name} of shape (..., C) with at least one class, but got {tuple(tensor.shape)}.")
    if not tensor.is_floating_point():
        raise OtptError(f"expected {name} as floating-point numbers, but got {tensor.dtype}.")
    if not bool(torch.isfinite(tensor).all()):
        raise OtptError(f"expected finite {name}, but got nan or infinity.")
    return tensor
