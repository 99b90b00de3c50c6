"""Class prototypes that evolve from image to image: BCA and DPE. The order of images matters."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from otpt.methods.caches import CACHE_BETA, ClassCache, affinity, in_first_row, positive_cache, summarise
from otpt.methods.prompt_tuning.tuner import adamw_first_step
from otpt.objectives import entropy_of_mean
from otpt.registry import Fraction, NonNegative, Positive, Probability, adaptation

_EPSILON = 1e-3
_DECAY = 0.1
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
    state: dict[str, Any],
    bca_count: Positive = 20000.0,
    bca_centre_from: Probability = 0.05,
    bca_matrix_from: Probability = 0.65,
    mean_views: bool = False,
    stream_ratio: Fraction = 0.1,
) -> Tensor:
    """BCA: class centres and a class-to-class matrix that follow the predictions.

    p ∝ softmax(s·f·μ)·Q, of centres μ_c that start at the texts and a matrix Q (C, C) that starts at I.
    After the prediction, with ĉ = arg max p:  μ_ĉ ← unit((n μ_ĉ + f)/(n + 1)), n ← n + 1 if p_ĉ > 0.05, n from 20000;
    Q_ĉ ← (k Q_ĉ + p)/(k + 1), k ← k + 1 if p_ĉ > 0.65, k from 1.

    Args:
        features, logits, text_features: (V, D), (V, C) and (C, D). f is that of the clean view, or with ``mean_views``
            the mean over the int(V·``stream_ratio``) most confident views.
        state: centres, matrix, and counts for each class.

    Returns:
        log p, (V, C): the first row is the prediction, the others are the further views with the same μ and Q.
    """
    if not state:
        classes = len(text_features)
        state["centres"], state["matrix"] = text_features.clone(), torch.eye(classes).to(text_features)
        state["seen"], state["sure"] = text_features.new_full((classes,), bca_count), text_features.new_ones(classes)
    rows = in_first_row(summarise(features, logits, mean=mean_views, ratio=stream_ratio).feature, features)
    probabilities = (logit_scale * rows @ state["centres"].mT).softmax(dim=-1) @ state["matrix"]
    probabilities = probabilities / probabilities.sum(dim=-1, keepdim=True)
    _update(state, rows[0], probabilities[0], bca_centre_from, bca_matrix_from)
    return probabilities.clamp_min(torch.finfo(probabilities.dtype).tiny).log()


def _update(
    state: dict[str, Any], feature: Tensor, probabilities: Tensor, centre_from: float, matrix_from: float
) -> None:
    label = int(probabilities.argmax())
    confidence = float(probabilities[label])
    if confidence > centre_from:
        count = state["seen"][label]
        mean = (count * state["centres"][label] + feature) / (count + 1)
        state["centres"][label] = mean / mean.norm()
        state["seen"][label] += 1
    if confidence > matrix_from:
        count = state["sure"][label]
        state["matrix"][label] = (count * state["matrix"][label] + probabilities) / (count + 1)
        state["sure"][label] += 1


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
    state: dict[str, Any],
    cache_alpha: NonNegative = 6.0,
    cache_beta: NonNegative = 5.0,
    dpe_rate: NonNegative = 6e-4,
    dpe_contrast: NonNegative = 0.5,
    mean_views: bool = False,
    mean_prediction: bool = False,
    stream_ratio: Fraction = 0.1,
) -> Tensor:
    """DPE: text and image prototypes that evolve together, with one step on residuals for each image.

    ℓ_c = s·f·t_c + α·exp(−β(1 − f·k_c)), of prototypes t and k after one step on their residuals. k_c is the mean of
    the features in the cache of class c (TDA's positive cache, which the image enters first); a class without any has
    no second term. One AdamW step (ε = 1e-3) from residuals of 0, with t = unit(T + R_T) and k = unit(K + R_K),
    minimises the entropy of softmax(ℓ) plus a·InfoNCE: the mean over the cached classes of −log softmax(k_c·t/0.01)_c.
    If then H/log₂C < 0.1, T ← (n T + t)/(n + 1), n ← n + 1, n from 1: a plain mean, normalised where it is used.

    Args:
        features, text_features: (V, D) and (C, D). In the cache and in the step f is that of the clean view, or with
            ``mean_views`` the mean over the int(V·``stream_ratio``) most confident views under T. The prediction is
            that of the clean view, or with ``mean_prediction`` of the mean over those under t.
        state: T, n and the cache.

    Returns:
        (V, C): the first row is the prediction, the others are the further views under the same prototypes.
    """
    texts = state.setdefault("texts", text_features.clone())
    current = logit_scale * features @ _unit(texts).mT
    image = summarise(features, current, mean=mean_views, ratio=stream_ratio)
    cache = positive_cache(state, image)
    start = _Prototypes(texts, _means(cache), cache.present.any(dim=-1), logit_scale, cache_alpha, cache_beta)
    tuned = start.after_step(image.feature[None], dpe_rate, dpe_contrast)
    under = logit_scale * features @ tuned.texts.mT
    predicted = summarise(features, under, mean=mean_prediction, ratio=stream_ratio).feature
    adapted = tuned.logits(in_first_row(predicted, features))
    if float(entropy_of_mean(adapted[:1])) < _CONFIDENT * math.log2(len(texts)):
        count = state.get("count", 1)
        state["texts"], state["count"] = (count * texts + tuned.texts) / (count + 1), count + 1
    return adapted


@dataclass(frozen=True)
class _Prototypes:
    """Prototypes of texts (C, D) and of images (n, D), those of the classes where ``present`` (C,) is set."""

    texts: Tensor
    images: Tensor
    present: Tensor
    scale: float
    alpha: float
    beta: float

    def logits(self, rows: Tensor) -> Tensor:
        """(V, D) → (V, C)."""
        near = rows.new_zeros(len(rows), len(self.texts))
        near[:, self.present] = affinity(rows, self.images, self.beta)
        return self.scale * rows @ self.texts.mT + self.alpha * near

    def moved(self, texts: Tensor, images: Tensor) -> _Prototypes:
        """With residuals on both."""
        own = _unit(self.texts + texts), _unit(self.images + images)
        return _Prototypes(*own, self.present, self.scale, self.alpha, self.beta)

    def after_step(self, feature: Tensor, learning_rate: float, contrast: float) -> _Prototypes:
        """After one step on the residuals, for an image (1, D)."""
        zeros = torch.zeros_like(self.texts), torch.zeros_like(self.images)
        with torch.enable_grad():
            residuals = [each.clone().requires_grad_() for each in zeros]
            own = self.moved(*residuals)
            loss = entropy_of_mean(own.logits(feature))
            if contrast:
                loss = loss + contrast * own.contrast()
            gradients = torch.autograd.grad(loss, residuals)
        return self.moved(
            *(
                adamw_first_step(each, gradient, learning_rate=learning_rate, weight_decay=_DECAY, epsilon=_EPSILON)
                for each, gradient in zip(zeros, gradients, strict=True)
            )
        )

    def contrast(self) -> Tensor:
        """InfoNCE of the image prototypes against the texts of the same classes."""
        similarities = self.images @ self.texts[self.present].mT / _CONTRAST_TEMPERATURE
        return -similarities.log_softmax(dim=-1).diagonal().mean()


def _means(cache: ClassCache) -> Tensor:
    """(n, D) mean features of the classes that have any."""
    present = cache.present
    some = present.any(dim=-1)
    return cache.values()[some].sum(dim=1) / present[some].sum(dim=-1, keepdim=True)


def _unit(rows: Tensor) -> Tensor:
    return torch.nn.functional.normalize(rows, dim=-1)
