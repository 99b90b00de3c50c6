"""How far the text features are from orthogonal (O-TPT), in the four forms that the paper can be read as.

W = EEᵀ for unit rows e_i of E, w_i its rows. All take (…, C, D) → (…).
"""

from __future__ import annotations

import torch
from torch import Tensor


def orthogonality(text_features: Tensor) -> Tensor:
    """L_O = (1/C) Σ_i | ‖w_i‖ − 1 |: what O-TPT's Householder loss computes, in closed form.

    With ι_i the i-th unit vector, the reflector R_i = I − 2 v_i v_iᵀ, v_i ∝ w_i − ‖w_i‖·ι_i, maps w_i onto ‖w_i‖·ι_i
    exactly, so that ‖R_i w_i − ι_i‖ = | ‖w_i‖ − 1 |, value and gradient, without the C×C×C reflectors.
    ‖w_i‖² = e_iᵀ (EᵀE) e_i, hence min(C²D, CD²) operations.
    """
    classes, width = text_features.shape[-2:]
    if classes <= width:
        norms = torch.linalg.vector_norm(text_features @ text_features.mT, dim=-1)
    else:
        gram = text_features.mT @ text_features
        norms = ((text_features @ gram) * text_features).sum(dim=-1).clamp(min=0).sqrt()
    return (norms - 1).abs().mean(dim=-1)


def row_orthogonality(text_features: Tensor) -> Tensor:
    """(1/C) Σ_i ‖(W − I)_i‖₂: the likeliest reading of the paper's row "without Householder"."""
    return torch.linalg.vector_norm(_off_identity(text_features), dim=-1).mean(dim=-1)


def frobenius_orthogonality(text_features: Tensor) -> Tensor:
    """‖W − I‖_F."""
    return torch.linalg.vector_norm(_off_identity(text_features), dim=(-2, -1))


def squared_orthogonality(text_features: Tensor) -> Tensor:
    """‖W − I‖_F²: the objective as the paper prints it."""
    return _off_identity(text_features).square().sum(dim=(-2, -1))


def _off_identity(text_features: Tensor) -> Tensor:
    classes = text_features.shape[-2]
    identity = torch.eye(classes, dtype=text_features.dtype, device=text_features.device)
    return text_features @ text_features.mT - identity
