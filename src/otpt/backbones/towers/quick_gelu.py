"""QuickGELU, the activation of OpenAI's models: x·σ(1.702x)."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class QuickGELU(nn.Module):
    """open_clip's class of that name."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(1.702 * x)
