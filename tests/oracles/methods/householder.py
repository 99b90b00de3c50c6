"""O-TPT's orthogonality loss the literal way: C reflectors of C×C."""

from __future__ import annotations

import torch
from torch import Tensor


def literal_householder(text_features: Tensor) -> Tensor:
    """(1/C) Σ_i ‖R_i w_i − ι_i‖ with R_i = I − 2 v_i v_iᵀ built explicitly: (C, D) → ()."""
    gram = text_features @ text_features.mT
    classes = gram.shape[0]
    identity = torch.eye(classes, dtype=gram.dtype)
    target = gram.norm(dim=0).diag()
    normals = gram - target
    normals = normals / normals.norm(dim=1, keepdim=True)
    reflectors = identity[None] - 2 * normals[:, :, None] * normals[:, None, :]
    reflected = torch.einsum("cij,cj->ci", reflectors, gram)
    return (reflected - identity).norm(dim=1).mean()
