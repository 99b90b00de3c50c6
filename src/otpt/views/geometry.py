"""Translate and rotate of planar (3, S, S) uint8 pixels, equal to Pillow's bilinear affine bit by bit.

Pillow samples output pixel (x, y) at the source point p = M·(x + ½, y + ½), black where p lies outside, and
otherwise, with neighbours clamped at the border and everything in double precision,

    top = a + (b − a)·dx,   bottom = c + (d − c)·dx,   value = ⌊top + (bottom − top)·dy⌋.

Each operation exploits the structure of its M. Translate moves by whole pixels, dx = dy = 0: a shifted copy.
Rotate occurs at a few angles only, so its sampling points are computed once per angle and size. Shear has its
own module.

Pillow built with fused multiply-add (not so on x86-64) may itself differ from this by one level in rare
pixels.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Doubles = NDArray[np.float64]

# Pixels of one channel interpolated at a time: keeps the working set within the second-level cache.
_CHUNK = 7_168


def translate(pixels: Bytes, dx: int, dy: int) -> Bytes:
    """Output (x, y) is source (x + dx, y + dy); black where that lies outside."""
    size = pixels.shape[-1]
    out = np.zeros_like(pixels)
    if abs(dx) < size and abs(dy) < size:
        to_rows, from_rows = _overlap(dy, size)
        to_columns, from_columns = _overlap(dx, size)
        out[:, to_rows, to_columns] = pixels[:, from_rows, from_columns]
    return out


def _overlap(shift: int, size: int) -> tuple[slice, slice]:
    """Where along one axis t and t + shift both lie in the image: the slices of t and of t + shift."""
    return slice(max(-shift, 0), size - max(shift, 0)), slice(max(shift, 0), size - max(-shift, 0))


def rotate(pixels: Bytes, degrees: int) -> Bytes:
    """Rotate counter-clockwise about the centre."""
    size = pixels.shape[-1]
    sampling = _rotation(degrees, size)
    pairs = _pixel_pairs(pixels)
    below = pairs[size + 2 :]
    out = np.empty_like(pixels)
    rows = max(1, _CHUNK // size)
    taken = np.empty((2, rows, size), np.uint64)
    corners = np.empty((2, 2, 3, rows, size))  # (row, column) of the corner, channel, y, x
    for start in range(0, size, rows):
        rows_here = slice(start, min(start + rows, size))
        n = rows_here.stop - start
        index, dx = sampling.corner[rows_here], sampling.dx[rows_here]
        np.take(pairs, index, out=taken[0, :n], mode="clip")
        np.take(below, index, out=taken[1, :n], mode="clip")
        values = taken[:, :n].view(np.uint8).reshape(2, n, size, 2, 4)[..., :3]
        here = corners[..., :n, :]
        np.copyto(here, values.transpose(0, 3, 4, 1, 2))
        (top, top_right), (bottom, bottom_right) = here
        _lerp(top, top_right, dx)
        _lerp(bottom, bottom_right, dx)
        _lerp(top, bottom, sampling.dy[rows_here])
        np.copyto(out[:, rows_here], top, casting="unsafe")
    out *= sampling.inside
    return out


def _lerp(low: Doubles, high: Doubles, fraction: Doubles) -> None:
    """low ← low + (high − low)·fraction; ``high`` is used up."""
    high -= low
    high *= fraction
    low += high


class _Sampling(NamedTuple):
    corner: NDArray[np.intp]  # (S, S) of the upper left neighbour in the border-padded (S + 2)² plane
    dx: Doubles  # (S, S)
    dy: Doubles  # (S, S)
    inside: Bytes  # (S, S): 1 where the sampling point lies in the image, else 0


@functools.lru_cache(maxsize=16)
def _rotation(degrees: int, size: int) -> _Sampling:
    angle = -math.radians(degrees % 360.0)
    cos, sin, minus_sin = (round(v, 15) for v in (math.cos(angle), math.sin(angle), -math.sin(angle)))
    half = size / 2
    x_offset = (cos * -half + sin * -half) + half
    y_offset = (minus_sin * -half + cos * -half) + half
    x = (np.arange(size) + 0.5)[None, :]
    y = (np.arange(size) + 0.5)[:, None]
    source_x = (cos * x + sin * y) + x_offset
    source_y = (minus_sin * x + cos * y) + y_offset
    inside = (source_x >= 0) & (source_x < size) & (source_y >= 0) & (source_y < size)
    source_x -= 0.5
    source_y -= 0.5
    left, top = np.floor(source_x), np.floor(source_y)
    column = np.clip(left, -1, size - 1).astype(np.intp) + 1
    row = np.clip(top, -1, size - 1).astype(np.intp) + 1
    return _Sampling(row * (size + 2) + column, source_x - left, source_y - top, inside.astype(np.uint8))


def _pixel_pairs(pixels: Bytes) -> NDArray[np.uint64]:
    """Each pixel of the border-padded image with its right neighbour, as one 8-byte word, flattened.

    One look-up then fetches six values; the cost of a rotation is dominated by memory access, not arithmetic.
    """
    size = pixels.shape[-1]
    packed = np.empty((size + 2, size + 2, 4), np.uint8)
    for channel in range(3):
        packed[1:-1, 1:-1, channel] = pixels[channel]
    words = packed.view(np.uint32)[..., 0]
    words[0] = words[1]
    words[-1] = words[-2]
    words[:, 0] = words[:, 1]
    words[:, -1] = words[:, -2]
    flat = words.reshape(-1)
    pairs = np.empty((flat.size, 2), np.uint32)
    pairs[:, 0] = flat
    pairs[:-1, 1] = flat[1:]
    pairs[-1, 1] = 0
    return pairs.view(np.uint64)[:, 0]
