"""From logits to probabilities, in plain precision or in that of the official runs."""

from __future__ import annotations

import torch
from torch import Tensor

from otpt.calibration._inputs import Array, check_logits
from otpt.calibration.temperature import apply_temperature
from otpt.errors import OtptError


def probabilities(logits: Array, *, temperature: float = 1.0, official: bool = False) -> Tensor:
    """softmax(ℓ/T) over the last dimension of logits (..., C).

    Plain: float32 and float64 keep their dtype; float16 and bfloat16 logits are computed and returned in
    float32.

    ``official=True`` repeats the numbers of the official runs, whose logits are float16 products and whose
    last softmax is outside autocast: ℓ is rounded to float16, ℓ/T is rounded to float16, and the softmax,
    computed in float32, is rounded to float16. Returned as float32. A confidence moves by up to about one
    percent of itself.
    """
    z = check_logits(logits)
    if not official:
        z = z.float() if z.dtype.itemsize < 4 else z
        return torch.softmax(apply_temperature(z, temperature), dim=-1)
    half = z.to(torch.float16)
    if not bool(torch.isfinite(half).all()):
        raise OtptError("expected logits within ±65504, what float16 holds, but got a larger one.")
    # torch's own float16 kernels: a detour over float32 differs from them by one step in one of 10,000 values
    return torch.softmax(apply_temperature(half, temperature), dim=-1).float()
