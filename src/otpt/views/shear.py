"""Shear of planar (3, S, S) uint8 pixels, equal to Pillow's bilinear affine bit by bit.

A shear moves each line (row or column) by one constant c = factor·(i + ½), so its value is ⌊a + (b − a)·f⌋ with
f = c − ⌊c⌋ and the neighbours a, b at a constant distance. Pillow computes that in double precision, but only the
whole numbers ⌊k·f⌋ for k = |b − a| ≤ 255 matter, and these change only where f passes a fraction n/k. So f may be
replaced by any number between the same two neighbouring fractions (of the Farey sequence of order 255). Their
midpoint f' keeps every k·f' at least 1/510 away from whole numbers: float32 then cannot round across one. Lines
whose f is such a fraction, or closer to one than double precision resolves, are computed as in Pillow.
"""

from __future__ import annotations

import functools
import itertools
import math

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]

# Pixels of one channel interpolated at a time: keeps the working set within the second-level cache.
_CHUNK = 50_176

# Positions below 2¹⁰ pixels are rounded by at most 2⁻⁴³ in double precision, k·f by 255 times that.
_TOO_NEAR = 2.0**-34


def shear_x(pixels: Bytes, factor: float) -> Bytes:
    """Row y is sampled at x + factor·(y + ½); black outside."""
    size = pixels.shape[-1]
    shift, fraction, runs = _lines(factor, size)
    weights, doubtful = _weights(fraction)
    out = np.empty_like(pixels)
    most = max(1, _CHUNK // size)
    for first, last, offset in runs:
        for start in range(first, last, most):
            rows = slice(start, min(start + most, last))
            line = np.empty((3, rows.stop - start, size + 1), np.float32)
            _gather(line.transpose(2, 0, 1), pixels[:, rows].transpose(2, 0, 1), offset)
            _interpolate(line[:, :, :-1], line[:, :, 1:], weights[rows, None], out[:, rows])
    border, inside = _border(shift)
    out[:, :, border] *= inside
    if doubtful.size:
        out[:, doubtful] = _exact(pixels[:, doubtful], shift[doubtful])
    return out


def shear_y(pixels: Bytes, factor: float) -> Bytes:
    """Column x is sampled at y + factor·(x + ½); black outside."""
    size = pixels.shape[-1]
    shift, fraction, runs = _lines(factor, size)
    weights, doubtful = _weights(fraction)
    out = np.empty_like(pixels)
    line = np.empty((3, size + 1, size), np.float32)
    for first, last, offset in runs:
        columns = slice(first, last)
        _gather(line[:, :, columns].transpose(1, 0, 2), pixels[:, :, columns].transpose(1, 0, 2), offset)
    most = max(1, _CHUNK // size)
    for start in range(0, size, most):
        rows = slice(start, min(start + most, size))
        below = slice(start + 1, rows.stop + 1)
        _interpolate(line[:, rows], line[:, below], weights, out[:, rows])
    border, inside = _border(shift)
    out[:, border] *= inside.T
    if doubtful.size:
        exact = _exact(pixels[:, :, doubtful].transpose(0, 2, 1), shift[doubtful])
        out[:, :, doubtful] = exact.transpose(0, 2, 1)
    return out


def _lines(factor: float, size: int) -> tuple[Doubles, Doubles, list[tuple[int, int, int]]]:
    """Shift and its fraction per line; the runs (first, last, ⌊shift⌋) of lines of equal whole shift."""
    shift = np.multiply(np.arange(size) + 0.5, factor)
    whole = np.floor(shift)
    offsets = np.clip(whole, -size, size).astype(np.intp)
    starts: list[int] = [0, *(np.flatnonzero(np.diff(offsets)) + 1).tolist(), size]
    runs = [(first, last, int(offsets[first])) for first, last in itertools.pairwise(starts)]
    return shift, shift - whole, runs


def _gather(line: Floats, pixels: Bytes, offset: int) -> None:
    """Entry t of ``line`` (S + 1 along the first axis) ← the source at t + offset, clamped at the border."""
    size = pixels.shape[0]
    if offset >= 0:
        line[: size - offset] = pixels[offset:]
        line[size - offset :] = pixels[-1]
    else:
        line[-offset:] = pixels[: size + 1 + offset]
        line[:-offset] = pixels[0]


def _interpolate(low: Floats, high: Floats, weights: Floats, out: Bytes) -> None:
    step = high - low
    step *= weights
    step += low
    np.copyto(out, step, casting="unsafe")


def _border(shift: Doubles) -> tuple[slice, Bytes]:
    """The border where sampling points may lie outside; and (lines, width), 1 inside the image, else 0."""
    size = shift.size
    width = min(size, math.ceil(float(np.abs(shift).max())) + 1)
    border = slice(size - width, size) if shift[-1] > 0 else slice(0, width)
    point = (np.arange(size) + 0.5)[border] + shift[:, None]
    return border, ((point >= 0) & (point < size)).astype(np.uint8)


def _exact(lines: Bytes, shift: Doubles) -> Bytes:
    """Lines (3, n, S) sampled at t + shift in double precision, rounded in Pillow's order."""
    size = lines.shape[2]
    point = (np.arange(size) + 0.5) + shift[:, None]  # (n, S)
    inside = ((point >= 0) & (point < size)).astype(np.uint8)
    point -= 0.5
    base = np.floor(point)
    fraction = point - base
    row = np.arange(shift.size)[:, None]
    low = lines[:, row, np.clip(base, 0, size - 1).astype(np.intp)].astype(np.float64)
    step: Doubles = lines[:, row, np.clip(base + 1, 0, size - 1).astype(np.intp)] - low
    step *= fraction
    step += low
    value = step.astype(np.uint8)
    value *= inside
    return value


def _weights(fraction: Doubles) -> tuple[Floats, NDArray[np.intp]]:
    """A float32 weight per line that truncates in the same way, and the lines for which there is none."""
    farey = _farey()
    after = np.searchsorted(farey, fraction, side="right").clip(1, farey.size - 1)
    low, high = farey[after - 1], farey[after]
    doubtful = np.minimum(fraction - low, high - fraction) < _TOO_NEAR
    return ((low + high) / 2).astype(np.float32), np.flatnonzero(doubtful)


@functools.cache
def _farey() -> Doubles:
    """All fractions n/k in [0, 1] with k ≤ 255, ascending."""
    return np.unique(np.concatenate([np.arange(k + 1) / k for k in range(1, 256)]))
