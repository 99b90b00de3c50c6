"""DPE: text prototypes and image prototypes that evolve together, with residuals tuned for each image."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from otpt.methods.caches.entries import Entries, affinity
from otpt.methods.caches.seen import seen
from otpt.methods.caches.tda import in_first_row, positive_cache
from otpt.methods.prompt_tuning.one_step import adamw_first_step
from otpt.objectives import entropy_of_mean

_EPSILON = 1e-3
_DECAY = 0.1
_CONTRAST_TEMPERATURE = 0.01
_SURE = 0.1


def dpe(
    features: Tensor,
    logits: Tensor,
    text_features: Tensor,
    logit_scale: float,
    state: dict[str, Any],
    cache_alpha: float = 6.0,
    cache_beta: float = 5.0,
    dpe_rate: float = 6e-4,
    dpe_contrast: float = 0.5,
    mean_views: float = 0.0,
    mean_prediction: float = 0.0,
    stream_ratio: float = 0.1,
) -> Tensor:
    """ℓ_c = s·f·t_c + α·exp(−β(1 − f·k_c)), of prototypes t and k after one step on their residuals.

    k_c is the mean of the features in the cache of class c (TDA's positive cache, which the image enters first); a
    class without any has no second term. One AdamW step (ε = 1e-3) from residuals of 0, with t = unit(T + R_T) and
    k = unit(K + R_K), minimises the entropy of softmax(ℓ) plus a·InfoNCE: the mean over the cached classes of
    −log softmax(k_c·t/0.01)_c. If then H/log₂C < 0.1, T ← (n T + t)/(n + 1), n ← n + 1, n from 1: a plain mean, made
    unit where it is used.

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
    image = seen(features, current, mean=bool(mean_views), ratio=stream_ratio)
    cache = positive_cache(state, image)
    start = _Prototypes(texts, _means(cache), cache.present.any(dim=-1), logit_scale, cache_alpha, cache_beta)
    tuned = start.after_step(image.feature[None], dpe_rate, dpe_contrast)
    under = logit_scale * features @ tuned.texts.mT
    predicted = seen(features, under, mean=bool(mean_prediction), ratio=stream_ratio).feature
    adapted = tuned.logits(in_first_row(predicted, features))
    if float(entropy_of_mean(adapted[:1])) < _SURE * math.log2(len(texts)):
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


def _means(cache: Entries) -> Tensor:
    """(n, D) mean features of the classes that have any."""
    present = cache.present
    some = present.any(dim=-1)
    return cache.values()[some].sum(dim=1) / present[some].sum(dim=-1, keepdim=True)


def _unit(rows: Tensor) -> Tensor:
    return torch.nn.functional.normalize(rows, dim=-1)
