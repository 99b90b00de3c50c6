"""Random draws of views, determined by (seed, image id, view index), and of noise.

The numbers of a view are a SHAKE-256 stream of this key: 56 little-endian 64-bit words, whose upper 53 bits each give a
uniform number in [0, 1). Every draw has a fixed slot in the stream. Therefore

* view v does not depend on the number of views, their order, the worker or the numpy version;
* crop and flip are the same with AugMix on or off;
* a draw without effect (rotation by 0°) does not shift other draws.

Distributions, as in TPT: crop area U(scale) and log-aspect U(log ratio), with ten tries and a centred fallback; flip
with probability ½; AugMix w ~ Dirichlet(1, 1, 1) and m ~ Beta(1, 1), both rounded to float32; three chains of depth 1,
2 or 3, each operation uniform over nine, with level U(0.1, 1) (severity 1) and negative sign if U > ½.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

OPERATIONS = (
    "autocontrast",
    "equalize",
    "posterize",
    "rotate",
    "solarize",
    "shear_x",
    "shear_y",
    "translate_x",
    "translate_y",
)
CHAINS = 3
MAX_DEPTH = 3

_TRIES = 10
_CROP = 0  # slots 0…19: (area, aspect) of each try; 20, 21: position
_POSITION = _CROP + 2 * _TRIES
_FLIP = _POSITION + 2
_DIRICHLET = _FLIP + 1  # two slots: the cuts of the unit interval
_BETA = _DIRICHLET + 2
_CHAIN = _BETA + 1  # per chain: depth, then (operation, level, sign) per operation
_CHAIN_SLOTS = 1 + 3 * MAX_DEPTH
_SLOTS = _CHAIN + CHAINS * _CHAIN_SLOTS


class CropBox(NamedTuple):
    """Box in an image, in pixels."""

    top: int
    left: int
    height: int
    width: int


@dataclass(frozen=True)
class Operation:
    """AugMix operation with its level in [0.1, 1) and its sign."""

    name: str
    level: float
    negative: bool

    def amount(self, size: int) -> float:
        """Return the parameter of the operation in a view of ``size`` × ``size`` pixels.

        Posterize: bits to keep (always 4 at severity 1). Solarize: first inverted value (231 … 254). Rotate: whole
        degrees counter-clockwise (−2 … 2). Shear: pixels per row or column (±0.003 … ±0.03). Translate: whole pixels
        (−7 … 7 for size 224).
        """
        if self.name == "posterize":
            return 4 - int(self.level * 4 / 10)
        if self.name == "solarize":
            return 256 - int(self.level * 256 / 10)
        if self.name.startswith("shear"):
            amount = self.level * 0.3 / 10
        else:
            amount = int(self.level * (30 if self.name == "rotate" else size / 3) / 10)
        return -amount if self.negative else amount


@dataclass(frozen=True)
class AugMixDraw:
    """Weights w, mixing weight m and chains of view = m·x̂ + (1 − m)·Σ_i w_i·norm(chain_i), rounded to float32."""

    weights: tuple[float, float, float]
    mix: float
    chains: tuple[tuple[Operation, ...], ...]


@dataclass(frozen=True)
class ViewDraw:
    """Random draws of a view."""

    crop: CropBox
    flip: bool
    augmix: AugMixDraw


def view_uniforms(seed: int, image_id: str, view: int) -> list[float]:
    """Return the uniform numbers in [0, 1) of one view of an image."""
    key = f"otpt view 1\n{seed}\n{view}\n{image_id}".encode("utf-8", "surrogatepass")
    words = np.frombuffer(hashlib.shake_256(key).digest(8 * _SLOTS), "<u8")
    uniforms: list[float] = ((words >> np.uint64(11)) * 2.0**-53).tolist()
    return uniforms


def crop_box(
    uniforms: Sequence[float],
    *,
    width: int,
    height: int,
    scale: tuple[float, float],
    ratio: tuple[float, float],
) -> CropBox:
    """Return the box of a random resized crop, by torchvision's rule.

    ``uniforms`` contains 22 numbers: (area, aspect) for each of ten tries, then (row, column) of the position.
    """
    area = height * width
    log_low, log_high = math.log(ratio[0]), math.log(ratio[1])
    for i in range(_TRIES):
        target = area * (scale[0] + (scale[1] - scale[0]) * uniforms[2 * i])
        aspect = math.exp(log_low + (log_high - log_low) * uniforms[2 * i + 1])
        w = round(math.sqrt(target * aspect))
        h = round(math.sqrt(target / aspect))
        if 0 < w <= width and 0 < h <= height:
            top = int(uniforms[2 * _TRIES] * (height - h + 1))
            left = int(uniforms[2 * _TRIES + 1] * (width - w + 1))
            return CropBox(top, left, h, w)
    in_ratio = width / height
    w, h = width, height
    if in_ratio < ratio[0]:
        h = round(w / ratio[0])
    elif in_ratio > ratio[1]:
        w = round(h * ratio[1])
    return CropBox((height - h) // 2, (width - w) // 2, h, w)


def draw_view(
    seed: int,
    image_id: str,
    view: int,
    *,
    width: int,
    height: int,
    crop_scale: tuple[float, float] = (0.08, 1.0),
    crop_ratio: tuple[float, float] = (3 / 4, 4 / 3),
    flip: float = 0.5,
) -> ViewDraw:
    """Return the random draws of view ``view`` of an image with ``width`` × ``height`` pixels."""
    u = view_uniforms(seed, image_id, view)
    box = crop_box(u[_CROP:_FLIP], width=width, height=height, scale=crop_scale, ratio=crop_ratio)
    return ViewDraw(crop=box, flip=u[_FLIP] < flip, augmix=_augmix(u))


def _augmix(u: Sequence[float]) -> AugMixDraw:
    # the spacings of two uniform cuts of [0, 1] are Dirichlet(1, 1, 1); a logarithm could differ between platforms
    low, high = sorted(u[_DIRICHLET : _DIRICHLET + 2])
    chains = []
    for i in range(CHAINS):
        start = _CHAIN + i * _CHAIN_SLOTS
        depth = 1 + int(MAX_DEPTH * u[start])
        chains.append(
            tuple(
                Operation(OPERATIONS[int(len(OPERATIONS) * u[j])], 0.1 + 0.9 * u[j + 1], u[j + 2] > 0.5)
                for j in range(start + 1, start + 1 + 3 * depth, 3)
            )
        )
    return AugMixDraw(
        weights=(float(np.float32(low)), float(np.float32(high - low)), float(np.float32(1.0 - high))),
        mix=float(np.float32(u[_BETA])),
        chains=tuple(chains),
    )


def noise_generator(purpose: str, *, seed: int, image_id: str) -> np.random.Generator:
    """Return a random generator for noise, seeded by (purpose, seed, image_id)."""
    key = hashlib.sha256(f"otpt noise 1\n{purpose}\n{seed}\n{image_id}".encode("utf-8", "surrogatepass")).digest()
    return np.random.Generator(np.random.Philox(key=np.frombuffer(key[:16], "<u8")))
