"""FPP's random numbers, keyed by (seed, step): neither device nor class list nor what came before changes them."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor


def draw(seed: int, what: str, *shape: int) -> Tensor:
    """Standard normal float64 numbers on the CPU that depend on (seed, what, shape) alone."""
    key = hashlib.sha256(f"otpt fpp 1\n{seed}\n{what}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(key[:8], "big"))
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def draw_noise(seed: int, step: int, *, noises: int, tokens: int, length: int, width: int) -> tuple[Tensor, Tensor]:
    """Noise of one step, of variance one, the same for all classes.

    On the context (noises, tokens, W), and on the other token vectors by their position in the text (noises, L, W).
    """
    drawn = draw(seed, f"step {step}", noises, tokens + length, width)
    return drawn[:, :tokens], drawn[:, tokens:]
