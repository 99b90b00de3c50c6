"""BoostAdapter: TDA whose positive cache also takes the image's own views, while it is predicted."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from otpt.methods.caches.entries import affinity
from otpt.methods.caches.seen import seen
from otpt.methods.caches.tda import POSITIVE, in_first_row, negative_cache, negative_term, positive_cache
from otpt.objectives.entropy import select_fraction, view_entropies


def boostadapter(
    features: Tensor,
    logits: Tensor,
    state: dict[str, Any],
    cache_alpha: float = 2.0,
    cache_beta: float = 5.0,
    boost_delta: float = 1.0,
    negative_weight: float = 0.117,
    mean_views: float = 0.0,
    stream_ratio: float = 0.1,
) -> Tensor:
    """TDA with a positive term read from a copy of the cache that holds the image's most confident views as well.

    The copy takes the int(V·``stream_ratio``) views of smallest entropy, each under its own label, keeps the 3 + δ
    entries of smallest entropy of each class, and is thrown away afterwards. The negative cache is first in, first out.

    Args, Returns: as :func:`otpt.methods.caches.tda`.
    """
    image = seen(features, logits, mean=bool(mean_views), ratio=stream_ratio)
    positive = positive_cache(state, image)
    chosen = select_fraction(logits, stream_ratio)
    labels, entropies = logits[chosen].argmax(dim=-1), view_entropies(logits[chosen])
    history, views = _kept(positive.ranks, labels, entropies, POSITIVE + int(boost_delta))
    rows, own = in_first_row(image.feature, features), in_first_row(image.logits, logits)
    near = (positive.affinities(rows, cache_beta) * history).sum(dim=-1)
    near = near.index_add(1, labels, affinity(rows, features[chosen], cache_beta) * views)
    state["images"] = state.get("images", 0) + 1
    negative = negative_cache(state, image, image.entropy.new_tensor(-state["images"]))
    return own + cache_alpha * near - negative_weight * negative_term(negative, rows)


def boost(
    features: Tensor,
    logits: Tensor,
    cache_alpha: float = 2.0,
    cache_beta: float = 5.0,
    boost_delta: float = 1.0,
    negative_weight: float = 0.117,
    mean_views: float = 0.0,
    stream_ratio: float = 0.1,
) -> Tensor:
    """BoostAdapter without history: each image is a stream of its own.

    Args, Returns: as :func:`otpt.methods.caches.tda`, without state.
    """
    return boostadapter(
        features, logits, {}, cache_alpha, cache_beta, boost_delta, negative_weight, mean_views, stream_ratio
    )


def _kept(ranks: Tensor, labels: Tensor, entropies: Tensor, capacity: int) -> tuple[Tensor, Tensor]:
    """Which entries (C, n) and which of k views a copy keeps that holds ``capacity`` of both for each class."""
    history, views = ranks.isfinite(), torch.ones_like(labels, dtype=torch.bool)
    for label in labels.unique().tolist():
        here = (labels == label).nonzero()[:, 0]
        order = torch.cat([ranks[label], entropies[here]]).argsort(stable=True)
        kept = torch.zeros_like(order, dtype=torch.bool)
        kept[order[:capacity]] = True
        history[label] &= kept[: ranks.shape[1]]
        views[here] = kept[ranks.shape[1] :]
    return history, views
