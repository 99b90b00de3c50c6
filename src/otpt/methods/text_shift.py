"""TPS and STS: one step on a shift of the text features themselves, without the text tower.

E' = unit rows of E + Z, from Z = 0. With L the entropy of the mean prediction over the selected views, the gradient on
the row z_c is g_c = (I − e_c·e_cᵀ)·∂L/∂e_c, ∂L/∂E = scale · (∂L/∂ℓ)ᵀ V_S. The step is AdamW's first one, lr·sign(g);
weight decay does nothing at Z = 0.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor
from torch.nn.functional import normalize

from otpt.methods.tuner import adamw_first_step
from otpt.objectives import entropy_of_mean, select_fraction
from otpt.registry import Fraction, Positive, adaptation

_PUBLISHED = {"shift_rate": {"fine-grained": 1e-3, "shift": 5e-3}}


@adaptation(gives="texts", source="Sui et al., WACV 2025", settings=_PUBLISHED)
@adaptation(
    name="tps-shared",
    gives="texts",
    summary="TPS with one shift for all classes.",
    source="Sui et al., WACV 2025",
    settings={**_PUBLISHED, "shift_shared": 1},
)
def tps(
    zero_shot: Tensor,
    features: Tensor,
    text_features: Tensor,
    logit_scale: float,
    shift_rate: Positive = 5e-3,
    shift_ratio: Fraction = 0.1,
    shift_shared: bool = False,
) -> Tensor:
    """TPS: TPT's entropy minimised by one step on a shift of each class's text features, without the text tower.

    E' with a shift z_c for each class: (C, D) → (C, D).

    Args:
        shift_rate: lr, the size of the change of each coordinate.
        shift_ratio: fraction of the views that is selected, the most confident ones (at least one).
        shift_shared: one shift z for all classes, whose gradient is Σ_c g_c.
    """
    gradient = _gradient(zero_shot, features, text_features, logit_scale, shift_ratio)
    gradient = gradient.sum(dim=0) if shift_shared else gradient
    return normalize(text_features + _step(gradient, shift_rate), dim=-1)


@adaptation(
    gives="texts",
    source="Dafnis and Metaxas, NeurIPS 2025",
    aggregate="mean-probability",
    settings={"mean_fraction": 0.1},
)
def sts(
    zero_shot: Tensor,
    features: Tensor,
    text_features: Tensor,
    logit_scale: float,
    shift_rate: Positive = 5e-3,
    shift_ratio: Fraction = 0.1,
) -> Tensor:
    """STS: one shift for all classes along the leading directions of the texts; the selected views' mean decides.

    E' with one shift z = B_k·γ: (C, D) → (C, D). The k numbers γ take the step: their gradient is B_kᵀ Σ_c g_c. The
    sign of a column of B_k does not matter, since γ changes with it. STS's penalty λ‖B_kγ‖ has the sub-gradient 0 at
    γ = 0, so it does not affect a single step.
    """
    basis = leading_directions(text_features)
    gradient = _gradient(zero_shot, features, text_features, logit_scale, shift_ratio).sum(dim=0)
    return normalize(text_features + basis @ _step(basis.mT @ gradient, shift_rate), dim=-1)


def leading_directions(text_features: Tensor) -> Tensor:
    """Return B_k (D, k) of E = U·diag(σ)·Bᵀ, k the number of σ above ω(β)·median σ (Gavish–Donoho).

    β = min(C, D)/max(C, D), ω(β) = 0.56β³ − 0.95β² + 1.82β + 1.43. At least one direction is
    returned. Computed in float64 on the CPU, once per class list.
    """
    plain = text_features.detach().cpu().double().contiguous()
    basis = _leading_directions(plain.numpy().tobytes(), *plain.shape)
    return basis.to(device=text_features.device, dtype=text_features.dtype)


@lru_cache(maxsize=4)
def _leading_directions(numbers: bytes, classes: int, width: int) -> Tensor:
    """Compute the directions; cached by the (C, D) float64 numbers."""
    texts = torch.frombuffer(bytearray(numbers), dtype=torch.float64).view(classes, width)
    _, sizes, directions = torch.linalg.svd(texts, full_matrices=False)
    return directions[: leading_count(sizes, classes, width)].mT.contiguous()


def leading_count(sizes: Tensor, classes: int, width: int) -> int:
    """Return the number of singular values above the threshold, at least one."""
    beta = min(classes, width) / max(classes, width)
    omega = 0.56 * beta**3 - 0.95 * beta**2 + 1.82 * beta + 1.43
    return max(int((sizes > omega * sizes.quantile(0.5)).sum()), 1)


def _gradient(zero_shot: Tensor, features: Tensor, text_features: Tensor, scale: float, ratio: float) -> Tensor:
    """Compute the gradient g (C, D) at Z = 0."""
    chosen = select_fraction(zero_shot, ratio)
    with torch.enable_grad():
        leaf = zero_shot[chosen].detach().requires_grad_()
        loss = entropy_of_mean(leaf)
    (of_logits,) = torch.autograd.grad(loss, leaf)
    cotangent = scale * of_logits.mT @ features[chosen]
    return cotangent - (cotangent * text_features).sum(dim=-1, keepdim=True) * text_features


def _step(gradient: Tensor, rate: float) -> Tensor:
    return adamw_first_step(torch.zeros_like(gradient), gradient, learning_rate=rate, weight_decay=0.0)
