"""Average text feature dispersion (C-TPT)."""

from __future__ import annotations

import torch
from torch import Tensor


def text_dispersion(text_features: Tensor) -> Tensor:
    """ATFD = (1/C) Σ_i ‖e_i − ē‖₂ with ē = (1/C) Σ_i e_i, not re-normalised: (…, C, D) → (…).

    C-TPT *maximises* it: L = L_TPT − λ·ATFD. Where some e_i = ē the sub-gradient 0 is taken.
    """
    centre = text_features.mean(dim=-2, keepdim=True)
    return torch.linalg.vector_norm(text_features - centre, dim=-1).mean(dim=-1)
