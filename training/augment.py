"""A batch of drawings → a batch of images, on tensors: placed, cropped, turned, outlined, coloured, spoilt.

Wider than the bench's compositions in every respect, and with crops like test-time prompt tuning's views, so
that neither another artist's hand nor a random crop is foreign to the model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Augmentation:
    """How often and how strongly; the numbers the model was trained with."""

    scale: tuple[float, float] = (0.5, 1.05)  # drawing's side by the image's
    turn: float = 20.0  # degrees
    stretch: float = 0.12  # of the aspect ratio, log
    crop: float = 0.35  # how often a crop is taken
    crop_area: tuple[float, float] = (0.2, 1.0)
    flip: float = 0.3
    outline: float = 0.35  # dark outlines around and within the drawing, as OpenMoji has
    lines: float = 0.1  # nothing but the outlines
    grey: float = 0.1
    jitter: float = 0.25
    noise: float = 0.1
    blur: float = 0.12


def augment(
    drawings: Tensor, size: int, how: Augmentation, rng: torch.Generator, may_flip: Tensor | None = None
) -> Tensor:
    """(B, 4, S, S) uint8, multiplied by alpha → (B, 3, size, size) float in [0, 1]."""
    rgba = _outlined(drawings.float() / 255, how, rng)
    batch = len(rgba)
    matrix, shrink = _placement(batch, size / rgba.shape[-1], how, rng, may_flip)
    rgba = _sampled(rgba, matrix, shrink, size)
    background = _backgrounds(batch, size, rng)
    images = rgba[:, :3] + (1 - rgba[:, 3:]) * background
    return _spoilt(images, how, rng)


def _uniform(rng: torch.Generator, shape: int | tuple[int, ...], low: float = 0.0, high: float = 1.0) -> Tensor:
    return low + (high - low) * torch.rand(shape, generator=rng)


def _chance(rng: torch.Generator, batch: int, often: float) -> Tensor:
    return torch.rand(batch, generator=rng) < often


def _outlined(rgba: Tensor, how: Augmentation, rng: torch.Generator) -> Tensor:
    batch = len(rgba)
    draw = torch.rand(batch, generator=rng)
    only, around = draw < how.lines, (draw >= how.lines) & (draw < how.lines + how.outline)
    chosen = only | around
    if not chosen.any():
        return rgba
    part = rgba[chosen]
    right = F.pad((part[..., 1:] - part[..., :-1]).abs().amax(1), (0, 1))
    down = F.pad((part[..., 1:, :] - part[..., :-1, :]).abs().amax(1), (0, 0, 0, 1))
    edge = torch.maximum(right, down).unsqueeze(1)
    strength = _uniform(rng, (len(part), 1, 1, 1), 3.0, 8.0)
    edge = F.max_pool2d((edge * strength - 0.3).clamp(0, 1), 3, 1, 1)
    edge = F.avg_pool2d(edge, 3, 1, 1)
    body = part * ~only[chosen].view(-1, 1, 1, 1)
    lined = torch.cat([body[:, :3] * (1 - edge), torch.maximum(body[:, 3:], edge)], 1)
    rgba = rgba.clone()
    rgba[chosen] = lined
    return rgba


def _placement(
    batch: int, ratio: float, how: Augmentation, rng: torch.Generator, may_flip: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Output coordinates → drawing coordinates (B, 2, 3), and how many drawing pixels fall on one output pixel."""
    scale = _uniform(rng, batch, *how.scale)
    room = (1 - scale).clamp(min=0) + 0.05
    move = _uniform(rng, (batch, 2), -1, 1) * room[:, None]
    turn = _uniform(rng, batch, -how.turn, how.turn) * math.pi / 180
    stretch = torch.exp(_uniform(rng, batch, -how.stretch, how.stretch))
    flip = _chance(rng, batch, how.flip)
    if may_flip is not None:
        flip &= may_flip
    # crop of the image: window of size (w, h) in units of the half side, at (x, y)
    crop = _chance(rng, batch, how.crop)
    area = _uniform(rng, batch, *how.crop_area)
    aspect = torch.exp(_uniform(rng, batch, math.log(3 / 4), math.log(4 / 3)))
    width = torch.where(crop, (area * aspect).sqrt().clamp(max=1), torch.ones(batch))
    height = torch.where(crop, (area / aspect).sqrt().clamp(max=1), torch.ones(batch))
    x = _uniform(rng, batch, -1, 1) * (1 - width)
    y = _uniform(rng, batch, -1, 1) * (1 - height)
    # image → drawing: subtract the move, turn back, divide by the scale
    cos, sin = torch.cos(turn) / scale, torch.sin(turn) / scale
    mirror = torch.where(flip, -1.0, 1.0)
    rows = torch.stack(
        [
            torch.stack([cos * mirror * stretch, sin * mirror * stretch], -1),
            torch.stack([-sin / stretch, cos / stretch], -1),
        ],
        1,
    )  # (B, 2, 2)
    windowed = rows * torch.stack([width, height], -1)[:, None, :]
    offset = (rows @ (torch.stack([x, y], -1) - move)[..., None])[..., 0]
    shrink = torch.maximum(width, height) / scale / ratio
    return torch.cat([windowed, offset[..., None]], -1), shrink


def _sampled(rgba: Tensor, matrix: Tensor, shrink: Tensor, size: int) -> Tensor:
    """Bilinear samples; drawings that get much smaller are averaged first, against aliasing."""
    grid = F.affine_grid(matrix, [len(rgba), 4, size, size], align_corners=False)
    out = torch.empty(len(rgba), 4, size, size)
    coarse = shrink > 1.7
    for chosen, source in ((~coarse, rgba), (coarse, F.avg_pool2d(rgba, 2))):
        if chosen.any():
            out[chosen] = F.grid_sample(source[chosen], grid[chosen], align_corners=False)
    return out


def _backgrounds(batch: int, size: int, rng: torch.Generator) -> Tensor:
    """White, plain, gradient, stripes or clutter."""
    kind = torch.randint(0, 5, (batch,), generator=rng)
    light = torch.where(_chance(rng, batch, 0.8), 0.6, 0.0).view(-1, 1, 1, 1)

    def colours(count: int, side: int) -> Tensor:
        base = torch.rand((count, 3, side, side), generator=rng)
        grey = base.mean(1, keepdim=True)
        return grey + (base - grey) * torch.rand((count, 1, 1, 1), generator=rng)

    out = colours(batch, 1).expand(batch, 3, size, size).clone()
    out[kind == 0] = 1.0
    out[kind == 1] *= 1.0
    count = int((kind == 2).sum())
    if count:
        out[kind == 2] = F.interpolate(colours(count, 2), size, mode="bilinear", align_corners=False)
    count = int((kind == 3).sum())
    if count:
        angle = _uniform(rng, (count, 1, 1), 0, math.pi)
        wave = _uniform(rng, (count, 1, 1), 0.3, 1.5)
        axis = torch.arange(size, dtype=torch.float32)
        phase = wave * (torch.cos(angle) * axis + torch.sin(angle) * axis[:, None])
        dots = torch.sin(wave * (-torch.sin(angle) * axis + torch.cos(angle) * axis[:, None]))
        dots = torch.where(_chance(rng, count, 0.5)[:, None, None], dots, torch.ones(()))
        mask = (torch.sin(phase) * dots > 0).float()[:, None]
        out[kind == 3] = mask * colours(count, 1) + (1 - mask) * colours(count, 1)
    count = int((kind == 4).sum())
    if count:
        fine = F.interpolate(colours(count, 9), size, mode="bilinear", align_corners=False)
        coarse = F.interpolate(colours(count, 5), size, mode="nearest")
        out[kind == 4] = (fine + coarse) / 2
    out = light + (1 - light) * out
    out[kind == 0] = 1.0
    return out


def _spoilt(images: Tensor, how: Augmentation, rng: torch.Generator) -> Tensor:
    batch, size = len(images), images.shape[-1]
    level = images.mean((1, 2, 3), keepdim=True)
    grey = images.mean(1, keepdim=True)
    j = how.jitter
    saturation = torch.exp(_uniform(rng, (batch, 1, 1, 1), -2 * j, 1.5 * j))
    saturation = torch.where(_chance(rng, batch, how.grey).view(-1, 1, 1, 1), 0.0, saturation)
    contrast = torch.exp(_uniform(rng, (batch, 1, 1, 1), -1.5 * j, j))
    brightness = _uniform(rng, (batch, 1, 1, 1), -0.5 * j, 0.5 * j)
    tint = _uniform(rng, (batch, 3, 1, 1), -0.2 * j, 0.2 * j)
    out = (grey + (images - grey) * saturation - level) * contrast + level + brightness + tint
    blurred = _chance(rng, batch, how.blur)
    if blurred.any():
        soft = F.avg_pool2d(out[blurred], 3, 1, 1, count_include_pad=False)
        twice = _chance(rng, len(soft), 0.5)
        if twice.any():
            soft[twice] = F.avg_pool2d(soft[twice], 3, 1, 1, count_include_pad=False)
        out[blurred] = soft
    noisy = _chance(rng, batch, how.noise)
    if noisy.any():
        count = int(noisy.sum())
        sigma = _uniform(rng, (count, 1, 1, 1), 0.03, 0.2)
        out[noisy] += sigma * torch.randn((count, 3, size, size), generator=rng)
    return out.clamp(0, 1)
