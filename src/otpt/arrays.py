"""Validation of arrays that users pass: numpy arrays, torch tensors and lists of numbers, of any float type."""

from __future__ import annotations

import math
from numbers import Real

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from otpt.errors import OtptError, describe_error

Array = Tensor | npt.ArrayLike
"""A torch tensor, a numpy array or a list of numbers."""

FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def as_images(values: Array, what: str, dims: str, sizes: dict[str, int]) -> tuple[Tensor, bool]:
    """Validate an array (N, …), or (…) of one image; return it as (N, …), and whether it is that of one image."""
    tensor = as_tensor(values, what)
    one = tensor.ndim == len(dims) - 1
    return as_array(tensor[None] if one else tensor, what, dims, sizes), one


def as_array(values: Array, what: str, dims: str, sizes: dict[str, int], like: Tensor | None = None) -> Tensor:
    """Return a finite tensor with dimensions such as "NVD", in the type and on the device of ``like``.

    ``sizes`` has the sizes of the dimensions by letter; new ones are added.
    """
    tensor = as_tensor(values, what)
    shape = dict(zip(dims, tensor.shape, strict=False))
    if tensor.ndim != len(dims) or any(size == 0 or sizes.get(name, size) != size for name, size in shape.items()):
        image = f", or ({', '.join(dims[1:])}) for one image" if dims[0] == "N" else ""
        known = [f"{letter} = {sizes[letter]}" for letter in dims if letter in sizes]
        raise OtptError(
            f"The {what} have shape {tuple(tensor.shape)}; expected ({', '.join(dims)}){image}, with "
            f"{', '.join([*known, 'no dimension of size 0'])}."
        )
    sizes.update(shape)
    tensor = tensor if like is None else tensor.to(like)
    check_finite(tensor, what)
    return tensor


def as_tensor(values: object, what: str) -> Tensor:
    """Return a detached tensor of floats from a tensor, an array or a list; half precision becomes float32."""
    tensor = to_tensor(values, what, "floating-point numbers").detach()
    check_type(tensor, what)
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def to_tensor(values: object, what: str, expected: str) -> Tensor:
    """Return a dense tensor of any type from a tensor, an array or a list."""
    try:
        tensor = values if isinstance(values, Tensor) else torch.from_numpy(np.array(values))
    except Exception as error:  # conversions of other packages' arrays raise anything
        raise OtptError(
            f"The {what} are {values!r:.80}; expected an array of {expected} ({describe_error(error)})."
        ) from None
    _check_dense(tensor, what)
    return tensor


def _check_dense(tensor: Tensor, what: str) -> None:
    if tensor.is_nested or tensor.layout != torch.strided or tensor.is_meta:
        kind = "nested" if tensor.is_nested else "on the meta device" if tensor.is_meta else "sparse"
        raise OtptError(f"The {what} are a tensor that is {kind}; expected a dense tensor with values.")


def check_type(tensor: Tensor, what: str) -> None:
    """Raise an :class:`OtptError` unless the tensor is dense and of one of :data:`FLOATS`."""
    _check_dense(tensor, what)
    if tensor.dtype not in FLOATS:
        raise OtptError(
            f"The {what} have shape {tuple(tensor.shape)} and type {tensor.dtype}; expected floating-point numbers, "
            "float16, bfloat16, float32 or float64."
        )


def check_directions(features: Tensor, where: str) -> None:
    """Raise an :class:`OtptError` for image features (N, …, D) without a direction: not finite, or all zero."""
    is_direction = features.isfinite().all(dim=-1) & (features != 0).any(dim=-1)
    bad = (~is_direction).flatten(1).any(dim=1).nonzero().flatten().tolist()
    if bad:
        raise OtptError(f"{where} has {len(bad)} images whose features are NaN or zero, such as row {bad[0]}.")


def check_finite(tensor: Tensor, what: str) -> None:
    """Raise an :class:`OtptError` for nan or infinity; it reads values, which waits for a device."""
    if not bool(tensor.isfinite().all()):
        raise OtptError(f"The {what} contain nan or infinity; expected finite numbers in {tensor.dtype}.")


def check_number(value: object, keyword: str) -> float:
    """Return a finite number, given as such or as an array with one entry."""
    number = value
    if isinstance(value, (Tensor, np.ndarray)):
        array = to_tensor(value, keyword, "one number")
        number = array.item() if array.numel() == 1 else value
    try:
        if not isinstance(number, bool) and isinstance(number, Real) and math.isfinite(number):
            return float(number)
    except OverflowError:  # an integer above the range of floats
        pass
    raise OtptError(f"{keyword} is {value!r:.80}; expected a finite number.")
