"""Five classes, 64 views: the fixture that reference values of the field's methods were computed on, in float64.

E (5×8): rows unit(cos(0.3·c·d) + 1.5), c = 1…5, d = 1…8. Views F (64×8), i = 0…63: f_i = unit(e_{(i mod 5)+1} +
0.35·sin(0.9·(i+1)·d)), the clean view first. Scale 20. Second texts E2 = unit rows of E + 0.08·cos(1.1·c·d).
"""

from __future__ import annotations

import torch
from torch import Tensor

SCALE = 20.0


def unit(rows: Tensor) -> Tensor:
    return rows / rows.norm(dim=-1, keepdim=True)


def texts(classes: int = 5) -> Tensor:
    """E, (C, 8)."""
    return unit(torch.cos(0.3 * _outer(classes)) + 1.5)


def second_texts() -> Tensor:
    """E2, (5, 8)."""
    return unit(texts() + 0.08 * torch.cos(1.1 * _outer(5)))


def views() -> Tensor:
    """F, (64, 8)."""
    index = torch.arange(64)
    noise = torch.sin(0.9 * torch.outer(index + 1, torch.arange(1, 9)).double())
    return unit(texts()[index % 5] + 0.35 * noise)


def logits() -> Tensor:
    """20·F·Eᵀ, (64, 5)."""
    return SCALE * views() @ texts().T


def adapted_logits() -> Tensor:
    """25·F·E2ᵀ, (64, 5): what a tuned and sharpened model might give."""
    return 25.0 * views() @ second_texts().T


def _outer(classes: int) -> Tensor:
    return torch.outer(torch.arange(1, classes + 1, dtype=torch.float64), torch.arange(1, 9, dtype=torch.float64))
