"""Scorers of images by example images, and the weights of their scores.

With unit features g_j of the examples, n_c of class c, and the image feature f, the logits are

    ℓ_c = t·ℓ_c(text) + s·a_c(f)

| init | a_c(f) |
|---|---|
| ``prototypes`` | f·m_c, m_c the mean of g_j over class c, of norm one |
| ``tip-adapter`` | mean over class c of exp(−β(1 − f·g_j)), β = 5.5 |
| ``gda`` | f·Λμ_c − ½ μ_c·Λμ_c, μ_c the means, Λ = ((1 − ρ)·S·D/tr S + ρ·I)⁻¹, S the covariance within classes |

The weights t and s, and ρ out of 0.1, 0.3, 0.6 and 1, minimise the NLL of examples that were held out in ten folds,
which is leave-one-out for up to ten images per class. A mean over fewer images is noisier: the variance of f − μ_c is
(1 + 1/n_c)·Σ, so s is multiplied by n/(n + 1) · (n' + 1)/n', with n' the images that were left per class.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from scipy.optimize import minimize
from scipy.special import log_softmax
from torch import Tensor
from torch.nn import functional as F

from otpt.calibration.maps import stratified_folds
from otpt.methods.gaussians import ridge_precision

Floats = npt.NDArray[np.float64]

BETA = 5.5
SHRINKAGES = (0.1, 0.3, 0.6, 1.0)
FOLDS = 10
ALONE, WITH_TEXTS = 0.45, 0.16
"""Weight s without and with texts, as a fraction of the logit scale, where the examples are too few to fit it; the
centres of a normal prior of standard deviation 1 on log s."""


class Linear(NamedTuple):
    """f·w_c + b_c: (…, D) → (…, C)."""

    weights: Tensor
    biases: Tensor

    def __call__(self, features: Tensor) -> Tensor:
        return features @ self.weights.mT + self.biases

    def to(self, device: torch.device, dtype: torch.dtype) -> Linear:
        """Move the scorer to a device."""
        return Linear(self.weights.to(device, dtype), self.biases.to(device, dtype))


class Cache(NamedTuple):
    """Σ_j v_jc·exp(−β(1 − f·g_j)) of keys g (N, D) and values v (N, C): (…, D) → (…, C)."""

    keys: Tensor
    values: Tensor
    beta: float

    def __call__(self, features: Tensor) -> Tensor:
        return torch.exp(self.beta * (features @ self.keys.mT - 1)) @ self.values

    def to(self, device: torch.device, dtype: torch.dtype) -> Cache:
        """Move the scorer to a device."""
        return Cache(self.keys.to(device, dtype), self.values.to(device, dtype), self.beta)


Scorer = Linear | Cache


def class_means(features: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Return the class means (C, D) of features (N, D), zero for empty classes."""
    members = F.one_hot(labels, classes).to(features)
    return (members / members.sum(dim=0).clamp_min(1)).mT @ features


def prototypes(features: Tensor, labels: Tensor, classes: int) -> Linear:
    """Return a linear scorer of unit class means."""
    means = F.normalize(class_means(features, labels, classes), dim=-1)
    return Linear(means, means.new_zeros(classes))


def tip_adapter(features: Tensor, labels: Tensor, classes: int, *, beta: float = BETA, balanced: bool = True) -> Cache:
    """Return Tip-Adapter's cache (Zhang et al., ECCV 2022); ``balanced`` averages over the images of a class.

    Published: a sum, so that classes with more images win.
    """
    members = F.one_hot(labels, classes).to(features)
    return Cache(features, members / members.sum(dim=0).clamp_min(1) if balanced else members, beta)


def gda(features: Tensor, labels: Tensor, classes: int, *, shrinkage: float | None = 0.3) -> Linear:
    """Fit Gaussians with one covariance (Wang et al., ICLR 2024); ``shrinkage=None`` is the published precision."""
    means = class_means(features, labels, classes)
    residuals = features - means[labels]
    if shrinkage is None:
        weights = means @ ridge_precision(residuals)
    else:
        scatter = residuals.mT @ residuals
        width, trace = len(scatter), float(scatter.trace())
        identity = torch.eye(width).to(scatter)
        spread = scatter * (width / trace) if trace > 1e-12 else identity
        weights = torch.linalg.solve((1 - shrinkage) * spread + shrinkage * identity, means.mT).mT
    return Linear(weights, -(weights * means).sum(dim=-1) / 2)


SCORERS: Mapping[str, Callable[..., Scorer]] = {"prototypes": prototypes, "tip-adapter": tip_adapter, "gda": gda}


@dataclass(frozen=True)
class Fitted:
    """Logits of an image with features f: ``weight`` · scorer(f) + ``text_weight`` · text logits.

    Attributes:
        nll: of held-out examples, in nats per image; nan if none could be held out.
        shrinkage: ρ of ``gda``; None for others.
    """

    scorer: Scorer
    weight: float
    text_weight: float
    nll: float = float("nan")
    shrinkage: float | None = None

    def to(self, device: torch.device, dtype: torch.dtype) -> Fitted:
        """Move the scorer to a device."""
        return replace(self, scorer=self.scorer.to(device, dtype))


def fit_examples(
    init: str, features: Tensor, labels: Tensor, classes: int, *, logit_scale: float, texts: Tensor | None = None
) -> Fitted:
    """Fit a scorer to examples (N, D) with labels (N,), and its weights to held-out examples.

    Args:
        init: of :data:`SCORERS`.
        classes: C; each has an example.
        logit_scale: of the model; the weights are near it.
        texts: text logits (N, C) of the examples; None without texts.
    """
    fold = torch.from_numpy(stratified_folds(labels.numpy(), FOLDS))
    counts = torch.bincount(labels, minlength=classes)
    others = torch.stack([torch.bincount(labels[fold != k], minlength=classes) for k in range(FOLDS)])
    left = others[fold]  # (N, C): examples of each class without the fold of an example
    known = left.gather(1, labels[:, None])[:, 0] > 0
    starts = np.array([ALONE * logit_scale] if texts is None else [1.0, WITH_TEXTS * logit_scale])
    options: list[dict[str, float]] = [{"shrinkage": each} for each in SHRINKAGES] if init == "gda" else [{}]
    if not bool(known.any()):
        scorer = SCORERS[init](features, labels, classes, **options[-1])
        return Fitted(scorer, float(starts[-1]), float(starts[0]) if texts is not None else 0.0, **options[-1])
    best: tuple[float, Floats, dict[str, float]] | None = None
    for own in options:
        held_out = torch.empty(len(labels), classes, dtype=features.dtype)
        for k in fold.unique():
            inside = fold != k
            held_out[~inside] = SCORERS[init](features[inside], labels[inside], classes, **own)(features[~inside])
        terms = [held_out] if texts is None else [texts, held_out]
        seen = (left > 0)[known].numpy()
        nll, weights = fit_weights(torch.stack(terms)[:, known].numpy(), seen, labels[known].numpy(), starts)
        if best is None or nll < best[0]:
            best = nll, weights, own
    assert best is not None
    nll, weights, own = best
    n, fewer = (float(each.double().mean()) for each in (counts[labels[known]], left.gather(1, labels[:, None])[known]))
    weight = float(weights[-1]) * n / (n + 1) * (fewer + 1) / fewer
    scorer = SCORERS[init](features, labels, classes, **own)
    return Fitted(scorer, weight, float(weights[0]) if texts is not None else 0.0, nll, **own)


def fit_weights(
    terms: Floats, seen: npt.NDArray[np.bool_], labels: npt.NDArray[np.int64], starts: Floats
) -> tuple[float, Floats]:
    """Fit positive weights w (K,) of terms (K, N, C) to Σ_n −log softmax(Σ_k w_k·terms_k)[y_n] under a prior.

    log w is normal around log ``starts`` with standard deviation 1. Classes that were not ``seen`` (N, C) are no
    candidates. Returns the NLL per image, prior included, and w.
    """
    terms, rows = np.where(seen, terms, 0.0), np.arange(len(labels))

    def loss(point: Floats) -> tuple[float, Floats]:
        scaled = np.exp(point)[:, None, None] * terms
        logs = log_softmax(np.where(seen, scaled.sum(axis=0), -np.inf), axis=1)
        residual = np.exp(logs)
        residual[rows, labels] -= 1.0
        off = point - np.log(starts)
        gradient = np.array([(residual * each).sum() for each in scaled]) + off
        return float(-logs[rows, labels].sum() + off @ off / 2), gradient

    found = minimize(loss, np.log(starts), jac=True, method="L-BFGS-B", bounds=[(-12.0, 8.0)] * len(starts))
    return float(found.fun) / len(labels), np.exp(found.x)
