"""Gaussian noise keyed by the image."""

from __future__ import annotations

import hashlib

import numpy as np


def noise_generator(purpose: str, *, seed: int, image_id: str) -> np.random.Generator:
    """A generator whose numbers depend on (purpose, seed, image_id) alone."""
    key = hashlib.sha256(f"otpt noise 1\n{purpose}\n{seed}\n{image_id}".encode("utf-8", "surrogatepass")).digest()
    return np.random.Generator(np.random.Philox(key=np.frombuffer(key[:16], "<u8")))
