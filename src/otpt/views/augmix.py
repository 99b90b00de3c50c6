"""Fast computation of an AugMix view from its random draws.

    view = m·x̂ + (1 − m)·Σ_i w_i·norm(chain_i)

* Normalisation is affine, so it is folded into the mixing weights, and the sum runs over bytes.
* A sequence of point operations is one look-up table of 256 entries per channel, applied only when a geometric
  operation needs the pixels. The extremes (autocontrast) and the histogram (equalize) after a pending table follow from
  the histogram before it.
* Chains without geometric operations are tables of x. All of them and x itself are combined in one float32 table.

Tables are (3, 256) uint8, histograms (3, 256) int64, pixels planar (3, S, S) uint8.

The bytes of each chain equal Pillow's. The float32 sum is rounded in a different order than when each chain is
normalised before mixing; with r = max_c(1 + mean_c)/std_c the difference is at most 20·2⁻²⁴·r, 7·10⁻⁶ for CLIP
(observed: 7·10⁻⁷).
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from otpt.views.draws import AugMixDraw, Operation
from otpt.views.geometry import rotate, shear_x, shear_y, translate

Bytes = NDArray[np.uint8]
Counts = NDArray[np.int64]
Floats = NDArray[np.floating]
Triple = tuple[float, float, float]

MOVES: dict[str, Callable[[Bytes, float], Bytes]] = {
    "rotate": lambda pixels, degrees: rotate(pixels, int(degrees)),
    "shear_x": shear_x,
    "shear_y": shear_y,
    "translate_x": lambda pixels, distance: translate(pixels, int(distance), axis=2),
    "translate_y": lambda pixels, distance: translate(pixels, int(distance), axis=1),
}
"""Geometric operations; all others are point operations."""

_VALUES = np.arange(256)
_LEVELS = np.arange(256.0)
IDENTITY: Bytes = np.broadcast_to(_VALUES.astype(np.uint8), (3, 256))


@functools.cache
def posterize_table(bits: int) -> Bytes:
    """Return the table that keeps the upper ``bits`` bits of a value."""
    return _all_channels(_VALUES & ~(2 ** (8 - bits) - 1))


@functools.cache
def solarize_table(threshold: int) -> Bytes:
    """Return the table that inverts values from ``threshold`` on."""
    return _all_channels(np.where(threshold > _VALUES, _VALUES, 255 - _VALUES))


def autocontrast_table(low: NDArray[np.int64], high: NDArray[np.int64]) -> Bytes:
    """Return the table that stretches [low, high] of each channel, (3,) each, to [0, 255], truncating."""
    scale = 255.0 / np.maximum(high - low, 1)
    stretched = np.trunc(_VALUES * scale[:, None] + (-low * scale)[:, None])
    table = np.clip(stretched, 0, 255).astype(np.uint8)
    return np.where((high > low)[:, None], table, IDENTITY)


def extremes(histogram: Counts) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the smallest and largest value of each channel, (3,) each, from a histogram."""
    present = histogram > 0
    return present.argmax(axis=1), 255 - present[:, ::-1].argmax(axis=1)


def equalize_table(histogram: Counts) -> Bytes:
    """Return the table that equalises the histogram of each channel."""
    last = extremes(histogram)[1]
    step = (histogram.sum(axis=1) - histogram[np.arange(3), last]) // 255
    divisor = np.maximum(step, 1)
    before = np.cumsum(histogram, axis=1) - histogram  # number of pixels with a smaller value
    table = np.minimum((before + (step // 2)[:, None]) // divisor[:, None], 255).astype(np.uint8)
    # a step of 0, in a (nearly) constant channel, leaves the channel unchanged
    return np.where((step > 0)[:, None], table, IDENTITY)


def histogram_after(histogram: Counts, table: Bytes) -> Counts:
    """Return the histogram of ``table[pixels]`` from the histogram of ``pixels``."""
    out = np.zeros((3, 256), dtype=np.int64)
    for channel in range(3):
        np.add.at(out[channel], table[channel], histogram[channel])
    return out


def apply_table(pixels: Bytes, table: Bytes) -> Bytes:
    """Return ``table[c][pixels[c]]`` for each channel c, with ``bytes.translate``, the fastest byte look-up."""
    planes = [plane.tobytes().translate(row.tobytes()) for plane, row in zip(pixels, table, strict=True)]
    return np.frombuffer(b"".join(planes), np.uint8).reshape(pixels.shape)


def _all_channels(table: NDArray[np.int64]) -> Bytes:
    return np.broadcast_to(table.astype(np.uint8), (3, 256))


class Planes:
    """Pixels (3, S, S) with lazily computed statistics for point operations."""

    def __init__(self, pixels: Bytes) -> None:
        self.pixels = pixels

    @functools.cached_property
    def histogram(self) -> Counts:
        """Histogram (3, 256), computed by Pillow, which is three times faster than ``np.bincount``."""
        height, width = self.pixels.shape[1:]
        planes = (Image.frombuffer("L", (width, height), plane, "raw", "L", 0, 1) for plane in self.pixels)
        return np.array([plane.histogram() for plane in planes], dtype=np.int64)

    @functools.cached_property
    def extremes(self) -> tuple[Counts, Counts]:
        """Smallest and largest value of each channel, (3,) each; much faster than the histogram."""
        flat = self.pixels.reshape(3, -1)
        return flat.min(axis=1).astype(np.int64), flat.max(axis=1).astype(np.int64)


def run_chain(source: Planes, operations: tuple[Operation, ...]) -> tuple[Planes, Bytes | None]:
    """Apply a chain and return (planes, table), which represent ``table[planes]``, or the planes if table is None.

    The planes are ``source`` itself if no geometric operation had an effect.
    """
    planes = source
    table: Bytes | None = None
    for operation in operations:
        amount = operation.amount(planes.pixels.shape[-1])
        if operation.name not in MOVES:
            step = _table(operation.name, amount, planes, table)
            # compose the pending table with this one
            table = step if table is None else np.take_along_axis(step, table.astype(np.intp), axis=1)
        elif amount:
            pixels = planes.pixels if table is None else apply_table(planes.pixels, table)
            planes, table = Planes(MOVES[operation.name](pixels, amount)), None
    return planes, table


def _table(name: str, amount: float, planes: Planes, pending: Bytes | None) -> Bytes:
    """Return the table of a point operation applied to ``pending[planes]``."""
    if name == "posterize":
        return posterize_table(int(amount))
    if name == "solarize":
        return solarize_table(int(amount))
    if name == "autocontrast" and pending is None:
        return autocontrast_table(*planes.extremes)
    histogram = planes.histogram if pending is None else histogram_after(planes.histogram, pending)
    return autocontrast_table(*extremes(histogram)) if name == "autocontrast" else equalize_table(histogram)


def mix(pixels: Bytes, draw: AugMixDraw, mean: Triple, std: Triple, out: Floats) -> None:
    """Write the normalised AugMix view of a crop ``pixels`` (3, S, S) uint8 to ``out`` (3, S, S), in its dtype."""
    number = out.dtype.type
    per_level = 1.0 / (255.0 * np.asarray(std))  # (3,), one grey level after normalisation
    source = Planes(pixels)
    # the reference implementation also rounds 1 − m to float32
    rest = float(np.float32(1.0) - np.float32(draw.mix))
    coefficients = [rest * weight for weight in draw.weights]
    black = (draw.mix + sum(coefficients)) * (-np.asarray(mean) / np.asarray(std))  # (3,), level 0 after normalisation
    linear = draw.mix  # weight of x itself
    tables: list[Floats] = []  # weighted tables of x (3, 256), in grey levels
    moved: list[tuple[float, Bytes]] = []  # (weight, pixels) of chains with geometric operations
    for coefficient, chain in zip(coefficients, draw.chains, strict=True):
        planes, table = run_chain(source, chain)
        if planes is not source:
            moved.append((coefficient, planes.pixels if table is None else apply_table(planes.pixels, table)))
        elif table is None:
            linear += coefficient
        else:
            tables.append(np.multiply(table, coefficient, dtype=np.float64))
    if tables:
        # (3, 256): x itself and tables of x, mixed and normalised
        levels = linear * _LEVELS + sum(tables)
        entries = (levels * per_level[:, None] + black[:, None]).astype(out.dtype)
        for channel in range(3):
            np.take(entries[channel], pixels[channel], out=out[channel], mode="clip")
    else:
        for channel in range(3):
            np.copyto(out[channel], pixels[channel])
            out[channel] *= number(linear * per_level[channel])
            out[channel] += number(black[channel])
    term = np.empty_like(out[0])
    for channel in range(3):  # a single channel fits the cache
        for coefficient, chain_pixels in moved:
            np.copyto(term, chain_pixels[channel])
            term *= number(coefficient * per_level[channel])
            out[channel] += term
