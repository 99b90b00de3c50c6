"""TDA: a positive cache of confident images and a negative one of doubtful images, read by similarity."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from otpt.methods.caches.entries import Entries
from otpt.methods.caches.seen import Seen, seen

POSITIVE, NEGATIVE = 3, 2
"""Entries for each class."""

_DOUBTFUL = (0.2, 0.5)
_UNLIKELY = 0.03
_NEGATIVE_BETA = 1.0


def tda(
    features: Tensor,
    logits: Tensor,
    state: dict[str, Any],
    cache_alpha: float = 2.0,
    cache_beta: float = 5.0,
    negative_weight: float = 0.117,
    mean_views: float = 0.0,
    stream_ratio: float = 0.1,
) -> Tensor:
    """ℓ'_c = ℓ_c + α Σ_{g of c} exp(−β(1 − f·g)) − 0.117 Σ_{(g, q)} exp(−(1 − f·g))·[0.03 < q_c < 1].

    g are the features of the positive cache (3 a class, of smallest entropy H), (g, q) features and probabilities of
    the negative one (2 a class). The image itself enters before it is predicted: the positive cache of its
    pseudo-label, and the negative one if 0.2 < H/log₂C < 0.5.

    Args:
        features, logits: (V, D) and (V, C). f, ℓ, p are those of the clean view, or with ``mean_views`` means over the
            int(V·``stream_ratio``) most confident views.
        state: the two caches.

    Returns:
        (V, C): the first row is the prediction, the others are the further views with cache terms of their own.
    """
    image = seen(features, logits, mean=bool(mean_views), ratio=stream_ratio)
    positive = positive_cache(state, image)
    rows, own = in_first_row(image.feature, features), in_first_row(image.logits, logits)
    adapted = own + cache_alpha * positive.affinities(rows, cache_beta).sum(dim=-1)
    negative = negative_cache(state, image, image.entropy)
    return adapted - negative_weight * negative_term(negative, rows)


def positive_cache(state: dict[str, Any], image: Seen) -> Entries:
    """The positive cache, with this image in it."""
    if "positive" not in state:
        shapes = [tuple(image.feature.shape)]
        state["positive"] = Entries(len(image.logits), POSITIVE, shapes, like=image.feature)
    cache: Entries = state["positive"]
    cache.insert(image.label, image.entropy, image.feature)
    return cache


def negative_cache(state: dict[str, Any], image: Seen, rank: Tensor) -> Entries:
    """The negative cache, with this image in it if it is doubtful: features, and which classes are not unlikely."""
    if "negative" not in state:
        shapes = [tuple(image.feature.shape), tuple(image.logits.shape)]
        state["negative"] = Entries(len(image.logits), NEGATIVE, shapes, like=image.feature)
    cache: Entries = state["negative"]
    if doubtful(image):
        likely = (image.probabilities > _UNLIKELY) & (image.probabilities < 1)
        cache.insert(image.label, rank, image.feature, likely.to(image.feature))
    return cache


def doubtful(image: Seen) -> bool:
    """Whether 0.2 < η < 0.5, η = H/log₂C; H is in nats, so that η is at most ln 2 = 0.693."""
    low, high = (bound * math.log2(len(image.logits)) for bound in _DOUBTFUL)
    return low < float(image.entropy) < high


def negative_term(cache: Entries, rows: Tensor) -> Tensor:
    """Σ over all entries (g, q) of exp(−(1 − f·g))·[0.03 < q_c < 1]: (V, D) → (V, C)."""
    affinities = cache.affinities(rows, _NEGATIVE_BETA)
    return affinities.flatten(start_dim=1) @ cache.values(1).flatten(end_dim=1)


def in_first_row(row: Tensor, rows: Tensor) -> Tensor:
    """(V, …) with another first row."""
    return torch.cat([row[None], rows[1:]])
