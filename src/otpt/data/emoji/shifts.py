"""What three of the five shifts do to a finished image: grey, noise, blur.

(The other two, ``line`` and ``small``, are drawn differently: see ``sets``.) Integer arithmetic, so that the
result is the same to the bit everywhere.
"""

from __future__ import annotations

import hashlib

import numpy as np
from PIL import Image, ImageFilter

BLUR_RADIUS = 3  # pixels of 128
NOISE_SIGMA = 45  # grey levels of 255


def grey(image: Image.Image) -> Image.Image:
    """Luma (ITU-R 601) in all three channels."""
    return image.convert("L").convert("RGB")


def blur(image: Image.Image) -> Image.Image:
    """Gaussian blur of 3 pixels."""
    return image.filter(ImageFilter.GaussianBlur(BLUR_RADIUS))


def noise(image: Image.Image, key: str) -> Image.Image:
    """Independent, nearly normal noise of σ = 45 levels on each value.

    Twelve uniform bytes add up to a variance of 12·(256² − 1)/12, that is σ ≈ 256; the sum is centred and
    scaled to σ. The raw output of PCG64 is guaranteed to stay the same between versions of NumPy, ``normal`` is not.
    """
    values = np.asarray(image, dtype=np.int64)
    digest = hashlib.sha256(key.encode()).digest()
    raw = np.random.PCG64(int.from_bytes(digest[:16], "big")).random_raw(3 * values.size // 2)
    bytes12 = raw.astype("<u8").view(np.uint8).reshape(*values.shape, 12)
    centred = 2 * bytes12.astype(np.int64).sum(-1) - 12 * 255  # twice the centred sum: σ ≈ 512
    return Image.fromarray(np.clip(values + (centred * NOISE_SIGMA) // 512, 0, 255).astype(np.uint8))
