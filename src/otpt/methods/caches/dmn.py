"""DMN, its training-free part: a memory of features that is read anew for each image."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from otpt.methods.caches.entries import Entries, affinity
from otpt.methods.caches.seen import seen


def dmn(
    features: Tensor,
    logits: Tensor,
    text_features: Tensor,
    logit_scale: float,
    state: dict[str, Any],
    memory_weight: float = 1.0,
    memory_beta: float = 5.5,
    memory_size: float = 50.0,
    stream_ratio: float = 0.1,
) -> Tensor:
    """p = (p_0 + b·p_d)/(1 + b) with p_d = softmax(s·f·g_c), g_c = unit(Σ_m exp(−5.5(1 − f·m))·m).

    f and p_0 are the clean view's. m are the features that the memory has of class c (50, of smallest entropy) and the
    class's text. The image's clean feature is written before it is read, under label and entropy of the mean
    prediction over the int(V·``stream_ratio``) most confident views.

    Args:
        features, logits, text_features: (V, D), (V, C) and (C, D).
        state: the memory.

    Returns:
        log p, (V, C): the first row is the prediction, the others are the further views under the same g_c.
    """
    if "memory" not in state:
        shapes = [tuple(features[0].shape)]
        state["memory"] = Entries(len(text_features), int(memory_size), shapes, like=features)
    memory: Entries = state["memory"]
    image = seen(features, logits, mean=True, ratio=stream_ratio)
    memory.insert(int(image.probabilities.argmax()), image.entropy, features[0])
    read = torch.nn.functional.normalize(_read(memory, text_features, features[:1], memory_beta), dim=-1)
    dynamic = (logit_scale * features @ read.mT).log_softmax(dim=-1)
    if memory_weight == 0:
        return logits.log_softmax(dim=-1)
    mixed = torch.logaddexp(logits.log_softmax(dim=-1), dynamic + math.log(memory_weight))
    return mixed - math.log1p(memory_weight)


def _read(memory: Entries, text_features: Tensor, feature: Tensor, beta: float) -> Tensor:
    """Σ_m exp(−β(1 − f·m))·m over the memory of each class and its text: f of (1, D) → (C, D).

    As batched products over the classes: a memory of 1000 classes is too large to be copied for each image.
    """
    kept = memory.values()
    cosines = torch.bmm(kept, feature.mT.expand(len(kept), -1, -1))[..., 0]
    weights = (beta * (cosines - 1)).exp() * memory.present
    of_text = affinity(feature, text_features, beta)[0]
    return torch.bmm(weights[:, None], kept)[:, 0] + of_text[:, None] * text_features
