"""Mean and covariance of the text features, kept as they were at the init (TCPT)."""

from __future__ import annotations

from torch import Tensor


def moment_distance(text_features: Tensor, at_init: Tensor) -> Tensor:
    """‖m − m⁰‖² + ‖Σ − Σ⁰‖²_F of the texts (…, C, D) and those at the init, (C, D) or (…, C, D): → (…).

    m = (1/C) Σ_c e_c, Σ = (1/C) Σ_c (e_c − m)(e_c − m)ᵀ. Value and gradient are 0 at the init: a first step does not
    see it, a second one does.
    """
    (mean, covariance), (mean_0, covariance_0) = _moments(text_features), _moments(at_init)
    return (mean - mean_0).square().sum(dim=-1) + (covariance - covariance_0).square().sum(dim=(-2, -1))


def _moments(text_features: Tensor) -> tuple[Tensor, Tensor]:
    mean = text_features.mean(dim=-2)
    centred = text_features - mean[..., None, :]
    return mean, centred.mT @ centred / text_features.shape[-2]
