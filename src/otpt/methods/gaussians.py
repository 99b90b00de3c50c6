"""Gaussian class models carried from image to image: DOTA, OGA and ADAPT; see :mod:`otpt.methods.caches`."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from otpt.methods.caches import ClassCache, in_first_row, summarise
from otpt.objectives import select_fraction
from otpt.registry import Count, Fraction, NonNegative, Positive, Probability, adaptation

_START_MEAN = 0.001
_OGA_EPSILON = 1e-6
_MEAN_VIEWS = {"fine-grained": 0, "shift": 1}

_DOTA = {
    "dota_largest": {
        "imagenet": 0.2, "imagenet-a": 0.5, "imagenet-v2": 0.1, "imagenet-r": 0.3, "imagenet-sketch": 0.8,
        "caltech101": 0.3, "dtd": 0.3, "eurosat": 3, "aircraft": 0.2, "food101": 0.1, "flowers102": 0.2, "pets": 0.3,
        "cars": 0.3, "sun397": 0.2, "ucf101": 0.4, "others": 0.3,
    },
    "dota_rate": {
        "imagenet": 0.005, "imagenet-a": 0.02, "imagenet-v2": 0.01, "imagenet-r": 0.0025, "imagenet-sketch": 0.03,
        "caltech101": 0.02, "dtd": 0.02, "eurosat": 0.05, "aircraft": 0.01, "food101": 0.01, "flowers102": 0.02,
        "pets": 0.02, "cars": 0.01, "sun397": 0.01, "ucf101": 0.02, "others": 0.02,
    },
    "dota_shrinkage": {"caltech101": 2e-3, "food101": 4e-5, "others": 1e-4},
    "mean_views": _MEAN_VIEWS,
}  # fmt: skip

_ADAPT = {
    "adapt_weight": {
        "imagenet": 20, "imagenet-a": 40, "imagenet-v2": 30, "imagenet-r": 100, "imagenet-sketch": 20,
        "caltech101": 100, "dtd": 60, "eurosat": 100, "aircraft": 100, "food101": 100, "flowers102": 60, "pets": 100,
        "cars": 60, "sun397": 60, "ucf101": 70, "others": 60,
    },
    "mean_views": {"imagenet": 0, **_MEAN_VIEWS},
}  # fmt: skip


# The first image is predicted by I/σ², not by the shrunk covariance; all means are equal then, so that it is zero-shot.
@adaptation(
    views_if=("mean_views",),
    source="NeurIPS 2025, arXiv 2409.19375",
    caution="its weight, rate and shrinkage were published by data set and must be assumed to be chosen on the test "
    "images; --set dota-largest=0.3 dota-rate=0.02 dota-shrinkage=1e-4 takes the same everywhere.",
    settings=_DOTA,
)
def dota(
    features: Tensor,
    logits: Tensor,
    state: dict[str, Any],
    dota_largest: NonNegative = 0.3,
    dota_rate: NonNegative = 0.02,
    dota_shrinkage: Fraction = 1e-4,
    dota_variance: Positive = 0.002,
    mean_views: bool = False,
    stream_ratio: Fraction = 0.1,
) -> Tensor:
    """DOTA: a Gaussian per class, estimated from all images so far, each weighted by its probabilities.

    ℓ'_c = ℓ_c + w·(f·Λμ_c − ½ μ_c·Λμ_c), w = min(ρ·mean n_c/n, η), Λ = ((1 − ε)·mean_c Σ_c + ε·I)⁻¹.
    After the prediction the n views x that f is the mean of enter mean, covariance and count of each class:
    Σ_c ← (n_c Σ_c + Σ_i p_ic (x_i − μ_c)(x_i − μ_c)ᵀ)/(n_c + Σ_i p_ic), and likewise μ_c. They start at μ_c = 0.001
    everywhere, Σ_c = σ²·I, n_c = 1. The state holds C·D² numbers. ``dota_largest``, ``dota_rate``, ``dota_shrinkage``
    and ``dota_variance`` are η, ρ, ε and σ².
    """
    chosen = select_fraction(logits, stream_ratio) if mean_views else torch.zeros_like(logits[:1, 0], dtype=torch.long)
    views, width = features[chosen], features.shape[1]
    if not state:
        classes = logits.shape[1]
        identity = torch.eye(width).to(features)
        state["means"] = features.new_full((classes, width), _START_MEAN)
        state["counts"] = features.new_ones(classes)
        state["scatters"] = (dota_variance * identity).repeat(classes, 1, 1)  # n_c Σ_c
        state["covariance"] = dota_variance * identity  # mean over the classes
        state["factor"] = dota_variance**0.5 * identity
    means, counts = state["means"], state["counts"]
    rows, own = in_first_row(views.mean(dim=0), features), in_first_row(logits[chosen].mean(dim=0), logits)
    # with Λ = (LLᵀ)⁻¹ both terms are products of L⁻¹f and L⁻¹μ
    whitened = torch.linalg.solve_triangular(state["factor"], torch.cat([means, rows]).mT, upper=False).mT
    centres, points = whitened[: len(means)], whitened[len(means) :]
    weight = min(dota_rate * float(counts.mean()) / len(views), dota_largest)
    adapted = own + weight * (points @ centres.mT - centres.square().sum(dim=1) / 2)
    _update_gaussians(state, views, logits[chosen].softmax(dim=-1))
    shrunk = (1 - dota_shrinkage) * state["covariance"]
    shrunk.diagonal().add_(dota_shrinkage)
    state["factor"] = torch.linalg.cholesky(shrunk)
    return adapted


def _update_gaussians(state: dict[str, Any], views: Tensor, probabilities: Tensor) -> None:
    """Add views (n, D) to all classes with weights (n, C), skipping classes whose weights underflow."""
    added = probabilities.sum(dim=0)
    active = (added > torch.finfo(added.dtype).eps * 1e-3).nonzero()[:, 0]
    added, weights, classes = added[active], probabilities[:, active], len(state["counts"])
    means, before, scatters = state["means"][active], state["counts"][active], state["scatters"][active]
    after = before + added
    away = views[:, None] - means  # (n, active, D), of the old means
    shares = (weights / after).flatten()
    change = (away.flatten(end_dim=1) * shares[:, None]).mT @ away.flatten(end_dim=1)
    change -= ((added / (before * after)) @ scatters.flatten(start_dim=1)).view_as(change)
    state["covariance"] = state["covariance"] + change / classes
    state["scatters"][active] = scatters + torch.einsum("nc,nci,ncj->cij", weights, away, away)
    state["means"][active] = (before[:, None] * means + weights.mT @ views) / after[:, None]
    state["counts"][active] = after


@adaptation(needs_views=False, shared_texts=True, source="Fuchs et al., arXiv 2501.04352 (2025)")
@adaptation(
    name="oga-released",
    needs_views=False,
    shared_texts=True,
    summary="OGA as released: sums of stored features are divided by the capacity, not by their number.",
    source="Fuchs et al., arXiv 2501.04352 (2025), released code",
    settings={"oga_by_capacity": 1},
)
def oga(
    features: Tensor,
    logits: Tensor,
    text_features: Tensor,
    state: dict[str, Any],
    oga_capacity: Count = 8,
    oga_tau: NonNegative = 0.05,
    oga_by_capacity: bool = False,
) -> Tensor:
    """OGA: Gaussians of the most confident images of each class, one covariance for all.

    p ∝ softmax(ℓ)·softmax(τ·a), a_c = f·Λμ_c − ½ μ_c·Λμ_c (the term −½ f·Λf is the same for all classes).
    The image itself is stored first: up to 8 of smallest entropy per class. μ_c is the mean of the stored features of
    a class that has two or more, else its text. Λ is estimated from all stored features minus their μ_c
    (:func:`ridge_precision`; with more than 4D of them the inverse covariance) once a class has three, before D·I.
    ``oga_by_capacity`` divides the sums of features by the capacity, as the released code does.
    """
    classes, width = text_features.shape
    if not state:
        state["cache"] = ClassCache(classes, oga_capacity, [(width,)], like=features)
        _set_classifier(state, text_features, width * torch.eye(width).to(features))
    p = logits[0].softmax(dim=-1)
    entropy = -(p * (p + _OGA_EPSILON).log()).sum()
    if float(entropy) < math.log(classes):
        cache: ClassCache = state["cache"]
        cache.insert(int(logits[0].argmax()), entropy, features[0])
        stored = cache.present.sum(dim=1)
        divisor = stored.new_full((classes,), oga_capacity) if oga_by_capacity else stored
        sums = cache.values().sum(dim=1) / divisor.clamp(min=1)[:, None]
        means = torch.where(stored[:, None] >= 2, sums, text_features)
        precision = state["precision"]
        if int(stored.max()) > 2:
            residuals = (cache.values() - means[:, None])[cache.present]
            few = len(residuals) <= 4 * width
            precision = ridge_precision(residuals) if few else torch.linalg.pinv(residuals.mT.cov(), hermitian=True)
        _set_classifier(state, means, precision)
    return logits + oga_tau * _discriminant(state, features)


def ridge_precision(residuals: Tensor) -> Tensor:
    """Compute Λ = D·((n − 1)·S + tr(S)·I)⁻¹ (Kubokawa–Srivastava) of residuals (n, D) with covariance S: (D, D).

    For a single residual S = I. Λ has the scale of a precision only if n − 1 = D.
    """
    count, width = residuals.shape
    if count == 1:
        return torch.eye(width).to(residuals)
    centred = residuals - residuals.mean(dim=0)
    scatter = centred.mT @ centred
    trace = scatter.trace() / (count - 1)
    if not float(trace) > 0:  # equal residuals: the pseudo-inverse of 0
        return torch.zeros_like(scatter)
    scatter.diagonal().add_(trace)
    return width * torch.cholesky_inverse(torch.linalg.cholesky(scatter))


def _set_classifier(state: dict[str, Any], means: Tensor, precision: Tensor) -> None:
    weights = means @ precision
    state["precision"], state["weights"] = precision, weights
    state["biases"] = -(weights * means).sum(dim=1) / 2


def _discriminant(state: dict[str, Any], rows: Tensor) -> Tensor:
    """Return f·Λμ_c − ½ μ_c·Λμ_c: (V, D) → (V, C)."""
    found: Tensor = rows @ state["weights"].mT + state["biases"]
    return found


@adaptation(
    views_if=("mean_views",),
    shared_texts=True,
    source="NeurIPS 2025, arXiv 2508.15568 (ADAPT)",
    caution="its weight was published by data set and must be assumed to be chosen on the test images; --set "
    "adapt-weight=60 takes the same everywhere.",
    settings=_ADAPT,
)
@adaptation(
    name="adapt-gda-released",
    views_if=("mean_views",),
    shared_texts=True,
    summary="ADAPT as released: logits times exp(r/a), the image counted twice, an image that is not stored compared "
    "through the last one that was.",
    source="NeurIPS 2025, arXiv 2508.15568 (ADAPT), released code",
    caution="its weight was published by data set, and it multiplies logits, whose softmax is no probability.",
    settings={**_ADAPT, "adapt_released": 1},
)
def adapt_gda(
    features: Tensor,
    logits: Tensor,
    text_features: Tensor,
    state: dict[str, Any],
    adapt_weight: Positive = 60.0,
    adapt_capacity: Count = 16,
    adapt_mean: Probability = 0.9,
    adapt_released: bool = False,
    mean_views: bool = False,
    stream_ratio: Fraction = 0.1,
) -> Tensor:
    """ADAPT: Gaussian class models of a bank of confident images as a penalty on the logits.

    p ∝ exp(ℓ + r/a), r_c = log softmax(f·Λμ − ½ μ·Λμ)_c + a/(2M)·Σ_{g of c} (f·g)·p_c(g), of the M images g of a bank.
    The image itself is stored first: 16 of smallest entropy per class. The mean of its class k becomes
    α·Σ_g p_k(g) g/Σ_g p_k(g) + (1 − α)·e_k over the bank of k; Λ is :func:`ridge_precision` of the bank. a and α are
    ``adapt_weight`` and ``adapt_mean``. ``adapt_released`` predicts ℓ·exp(r/a) as the released code does, which adds
    the image to its class mean once more, and compares an image that is not stored with the bank through the last one
    that was.
    """
    image = summarise(features, logits, mean=mean_views, ratio=stream_ratio)
    classes, width = text_features.shape
    if not state:
        state["bank"] = ClassCache(classes, adapt_capacity, [(width,), ()], like=features)
        state["means"] = text_features.clone()
    bank, label = state["bank"], image.label
    full = bank.ranks[label].isfinite().sum() == adapt_capacity
    if not full or bool(image.entropy < bank.ranks[label].max()):
        sure = image.probabilities[label]
        bank.insert(label, image.entropy, image.feature, sure)
        weights, stored = bank.values(1)[label], bank.values()[label]
        again = float(adapt_released) * sure
        mean = (weights @ stored + again * image.feature) / (weights.sum() + again)
        state["means"][label] = adapt_mean * mean + (1 - adapt_mean) * text_features[label]
        precision = ridge_precision((bank.values() - state["means"][:, None])[bank.present])
        _set_classifier(state, state["means"], precision)
        state["last"] = image.feature
    rows, own = in_first_row(image.feature, features), in_first_row(image.logits, logits)
    near = in_first_row(state["last"], rows) if adapt_released else rows
    evidence = (near @ bank.values().flatten(end_dim=1).mT).unflatten(1, (classes, -1)) * bank.values(1)
    scores = _discriminant(state, rows).log_softmax(dim=-1)
    scores = scores + adapt_weight / (2 * int(bank.present.sum())) * evidence.sum(dim=-1)
    penalty = (scores - scores.amax(dim=-1, keepdim=True)) / adapt_weight
    return own * penalty.exp() if adapt_released else own + penalty
