"""Gaussian class models carried from image to image: DOTA, OGA and ADAPT; see :mod:`otpt.methods.caches`."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from otpt.methods.caches import ClassCache, in_first_row, summarise
from otpt.objectives import select_fraction
from otpt.registry import Entries, Fraction, NonNegative, Positive, Probability, State, adaptation, carried

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


@dataclass(frozen=True)
class DotaSettings:
    """Settings of DOTA: η, ρ, ε and σ²."""

    dota_largest: NonNegative = 0.3
    dota_rate: NonNegative = 0.02
    dota_shrinkage: Fraction = 1e-4
    dota_variance: Positive = 0.002
    mean_views: bool = False
    stream_ratio: Fraction = 0.1


@dataclass
class _Gaussians:
    """State of DOTA.

    Attributes:
        means: (C, D), μ_c.
        counts: (C,), n_c.
        scatters: (C, D, D), n_c Σ_c.
        covariance: (D, D), mean of Σ_c over the classes.
        factor: (D, D), Cholesky factor of the shrunk covariance.
    """

    means: Tensor
    counts: Tensor
    scatters: Tensor
    covariance: Tensor
    factor: Tensor

    @classmethod
    def initial(cls, classes: int, variance: float, like: Tensor) -> _Gaussians:
        """Return the Gaussians before the first image, in the type and width of features ``like`` (V, D)."""
        width = like.shape[1]
        identity = torch.eye(width).to(like)
        return cls(
            means=like.new_full((classes, width), _START_MEAN),
            counts=like.new_ones(classes),
            scatters=(variance * identity).repeat(classes, 1, 1),
            covariance=variance * identity,
            factor=variance**0.5 * identity,
        )

    def add(self, views: Tensor, probabilities: Tensor) -> None:
        """Add views (n, D) to all classes with weights (n, C), skipping classes whose weights underflow."""
        added = probabilities.sum(dim=0)
        active = (added > torch.finfo(added.dtype).eps * 1e-3).nonzero()[:, 0]
        added, weights, classes = added[active], probabilities[:, active], len(self.counts)
        means, before, scatters = self.means[active], self.counts[active], self.scatters[active]
        after = before + added
        away = views[:, None] - means  # (n, active, D), of the old means
        shares = (weights / after).flatten()
        change = (away.flatten(end_dim=1) * shares[:, None]).mT @ away.flatten(end_dim=1)
        change -= ((added / (before * after)) @ scatters.flatten(start_dim=1)).view_as(change)
        self.covariance = self.covariance + change / classes
        self.scatters[active] = scatters + torch.einsum("nc,nci,ncj->cij", weights, away, away)
        self.means[active] = (before[:, None] * means + weights.mT @ views) / after[:, None]
        self.counts[active] = after


# The first image is predicted by I/σ², not by the shrunk covariance; all means are equal then, so that it is zero-shot.
@adaptation(
    views_if=("mean_views",),
    source="NeurIPS 2025, arXiv 2409.19375",
    caution="its weight, rate and shrinkage were published by data set and must be assumed to be chosen on the test "
    "images; --set dota-largest=0.3 dota-rate=0.02 dota-shrinkage=1e-4 takes the same everywhere.",
    settings=_DOTA,
)
def dota(features: Tensor, logits: Tensor, state: State, settings: DotaSettings = DotaSettings()) -> Tensor:
    """DOTA: a Gaussian per class, estimated from all images so far, each weighted by its probabilities.

    ℓ'_c = ℓ_c + w·(f·Λμ_c − ½ μ_c·Λμ_c), w = min(ρ·mean n_c/n, η), Λ = ((1 − ε)·mean_c Σ_c + ε·I)⁻¹.
    After the prediction the n views x that f is the mean of enter mean, covariance and count of each class:
    Σ_c ← (n_c Σ_c + Σ_i p_ic (x_i − μ_c)(x_i − μ_c)ᵀ)/(n_c + Σ_i p_ic), and likewise μ_c. They start at μ_c = 0.001
    everywhere, Σ_c = σ²·I, n_c = 1. The state holds C·D² numbers. ``dota_largest``, ``dota_rate``, ``dota_shrinkage``
    and ``dota_variance`` are η, ρ, ε and σ².
    """
    chosen = torch.zeros_like(logits[:1, 0], dtype=torch.long)
    if settings.mean_views:
        chosen = select_fraction(logits, settings.stream_ratio)
    views = features[chosen]
    classes = logits.shape[1]
    gaussians = carried(state, "gaussians", lambda: _Gaussians.initial(classes, settings.dota_variance, features))
    rows = in_first_row(views.mean(dim=0), features)
    initial = in_first_row(logits[chosen].mean(dim=0), logits)
    # with Λ = (LLᵀ)⁻¹ both terms are products of L⁻¹f and L⁻¹μ
    both = torch.cat([gaussians.means, rows])
    whitened = torch.linalg.solve_triangular(gaussians.factor, both.mT, upper=False).mT
    centres, points = whitened[:classes], whitened[classes:]
    weight = min(settings.dota_rate * float(gaussians.counts.mean()) / len(views), settings.dota_largest)
    adapted = initial + weight * (points @ centres.mT - centres.square().sum(dim=1) / 2)
    gaussians.add(views, logits[chosen].softmax(dim=-1))
    shrunk = (1 - settings.dota_shrinkage) * gaussians.covariance
    shrunk.diagonal().add_(settings.dota_shrinkage)
    gaussians.factor = torch.linalg.cholesky(shrunk)
    return adapted


@dataclass(frozen=True)
class _Discriminant:
    """Linear discriminant of Gaussians with means μ (C, D) and a common precision Λ (D, D).

    Attributes:
        precision: (D, D), Λ.
        weights: (C, D), Λμ_c.
        biases: (C,), −½ μ_c·Λμ_c.
    """

    precision: Tensor
    weights: Tensor
    biases: Tensor

    @classmethod
    def of(cls, means: Tensor, precision: Tensor) -> _Discriminant:
        """Return the discriminant of means and a precision."""
        weights = means @ precision
        return cls(precision, weights, -(weights * means).sum(dim=1) / 2)

    def __call__(self, rows: Tensor) -> Tensor:
        """Return f·Λμ_c − ½ μ_c·Λμ_c: (V, D) → (V, C)."""
        return rows @ self.weights.mT + self.biases


@dataclass
class _StoredImages:
    """State of OGA: the stored images and the discriminant of their Gaussians."""

    cache: ClassCache
    discriminant: _Discriminant


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
    state: State,
    oga_capacity: Entries = 8,
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

    def empty() -> _StoredImages:
        discriminant = _Discriminant.of(text_features, width * torch.eye(width).to(features))
        return _StoredImages(ClassCache(classes, oga_capacity, [(width,)], like=features), discriminant)

    stream = carried(state, "stored", empty)
    p = logits[0].softmax(dim=-1)
    entropy = -(p * (p + _OGA_EPSILON).log()).sum()
    if float(entropy) < math.log(classes):
        cache = stream.cache
        cache.insert(int(logits[0].argmax()), entropy, features[0])
        stored = cache.present.sum(dim=1)
        divisor = stored.new_full((classes,), oga_capacity) if oga_by_capacity else stored
        sums = cache.values().sum(dim=1) / divisor.clamp(min=1)[:, None]
        means = torch.where(stored[:, None] >= 2, sums, text_features)
        precision = stream.discriminant.precision
        if int(stored.max()) > 2:
            residuals = (cache.values() - means[:, None])[cache.present]
            few = len(residuals) <= 4 * width
            precision = ridge_precision(residuals) if few else torch.linalg.pinv(residuals.mT.cov(), hermitian=True)
        stream.discriminant = _Discriminant.of(means, precision)
    return logits + oga_tau * stream.discriminant(features)


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


@dataclass(frozen=True)
class AdaptSettings:
    """Settings of ADAPT: the weight a, the capacity of the bank, α, and whether to follow the released code."""

    adapt_weight: Positive = 60.0
    adapt_capacity: Entries = 16
    adapt_mean: Probability = 0.9
    adapt_released: bool = False
    mean_views: bool = False
    stream_ratio: Fraction = 0.1


@dataclass
class _Bank:
    """State of ADAPT.

    Attributes:
        images: stored features with the probabilities of their labels.
        means: (C, D), means of the classes.
        discriminant: of the means; None before the first image.
        last: (D,), feature of the last stored image; None before it.
    """

    images: ClassCache
    means: Tensor
    discriminant: _Discriminant | None = None
    last: Tensor | None = None


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
    state: State,
    settings: AdaptSettings = AdaptSettings(),
) -> Tensor:
    """ADAPT: Gaussian class models of a bank of confident images as a penalty on the logits.

    p ∝ exp(ℓ + r/a), r_c = log softmax(f·Λμ − ½ μ·Λμ)_c + a/(2M)·Σ_{g of c} (f·g)·p_c(g), of the M images g of a bank.
    The image itself is stored first: 16 of smallest entropy per class. The mean of its class k becomes
    α·Σ_g p_k(g) g/Σ_g p_k(g) + (1 − α)·e_k over the bank of k; Λ is :func:`ridge_precision` of the bank. a and α are
    ``adapt_weight`` and ``adapt_mean``. ``adapt_released`` predicts ℓ·exp(r/a) as the released code does, which adds
    the image to its class mean once more, and compares an image that is not stored with the bank through the last one
    that was.
    """
    image = summarise(features, logits, mean=settings.mean_views, ratio=settings.stream_ratio)
    classes, width = text_features.shape

    def empty() -> _Bank:
        images = ClassCache(classes, settings.adapt_capacity, [(width,), ()], like=features)
        return _Bank(images, text_features.clone())

    bank = carried(state, "bank", empty)
    images, label = bank.images, image.label
    full = images.ranks[label].isfinite().sum() == settings.adapt_capacity
    if not full or bool(image.entropy < images.ranks[label].max()):
        confidence = image.probabilities[label]
        images.insert(label, image.entropy, image.feature, confidence)
        weights, stored = images.values(1)[label], images.values()[label]
        again = float(settings.adapt_released) * confidence
        mean = (weights @ stored + again * image.feature) / (weights.sum() + again)
        bank.means[label] = settings.adapt_mean * mean + (1 - settings.adapt_mean) * text_features[label]
        precision = ridge_precision((images.values() - bank.means[:, None])[images.present])
        bank.discriminant = _Discriminant.of(bank.means, precision)
        bank.last = image.feature
    assert bank.discriminant is not None
    assert bank.last is not None
    rows = in_first_row(image.feature, features)
    initial = in_first_row(image.logits, logits)
    near = in_first_row(bank.last, rows) if settings.adapt_released else rows
    evidence = (near @ images.values().flatten(end_dim=1).mT).unflatten(1, (classes, -1)) * images.values(1)
    scores = bank.discriminant(rows).log_softmax(dim=-1)
    scores = scores + settings.adapt_weight / (2 * int(images.present.sum())) * evidence.sum(dim=-1)
    penalty = (scores - scores.amax(dim=-1, keepdim=True)) / settings.adapt_weight
    return initial * penalty.exp() if settings.adapt_released else initial + penalty
