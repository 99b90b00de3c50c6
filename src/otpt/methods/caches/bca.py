"""BCA: Bayesian class adaptation, class centres and a class-to-class matrix that follow the stream."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from otpt.methods.caches.seen import seen
from otpt.methods.caches.tda import in_first_row


def bca(
    features: Tensor,
    logits: Tensor,
    text_features: Tensor,
    logit_scale: float,
    state: dict[str, Any],
    bca_count: float = 20000.0,
    bca_centre_from: float = 0.05,
    bca_matrix_from: float = 0.65,
    mean_views: float = 0.0,
    stream_ratio: float = 0.1,
) -> Tensor:
    """p ∝ softmax(s·f·μ)·Q, of centres μ_c that start at the texts and a matrix Q (C, C) that starts at I.

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
    rows = in_first_row(seen(features, logits, mean=bool(mean_views), ratio=stream_ratio).feature, features)
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
