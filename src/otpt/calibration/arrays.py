"""Elementary functions that calibration maps are made of, for numpy arrays and for tensors.

A map is one formula of ``xp``, the functions of its arrays: predictions are computed with :data:`NUMPY`, and the graph
of an ONNX file is traced with :data:`TORCH`. All matrices are (N, C), and rows are the axis of size C.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import expit, softmax
from torch import Tensor

Floats: TypeAlias = npt.NDArray[np.float64]
Integers: TypeAlias = npt.NDArray[np.int64]
Booleans: TypeAlias = npt.NDArray[np.bool_]
Array = TypeVar("Array", Floats, Tensor)


class Functions(Protocol[Array]):
    """Functions of arrays in double precision."""

    def array(self, values: float | Sequence[float | Sequence[float]]) -> Array:
        """Return numbers as an array."""
        ...

    def full_like(self, x: Array, value: float) -> Array:
        """Return an array of the shape of ``x`` with equal entries."""
        ...

    def log(self, x: Array) -> Array: ...

    def log1p(self, x: Array) -> Array: ...

    def exp(self, x: Array) -> Array: ...

    def sigmoid(self, x: Array) -> Array: ...

    def softmax(self, x: Array) -> Array:
        """Return the softmax of each row."""
        ...

    def clip(self, x: Array, low: float, high: float | None = None) -> Array: ...

    def largest(self, x: Array) -> Array:
        """Return the largest entry of each row: (N, 1)."""
        ...

    def without_largest(self, x: Array) -> Array:
        """Set the first of the largest entries of each row to zero."""
        ...

    def where_less(self, x: Array, y: Array, if_less: Array, otherwise: Array) -> Array:
        """Take entries of ``if_less`` where x < y."""
        ...

    def columns(self, columns: Sequence[Array]) -> Array:
        """Return a matrix (N, n) with n columns (N,)."""
        ...

    def interpolate(self, at: Array, x: Array, y: Array) -> Array:
        """Interpolate linearly between corners with rising ``x``, constant outside."""
        ...


class NumpyFunctions:
    """Functions of numpy arrays; see :class:`Functions`."""

    def array(self, values: float | Sequence[float | Sequence[float]]) -> Floats:
        return np.asarray(values, np.float64)

    def full_like(self, x: Floats, value: float) -> Floats:
        return np.full_like(x, value)

    def log(self, x: Floats) -> Floats:
        return np.log(x)

    def log1p(self, x: Floats) -> Floats:
        return np.log1p(x)

    def exp(self, x: Floats) -> Floats:
        return np.exp(x)

    def sigmoid(self, x: Floats) -> Floats:
        return np.asarray(expit(x))

    def softmax(self, x: Floats) -> Floats:
        return np.asarray(softmax(x, axis=1))

    def clip(self, x: Floats, low: float, high: float | None = None) -> Floats:
        return np.clip(x, low, high)

    def largest(self, x: Floats) -> Floats:
        return np.asarray(x.max(axis=1, keepdims=True))

    def without_largest(self, x: Floats) -> Floats:
        rest = x.copy()
        np.put_along_axis(rest, x.argmax(axis=1)[:, None], 0.0, axis=1)
        return rest

    def where_less(self, x: Floats, y: Floats, if_less: Floats, otherwise: Floats) -> Floats:
        return np.where(x < y, if_less, otherwise)

    def columns(self, columns: Sequence[Floats]) -> Floats:
        return np.stack(columns, axis=1)

    def interpolate(self, at: Floats, x: Floats, y: Floats) -> Floats:
        return np.interp(at, x, y)


class TorchFunctions:
    """Functions of tensors that ONNX has; see :class:`Functions`."""

    def array(self, values: float | Sequence[float | Sequence[float]]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64)

    def full_like(self, x: Tensor, value: float) -> Tensor:
        return torch.full_like(x, value)

    def log(self, x: Tensor) -> Tensor:
        return x.log()

    def log1p(self, x: Tensor) -> Tensor:
        return x.log1p()

    def exp(self, x: Tensor) -> Tensor:
        return x.exp()

    def sigmoid(self, x: Tensor) -> Tensor:
        return x.sigmoid()

    def softmax(self, x: Tensor) -> Tensor:
        return x.softmax(dim=1)

    def clip(self, x: Tensor, low: float, high: float | None = None) -> Tensor:
        return x.clamp(low, high)

    def largest(self, x: Tensor) -> Tensor:
        return x.amax(dim=1, keepdim=True)

    def without_largest(self, x: Tensor) -> Tensor:
        is_largest = torch.arange(x.shape[1]) == x.argmax(dim=1, keepdim=True)
        return x.masked_fill(is_largest, 0.0)

    def where_less(self, x: Tensor, y: Tensor, if_less: Tensor, otherwise: Tensor) -> Tensor:
        return torch.where(x < y, if_less, otherwise)

    def columns(self, columns: Sequence[Tensor]) -> Tensor:
        return torch.stack(list(columns), dim=1)

    def interpolate(self, at: Tensor, x: Tensor, y: Tensor) -> Tensor:
        parts = ((at[:, None] - x[:-1]) / (x[1:] - x[:-1])).clamp(0, 1)
        return y[0] + (parts * (y[1:] - y[:-1])).sum(dim=1)


NUMPY = NumpyFunctions()
TORCH = TorchFunctions()
