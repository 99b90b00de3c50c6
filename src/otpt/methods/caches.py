"""Features and prototypes carried from image to image: TDA, BoostAdapter, DMN, BCA and DPE.

All stream methods, here and in the other modules, take the features (V, D) and zero-shot logits (V, C) of an image's
views, the clean view first, the text features (C, D) if they need them, and a ``state`` that is carried from image to
image, so that the order of images matters. In the formulas f, ℓ and p are feature, logits and probabilities of the
clean view; with ``mean_views`` they are means over the int(V·``stream_ratio``) most confident views. The result is
(V, C), logits or log p: the first row is the prediction, the others are the further views under the same state.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import normalize

from otpt.methods.tuner import adamw_first_step
from otpt.objectives import entropy_of_mean, select_fraction, view_entropies
from otpt.registry import Entries, Fraction, NonNegative, Positive, Probability, State, adaptation, carried

POSITIVE, NEGATIVE = 3, 2
"""Entries per class of the positive and of the negative cache."""

_DOUBTFUL = (0.2, 0.5)
_UNLIKELY = 0.03
_NEGATIVE_BETA = 1.0

# Published by data set; ImageNet's are the default. BoostAdapter has no delta for ImageNet; 1 is from a third-party
# benchmark.
CACHE_BETA = {
    "imagenet": 5, "imagenet-a": 5, "imagenet-v2": 8, "imagenet-r": 8, "imagenet-sketch": 7.45, "caltech101": 5,
    "dtd": 3, "eurosat": 8, "aircraft": 2, "food101": 1, "flowers102": 5, "pets": 7, "cars": 7, "sun397": 3,
    "ucf101": 8, "others": 5,
}  # fmt: skip
_TDA = {
    "cache_alpha": {
        "imagenet": 2, "imagenet-a": 2, "imagenet-v2": 1, "imagenet-r": 1, "imagenet-sketch": 2.363, "caltech101": 5,
        "dtd": 2, "eurosat": 4, "aircraft": 2, "food101": 1, "flowers102": 1, "pets": 2, "cars": 1, "sun397": 2,
        "ucf101": 3, "others": 2,
    },
    "cache_beta": CACHE_BETA,
    "mean_views": {"fine-grained": 0, "shift": 1},
}  # fmt: skip
_BOOST = {
    **_TDA,
    "boost_delta": {
        "imagenet": 1, "imagenet-a": 3, "imagenet-v2": 1, "imagenet-r": 3, "imagenet-sketch": 1, "caltech101": 2,
        "dtd": 0, "eurosat": 0, "aircraft": 2, "food101": 3, "flowers102": 0, "pets": 0, "cars": 3, "sun397": 1,
        "ucf101": 0, "others": 1,
    },
}  # fmt: skip
_BOOST_CAUTION = (
    "its alpha, beta and delta were published by data set and must be assumed to be chosen on the test images; --set "
    "cache-alpha=2 cache-beta=5 boost-delta=1 takes ImageNet's everywhere."
)


class ClassCache:
    """Cache of up to ``capacity`` entries per class, sorted by rank, all classes in one tensor.

    A full class accepts a new entry only if its rank is below the largest. The rank is the entropy, or a negative
    counter for a first-in, first-out cache.

    Args:
        shapes: of the tensors that an entry holds, such as [(D,)] for a feature.
        like: tensor whose dtype and device are used.
    """

    def __init__(self, classes: int, capacity: int, shapes: Sequence[tuple[int, ...]], *, like: Tensor) -> None:
        self._capacity = capacity
        self._filled = 0
        self._ranks = like.new_full((classes, capacity), math.inf)
        self._values = [like.new_zeros(classes, capacity, *shape) for shape in shapes]

    def insert(self, label: int, rank: Tensor, *values: Tensor) -> None:
        """Add an entry to a class."""
        ranks = torch.cat([self._ranks[label], rank[None]])
        order = ranks.argsort(stable=True)[: self._capacity]
        self._ranks[label] = ranks[order]
        for held, value in zip(self._values, values, strict=True):
            held[label] = torch.cat([held[label], value[None]])[order]
        self._filled = max(self._filled, int(self._ranks[label].isfinite().sum()))

    @property
    def ranks(self) -> Tensor:
        """Ranks (C, n), n the largest number of entries of a class; infinite for missing entries."""
        return self._ranks[:, : self._filled]

    @property
    def present(self) -> Tensor:
        """Mask (C, n) of existing entries."""
        return self.ranks.isfinite()

    def values(self, position: int = 0) -> Tensor:
        """Return the tensors (C, n, …) of the entries, 0 for missing entries."""
        return self._values[position][:, : self._filled]

    def affinities(self, features: Tensor, beta: float) -> Tensor:
        """Compute exp(−β(1 − f·g)) of features (V, D) and all cached features g: (V, C, n), 0 for missing entries."""
        return affinity(features, self.values(), beta) * self.present


def affinity(features: Tensor, others: Tensor, beta: float) -> Tensor:
    """Compute exp(−β(1 − f·g)) of all pairs of features f (V, D) and g (…, D): (V, …)."""
    cosines = features @ others.flatten(end_dim=-2).mT
    return (beta * (cosines - 1)).exp().unflatten(1, others.shape[:-1])


@dataclass(frozen=True)
class ImageSummary:
    """Feature f, logits ℓ and probabilities p of an image.

    Attributes:
        feature: (D,); a mean over views is not normalised.
        logits: (C,).
        probabilities: (C,), the mean softmax of the views.
        entropy: (), H = −Σ_c p_c log p_c of ``probabilities``, in nats.
    """

    feature: Tensor
    logits: Tensor
    probabilities: Tensor
    entropy: Tensor

    @property
    def label(self) -> int:
        """Pseudo-label, the argmax of the logits."""
        return int(self.logits.argmax())


def summarise(features: Tensor, logits: Tensor, *, mean: bool, ratio: float) -> ImageSummary:
    """Summarise the clean view of (V, D) and (V, C), or with ``mean`` the int(V·ratio) views of smallest entropy."""
    chosen = select_fraction(logits, ratio) if mean else torch.zeros(1, dtype=torch.long, device=logits.device)
    return ImageSummary(
        features[chosen].mean(dim=0),
        logits[chosen].mean(dim=0),
        logits[chosen].softmax(dim=-1).mean(dim=0),
        entropy_of_mean(logits[chosen]),
    )


@adaptation(
    views_if=("mean_views",),
    source="Karmanov et al., CVPR 2024",
    caution="its alpha and beta were published by data set and must be assumed to be chosen on the test images; --set "
    "cache-alpha=2 cache-beta=5 takes ImageNet's everywhere.",
    settings=_TDA,
)
def tda(
    features: Tensor,
    logits: Tensor,
    state: State,
    cache_alpha: NonNegative = 2.0,
    cache_beta: NonNegative = 5.0,
    negative_weight: NonNegative = 0.117,
    mean_views: bool = False,
    stream_ratio: Fraction = 0.1,
) -> Tensor:
    """TDA: a cache of confident images adds to the logits of similar ones, one of doubtful images subtracts.

    ℓ'_c = ℓ_c + α Σ_{g of c} exp(−β(1 − f·g)) − 0.117 Σ_{(g, q)} exp(−(1 − f·g))·[0.03 < q_c < 1].
    g are the features of the positive cache (3 a class, of smallest entropy H), (g, q) features and probabilities of
    the negative one (2 a class). The image itself enters before it is predicted: the positive cache of its
    pseudo-label, and the negative one if 0.2 < H/log₂C < 0.5.
    """
    image = summarise(features, logits, mean=mean_views, ratio=stream_ratio)
    positive = positive_cache(state, image)
    rows = in_first_row(image.feature, features)
    initial = in_first_row(image.logits, logits)
    adapted = initial + cache_alpha * positive.affinities(rows, cache_beta).sum(dim=-1)
    negative = negative_cache(state, image, image.entropy)
    return adapted - negative_weight * negative_term(negative, rows)


def positive_cache(state: State, image: ImageSummary) -> ClassCache:
    """Insert the image into the positive cache and return the cache."""

    def empty() -> ClassCache:
        return ClassCache(len(image.logits), POSITIVE, [image.feature.shape], like=image.feature)

    cache = carried(state, "positive", empty)
    cache.insert(image.label, image.entropy, image.feature)
    return cache


def negative_cache(state: State, image: ImageSummary, rank: Tensor) -> ClassCache:
    """Insert the image, if doubtful, into the negative cache of features and likely classes; return the cache."""

    def empty() -> ClassCache:
        shapes = [image.feature.shape, image.logits.shape]
        return ClassCache(len(image.logits), NEGATIVE, shapes, like=image.feature)

    cache = carried(state, "negative", empty)
    if doubtful(image):
        likely = (image.probabilities > _UNLIKELY) & (image.probabilities < 1)
        cache.insert(image.label, rank, image.feature, likely.to(image.feature))
    return cache


def doubtful(image: ImageSummary) -> bool:
    """Return whether 0.2 < η < 0.5, η = H/log₂C; H is in nats, so η is at most ln 2 = 0.693."""
    low, high = (bound * math.log2(len(image.logits)) for bound in _DOUBTFUL)
    return low < float(image.entropy) < high


def negative_term(cache: ClassCache, rows: Tensor) -> Tensor:
    """Compute Σ exp(−(1 − f·g))·[0.03 < q_c < 1] over all entries (g, q): (V, D) → (V, C)."""
    affinities = cache.affinities(rows, _NEGATIVE_BETA)
    return affinities.flatten(start_dim=1) @ cache.values(1).flatten(end_dim=1)


def in_first_row(row: Tensor, rows: Tensor) -> Tensor:
    """Replace the first of ``rows`` (V, …)."""
    return torch.cat([row[None], rows[1:]])


@dataclass(frozen=True)
class BoostSettings:
    """Settings of BoostAdapter."""

    cache_alpha: NonNegative = 2.0
    cache_beta: NonNegative = 5.0
    boost_delta: Annotated[int, Field(ge=0)] = 1
    negative_weight: NonNegative = 0.117
    mean_views: bool = False
    stream_ratio: Fraction = 0.1


@adaptation(source="Zhang et al., NeurIPS 2024", caution=_BOOST_CAUTION, settings=_BOOST)
def boostadapter(features: Tensor, logits: Tensor, state: State, settings: BoostSettings = BoostSettings()) -> Tensor:
    """BoostAdapter: TDA whose cache also takes the most confident views of the image itself.

    The positive term is read from a copy of the cache. The copy takes the int(V·``stream_ratio``) views of smallest
    entropy, each under its own label, retains the 3 + δ entries of smallest entropy of each class, and is then
    discarded; δ is ``boost_delta``. The negative cache is first in, first out.
    """
    image = summarise(features, logits, mean=settings.mean_views, ratio=settings.stream_ratio)
    positive = positive_cache(state, image)
    chosen = select_fraction(logits, settings.stream_ratio)
    labels, entropies = logits[chosen].argmax(dim=-1), view_entropies(logits[chosen])
    history, views = _kept(positive.ranks, labels, entropies, POSITIVE + settings.boost_delta)
    rows = in_first_row(image.feature, features)
    initial = in_first_row(image.logits, logits)
    near = (positive.affinities(rows, settings.cache_beta) * history).sum(dim=-1)
    near = near.index_add(1, labels, affinity(rows, features[chosen], settings.cache_beta) * views)
    images = carried(state, "images", int) + 1
    state["images"] = images
    negative = negative_cache(state, image, image.entropy.new_tensor(-images))
    return initial + settings.cache_alpha * near - settings.negative_weight * negative_term(negative, rows)


@adaptation(source="Zhang et al., NeurIPS 2024", caution=_BOOST_CAUTION, settings=_BOOST)
def boost(features: Tensor, logits: Tensor, settings: BoostSettings = BoostSettings()) -> Tensor:
    """BoostAdapter without history: the cache holds the image's own views, each image alone."""
    return boostadapter(features, logits, {}, settings)


def _kept(ranks: Tensor, labels: Tensor, entropies: Tensor, capacity: int) -> tuple[Tensor, Tensor]:
    """Return masks of the entries (C, n) and the views (k,) among the ``capacity`` lowest ranks of each class."""
    history, views = ranks.isfinite(), torch.ones_like(labels, dtype=torch.bool)
    for label in labels.unique().tolist():
        here = (labels == label).nonzero()[:, 0]
        order = torch.cat([ranks[label], entropies[here]]).argsort(stable=True)
        kept = torch.zeros_like(order, dtype=torch.bool)
        kept[order[:capacity]] = True
        history[label] &= kept[: ranks.shape[1]]
        views[here] = kept[ranks.shape[1] :]
    return history, views


@dataclass(frozen=True)
class MemorySettings:
    """Settings of DMN."""

    memory_weight: NonNegative = 1.0
    memory_beta: NonNegative = 5.5
    memory_size: Entries = 50
    stream_ratio: Fraction = 0.1


# The released script tries 13 values of the weight on the labels of the test images; here it is always 1.
@adaptation(source="Zhang et al., CVPR 2024")
def dmn(
    features: Tensor,
    logits: Tensor,
    text_features: Tensor,
    logit_scale: float,
    state: State,
    settings: MemorySettings = MemorySettings(),
) -> Tensor:
    """DMN, its training-free part: a memory of 50 features per class, read again for each image.

    p = (p_0 + b·p_d)/(1 + b) with p_d = softmax(s·f·g_c), g_c = unit(Σ_m exp(−5.5(1 − f·m))·m) of the clean view's f
    and p_0. m are the features in the memory of class c (50, of smallest entropy) and the class's text. f is written
    before the memory is read, under label and entropy of the mean prediction over the int(V·``stream_ratio``) most
    confident views. Returns log p.
    """

    def empty() -> ClassCache:
        return ClassCache(len(text_features), settings.memory_size, [features[0].shape], like=features)

    memory = carried(state, "memory", empty)
    image = summarise(features, logits, mean=True, ratio=settings.stream_ratio)
    memory.insert(int(image.probabilities.argmax()), image.entropy, features[0])
    read = normalize(_read(memory, text_features, features[:1], settings.memory_beta), dim=-1)
    dynamic = (logit_scale * features @ read.mT).log_softmax(dim=-1)
    weight = settings.memory_weight
    if weight == 0:
        return logits.log_softmax(dim=-1)
    mixed = torch.logaddexp(logits.log_softmax(dim=-1), dynamic + math.log(weight))
    return mixed - math.log1p(weight)


def _read(memory: ClassCache, text_features: Tensor, feature: Tensor, beta: float) -> Tensor:
    """Compute Σ_m exp(−β(1 − f·m))·m over the memory of each class and its text: f (1, D) → (C, D).

    Uses batched products over the classes, since copying a memory of 1000 classes for each image is too slow.
    """
    stored = memory.values()
    cosines = torch.bmm(stored, feature.mT.expand(len(stored), -1, -1))[..., 0]
    weights = (beta * (cosines - 1)).exp() * memory.present
    of_text = affinity(feature, text_features, beta)[0]
    return torch.bmm(weights[:, None], stored)[:, 0] + of_text[:, None] * text_features


# ---- class prototypes that evolve from image to image ----------------------------------------------------------------

_CONTRAST_TEMPERATURE = 0.01
_CONFIDENT = 0.1

_DPE = {
    "cache_alpha": {
        "imagenet": 6, "imagenet-a": 6, "imagenet-v2": 3, "imagenet-r": 3, "imagenet-sketch": 7, "caltech101": 15,
        "dtd": 6, "eurosat": 3, "aircraft": 6, "food101": 3, "flowers102": 2.5, "pets": 4, "cars": 3, "sun397": 6,
        "ucf101": 9, "others": 6,
    },
    "cache_beta": CACHE_BETA,
    "dpe_rate": {
        "imagenet": 6e-4, "imagenet-a": 3e-4, "imagenet-v2": 5e-4, "imagenet-r": 6e-4, "imagenet-sketch": 6e-4,
        "caltech101": 6e-4, "dtd": 6e-4, "eurosat": 0.5e-4, "aircraft": 6e-4, "food101": 2e-4, "flowers102": 1e-4,
        "pets": 0.5e-4, "cars": 1e-4, "sun397": 2e-4, "ucf101": 4e-4, "others": 6e-4,
    },
    "dpe_contrast": {
        "imagenet": 0.5, "imagenet-a": 2.5, "imagenet-v2": 0.5, "imagenet-r": 0, "imagenet-sketch": 0.2,
        "caltech101": 0.2, "dtd": 0.2, "eurosat": 0.2, "aircraft": 0.2, "food101": 0.2, "flowers102": 0.2,
        "pets": 0.2, "cars": 1.5, "sun397": 0.2, "ucf101": 0.2, "others": 0.5,
    },
    "mean_views": {"imagenet": 1, "shift": 1, "others": 0},
    "mean_prediction": {"imagenet-a": 1, "others": 0},
}  # fmt: skip


@dataclass(frozen=True)
class BcaSettings:
    """Settings of BCA: the initial count n, and the probabilities from which centres and matrix are updated."""

    bca_count: Positive = 20000.0
    bca_centre_from: Probability = 0.05
    bca_matrix_from: Probability = 0.65
    mean_views: bool = False
    stream_ratio: Fraction = 0.1


@dataclass
class _ClassCentres:
    """State of BCA: centres μ (C, D) with counts n (C,), and the matrix Q (C, C) with counts k (C,)."""

    centres: Tensor
    matrix: Tensor
    seen: Tensor
    confident: Tensor

    @classmethod
    def of_texts(cls, text_features: Tensor, count: float) -> _ClassCentres:
        """Return the centres before the first image."""
        classes = len(text_features)
        return cls(
            text_features.clone(),
            torch.eye(classes).to(text_features),
            text_features.new_full((classes,), count),
            text_features.new_ones(classes),
        )


@adaptation(
    views_if=("mean_views",),
    shared_texts=True,
    source="Zhou et al., CVPR 2025; constants of a third party",
    settings={"mean_views": {"fine-grained": 0, "shift": 1}},
)
def bca(
    features: Tensor,
    logits: Tensor,
    text_features: Tensor,
    logit_scale: float,
    state: State,
    settings: BcaSettings = BcaSettings(),
) -> Tensor:
    """BCA: class centres and a class-to-class matrix that follow the predictions.

    p ∝ softmax(s·f·μ)·Q, of centres μ_c that start at the texts and a matrix Q (C, C) that starts at I.
    After the prediction, with ĉ = arg max p:  μ_ĉ ← unit((n μ_ĉ + f)/(n + 1)), n ← n + 1 if p_ĉ > 0.05, n from 20000;
    Q_ĉ ← (k Q_ĉ + p)/(k + 1), k ← k + 1 if p_ĉ > 0.65, k from 1. Returns log p.
    """
    classes = carried(state, "classes", lambda: _ClassCentres.of_texts(text_features, settings.bca_count))
    image = summarise(features, logits, mean=settings.mean_views, ratio=settings.stream_ratio)
    rows = in_first_row(image.feature, features)
    probabilities = (logit_scale * rows @ classes.centres.mT).softmax(dim=-1) @ classes.matrix
    probabilities = probabilities / probabilities.sum(dim=-1, keepdim=True)
    label = int(probabilities[0].argmax())
    confidence = float(probabilities[0].max())
    if confidence > settings.bca_centre_from:
        count = classes.seen[label]
        mean = (count * classes.centres[label] + rows[0]) / (count + 1)
        classes.centres[label] = mean / mean.norm()
        classes.seen[label] += 1
    if confidence > settings.bca_matrix_from:
        count = classes.confident[label]
        classes.matrix[label] = (count * classes.matrix[label] + probabilities[0]) / (count + 1)
        classes.confident[label] += 1
    return probabilities.clamp_min(torch.finfo(probabilities.dtype).tiny).log()


@dataclass(frozen=True)
class DpeSettings:
    """Settings of DPE: α, β, the rate of the step, the weight of InfoNCE, and which views are averaged."""

    cache_alpha: NonNegative = 6.0
    cache_beta: NonNegative = 5.0
    dpe_rate: NonNegative = 6e-4
    dpe_contrast: NonNegative = 0.5
    mean_views: bool = False
    mean_prediction: bool = False
    stream_ratio: Fraction = 0.1


@adaptation(
    views_if=("mean_views", "mean_prediction"),
    shared_texts=True,
    source="Zhang et al., NeurIPS 2024 (DPE)",
    caution="its alpha, beta, rate and contrast were published by data set and must be assumed to be chosen on the "
    "test images; --set cache-alpha=6 cache-beta=5 dpe-rate=6e-4 dpe-contrast=0.5 takes ImageNet's everywhere.",
    settings=_DPE,
)
def dpe(
    features: Tensor,
    logits: Tensor,
    text_features: Tensor,
    logit_scale: float,
    state: State,
    settings: DpeSettings = DpeSettings(),
) -> Tensor:
    """DPE: text and image prototypes that evolve together, with one step on residuals for each image.

    ℓ_c = s·f·t_c + α·exp(−β(1 − f·k_c)), of prototypes t and k after one step on their residuals. k_c is the mean of
    the features in the cache of class c (TDA's positive cache, which the image enters first); a class without any has
    no second term. One AdamW step (ε = 1e-3) from residuals of 0, with t = unit(T + R_T) and k = unit(K + R_K),
    minimises the entropy of softmax(ℓ) plus a·InfoNCE: the mean over the cached classes of −log softmax(k_c·t/0.01)_c.
    If then H/log₂C < 0.1, T ← (n T + t)/(n + 1), n ← n + 1, n from 1: a plain mean, normalised where it is used.
    Cache and step take the views that are most confident under T with ``mean_views``, the prediction those under t
    with ``mean_prediction``.
    """
    ratio = settings.stream_ratio
    texts = carried(state, "texts", text_features.clone)
    current = logit_scale * features @ normalize(texts, dim=-1).mT
    image = summarise(features, current, mean=settings.mean_views, ratio=ratio)
    cache = positive_cache(state, image)
    some = cache.present.any(dim=-1)
    means = cache.values()[some].sum(dim=1) / cache.present[some].sum(dim=-1, keepdim=True)

    def scores(rows: Tensor, texts: Tensor, images: Tensor) -> Tensor:
        near = rows.new_zeros(len(rows), len(texts))
        near[:, some] = affinity(rows, images, settings.cache_beta)
        return logit_scale * rows @ texts.mT + settings.cache_alpha * near

    def loss(texts: Tensor, images: Tensor) -> Tensor:
        entropy = entropy_of_mean(scores(image.feature[None], texts, images))
        if not settings.dpe_contrast:
            return entropy
        similarities = images @ texts[some].mT / _CONTRAST_TEMPERATURE
        return entropy - settings.dpe_contrast * similarities.log_softmax(dim=-1).diagonal().mean()

    tuned, tuned_images = _residual_step(loss, (texts, means), settings.dpe_rate)
    chosen = summarise(features, logit_scale * features @ tuned.mT, mean=settings.mean_prediction, ratio=ratio)
    adapted = scores(in_first_row(chosen.feature, features), tuned, tuned_images)
    if float(entropy_of_mean(adapted[:1])) < _CONFIDENT * math.log2(len(texts)):
        count = carried(state, "count", lambda: 1)
        state["texts"] = (count * texts + tuned) / (count + 1)
        state["count"] = count + 1
    return adapted


def _residual_step(loss: Callable[..., Tensor], prototypes: Sequence[Tensor], rate: float) -> list[Tensor]:
    """Return unit(P + R) of prototypes P after one AdamW step on residuals R from 0."""
    zeros = [torch.zeros_like(prototype) for prototype in prototypes]
    with torch.enable_grad():
        residuals = [zero.clone().requires_grad_() for zero in zeros]
        pairs = zip(prototypes, residuals, strict=True)
        value = loss(*(normalize(prototype + residual, dim=-1) for prototype, residual in pairs))
    tuned = []
    for prototype, zero, gradient in zip(prototypes, zeros, torch.autograd.grad(value, residuals), strict=True):
        step = adamw_first_step(zero, gradient, learning_rate=rate, weight_decay=0.1, epsilon=1e-3)
        tuned.append(normalize(prototype + step, dim=-1))
    return tuned
