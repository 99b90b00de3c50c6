"""Arrays and tensors as images: (H, W), (H, W, C) or (C, H, W), in uint8, uint16, or floats in [0, 1]."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from otpt.errors import OtptError
from otpt.images.decoding import eight_bits

CHANNELS = (1, 3, 4)
"""Grey, RGB, RGBA."""

_ROUNDING = 1e-6
_EXPECTED = "expected (H, W), (H, W, C) or (C, H, W) with 1, 3 or 4 channels, in uint8 or as floats in [0, 1]"


def is_array(source: object) -> bool:
    """Whether this is a numpy array or a torch tensor; a tensor is known by its parts, without importing torch."""
    return isinstance(source, np.ndarray) or _is_tensor(source)


def rgb_array(source: Any) -> NDArray[np.uint8]:
    """An array or tensor as (H, W, 3) uint8.

    Floats v in [0, 1] become ⌊255·v + ½⌋, which gives back the bytes that ``ToTensor`` divided by 255; 16-bit
    values are scaled by 255/65535; grey is repeated, and an alpha channel dropped. A shape such as (3, 4, 3), which
    could be either, is read with the channels last in an array and first in a tensor, by the convention of each.
    """
    kind = "tensor" if _is_tensor(source) else "array"
    values: NDArray[Any] = _from_tensor(source) if kind == "tensor" else source
    given = f"{'a' if kind == 'tensor' else 'an'} {kind} of shape {tuple(source.shape)} and type {source.dtype}"
    if values.ndim == 4 and len(values) == 1:
        values = values[0]
    elif values.ndim == 4:
        raise OtptError(
            f"Cannot use {given} as an image: it is a batch of {len(values)}; give it to predict_batch, or one of "
            "its images."
        )
    values = _channels_last(values, first=kind == "tensor")
    if values is None:
        raise OtptError(f"Cannot use {given} as an image; {_EXPECTED}.")
    if values.size == 0:
        height, width = values.shape[:2]
        raise OtptError(f"Cannot use {given} as an image: it has no pixels ({width}×{height}).")
    grey_or_colour = values[..., : 1 if values.shape[2] == 1 else 3]
    return np.ascontiguousarray(np.broadcast_to(_bytes(grey_or_colour, given), (*values.shape[:2], 3)))


def _channels_last(values: NDArray[Any], *, first: bool) -> Any:
    """(H, W, C) of any known form; None of any other."""
    if values.ndim == 2:
        return values[..., None]
    if values.ndim != 3:
        return None
    is_first, is_last = values.shape[0] in CHANNELS, values.shape[2] in CHANNELS
    if is_first and (first or not is_last):
        return np.moveaxis(values, 0, 2)
    return values if is_last else None


def _bytes(values: NDArray[Any], given: str) -> NDArray[np.uint8]:
    if values.dtype == np.uint8:
        return values
    if values.dtype == np.uint16:
        return eight_bits(values, given)
    if values.dtype.kind != "f":
        raise OtptError(f"Cannot use {given} as an image; {_EXPECTED}.")
    wide = values.astype(np.float64)
    if not np.isfinite(wide).all():
        raise OtptError(f"Cannot use {given} as an image: it holds nan or infinity.")
    low, high = float(wide.min()), float(wide.max())
    if low < -_ROUNDING or high > 1 + _ROUNDING:
        remedy = "divide it by 255" if low >= 0 else "undo its normalisation first"
        raise OtptError(
            f"Cannot use {given} as an image: its values go from {low:.6g} to {high:.6g}, expected floats in [0, 1]; "
            f"{remedy}."
        )
    return np.floor(255 * wide.clip(0, 1) + 0.5).astype(np.uint8)


def _is_tensor(source: object) -> bool:
    return all(hasattr(source, part) for part in ("detach", "cpu", "is_floating_point"))


def _from_tensor(tensor: Any) -> NDArray[Any]:
    plain = tensor.detach().cpu()
    if plain.is_floating_point():
        plain = plain.double()  # numpy has no bfloat16
    found: NDArray[Any] = plain.numpy()
    return found
