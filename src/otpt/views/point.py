"""Point operations as look-up tables, equal to Pillow's ``ImageOps`` entry by entry.

A point operation maps each value of a channel to another, so a sequence of them is one table of 256 entries
per channel. Autocontrast needs the extremes and equalize the histogram of what they are applied to; after a
pending table these follow from the histogram before. Tables are (3, 256) uint8, histograms (3, 256) int64,
pixels planar (3, S, S) uint8.
"""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Bytes = NDArray[np.uint8]
Counts = NDArray[np.int64]

POINT_OPERATIONS = frozenset({"autocontrast", "equalize", "posterize", "solarize"})

_VALUES = np.arange(256)
IDENTITY: Bytes = np.broadcast_to(_VALUES.astype(np.uint8), (3, 256))


@functools.cache
def posterize_table(bits: int) -> Bytes:
    """Keep the upper ``bits`` bits."""
    return _all_channels(_VALUES & ~(2 ** (8 - bits) - 1))


@functools.cache
def solarize_table(threshold: int) -> Bytes:
    """Invert the values from ``threshold`` on."""
    return _all_channels(np.where(threshold > _VALUES, _VALUES, 255 - _VALUES))


def autocontrast_table(low: NDArray[np.int64], high: NDArray[np.int64]) -> Bytes:
    """Stretch the values from the lowest to the highest present (3,) to [0, 255], truncating."""
    scale = 255.0 / np.maximum(high - low, 1)
    stretched = np.trunc(_VALUES * scale[:, None] + (-low * scale)[:, None])
    table = np.clip(stretched, 0, 255).astype(np.uint8)
    return np.where((high > low)[:, None], table, IDENTITY)


def extremes(histogram: Counts) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The lowest and the highest value present in each channel."""
    present = histogram > 0
    return present.argmax(axis=1), 255 - present[:, ::-1].argmax(axis=1)


def equalize_table(histogram: Counts) -> Bytes:
    """Spread the values so that the histogram becomes flat, channel by channel."""
    last = extremes(histogram)[1]
    step = (histogram.sum(axis=1) - histogram[np.arange(3), last]) // 255
    divisor = np.maximum(step, 1)
    before = np.cumsum(histogram, axis=1) - histogram  # number of pixels of a smaller value
    table = np.minimum((before + (step // 2)[:, None]) // divisor[:, None], 255).astype(np.uint8)
    # A step of 0 (a constant channel, or nearly) leaves the channel unchanged.
    return np.where((step > 0)[:, None], table, IDENTITY)


def histogram_of(pixels: Bytes) -> Counts:
    """Counts of each value in each channel; Pillow counts three times faster than ``np.bincount``."""
    height, width = pixels.shape[1:]
    planes = (Image.frombuffer("L", (width, height), plane, "raw", "L", 0, 1) for plane in pixels)
    return np.array([plane.histogram() for plane in planes], dtype=np.int64)


def histogram_after(histogram: Counts, table: Bytes) -> Counts:
    """The histogram of ``table[pixels]`` from that of ``pixels``."""
    out = np.zeros((3, 256), dtype=np.int64)
    for channel in range(3):
        np.add.at(out[channel], table[channel], histogram[channel])
    return out


def compose(first: Bytes, then: Bytes) -> Bytes:
    """The table that applies ``first`` and then ``then``."""
    return np.take_along_axis(then, first.astype(np.intp), axis=1)


def apply_table(pixels: Bytes, table: Bytes) -> Bytes:
    """``table[c][pixels[c]]`` for each channel; ``bytes.translate`` is the fastest byte look-up."""
    planes = [plane.tobytes().translate(row.tobytes()) for plane, row in zip(pixels, table, strict=True)]
    return np.frombuffer(b"".join(planes), np.uint8).reshape(pixels.shape)


def _all_channels(table: NDArray[np.int64]) -> Bytes:
    return np.broadcast_to(table.astype(np.uint8), (3, 256))
